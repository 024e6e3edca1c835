-- Which replicas there are, for SQLite, where an app switches that on.
--
-- Code of the versions before works beside this table: it does not know it, so its replicas are not
-- in it.

-- +goose Up

-- One row per replica that tells of itself. Nothing is decided by it.
CREATE TABLE scheduler_replicas (
    instance TEXT PRIMARY KEY, -- 128 random bits as 32 hex digits, new with every start
    pid      INTEGER NOT NULL, -- process id
    hostname TEXT    NOT NULL, -- host name
    version  TEXT    NOT NULL, -- of the app, as Go has recorded it in the program, or ''
    state    TEXT    NOT NULL, -- starting, standby, leading, suspended, draining or stopped
    reason   TEXT    NOT NULL, -- of the state, in words
    seen_at  TEXT    NOT NULL  -- when it last told so
) STRICT;

INSERT INTO scheduler_lock_schema (version, min_code) VALUES (12, 1);
