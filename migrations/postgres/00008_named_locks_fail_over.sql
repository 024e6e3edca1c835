-- Named locks after a fail-over, and after the server's clock was set back, for PostgreSQL.
--
-- Code of the versions before works with these columns: it does not know them, so it takes at once
-- what it finds free on a promoted server. What it takes has a ttl_of that is not its term.

-- +goose Up

-- See 00002: whoever waits behind this statement waits with it.
SET LOCAL lock_timeout = '500ms';

ALTER TABLE named_locks
    ADD COLUMN ttl_ms bigint,
    ADD COLUMN ttl_of bigint;

ALTER TABLE named_locks_floor
    ADD COLUMN timeline text,
    ADD COLUMN since timestamptz;

UPDATE named_locks_floor SET timeline = left(pg_walfile_name(pg_current_wal_lsn()), 8);

COMMENT ON TABLE named_locks_floor IS 'one row: what holds for all names, also for those that have no row';
COMMENT ON COLUMN named_locks_floor.term IS 'no row with a higher term was ever cleaned up, nor lost by a fail-over: every term is higher';
COMMENT ON COLUMN named_locks_floor.timeline IS 'timeline of the server when this was last written: another one means a fail-over that nobody has noticed yet';
COMMENT ON COLUMN named_locks_floor.since IS 'when the timeline was first noticed: nothing is taken before its TTL has passed since; NULL: there was no fail-over';
COMMENT ON COLUMN named_locks.ttl_ms IS 'the TTL, if ttl_of is the term';
COMMENT ON COLUMN named_locks.ttl_of IS 'the term that ttl_ms is of: older code leaves both as they were';

INSERT INTO scheduler_lock_schema (version, min_code) VALUES (8, 1);
