-- Which replicas there are, for PostgreSQL, where an app switches that on.
--
-- Code of the versions before works beside this table: it does not know it, so its replicas are not
-- in it.

-- +goose Up

-- A row is written every half minute and soon deleted. Nothing but its key may be indexed, and half
-- of the page stays free, so that each update is a HOT update.
CREATE TABLE scheduler_replicas (
    instance text PRIMARY KEY,
    pid      bigint NOT NULL,
    hostname text NOT NULL,
    version  text NOT NULL,
    state    text NOT NULL,
    reason   text NOT NULL,
    seen_at  timestamptz NOT NULL
) WITH (fillfactor = 50);

COMMENT ON TABLE scheduler_replicas IS 'one row per replica that tells of itself: nothing is decided by it';
COMMENT ON COLUMN scheduler_replicas.instance IS '128 random bits as 32 hex digits, new with every start';
COMMENT ON COLUMN scheduler_replicas.pid IS 'process id';
COMMENT ON COLUMN scheduler_replicas.hostname IS 'host name';
COMMENT ON COLUMN scheduler_replicas.version IS 'of the app, as Go has recorded it in the program, or empty';
COMMENT ON COLUMN scheduler_replicas.state IS 'starting, standby, leading, suspended, draining or stopped';
COMMENT ON COLUMN scheduler_replicas.reason IS 'of the state, in words';
COMMENT ON COLUMN scheduler_replicas.seen_at IS 'when it last told so';

INSERT INTO scheduler_lock_schema (version, min_code) VALUES (12, 1);
