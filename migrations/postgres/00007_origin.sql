-- On which timeline of the server the tables were made, for PostgreSQL.
--
-- An empty history means that nobody has ever held the lock, but not on a server that was promoted
-- since: the first acquisition may be lost with the fail-over.
--
-- Code of the versions before works with this column: it does not read it.

-- +goose Up

-- See 00002: whoever waits behind this statement waits with it.
SET LOCAL lock_timeout = '500ms';

ALTER TABLE scheduler_lock_schema ADD COLUMN timeline text;

COMMENT ON COLUMN scheduler_lock_schema.timeline IS 'of version 7 only: timeline of the server when the migration ran';

INSERT INTO scheduler_lock_schema (version, min_code) VALUES (7, 1);

UPDATE scheduler_lock_schema SET timeline = left(pg_walfile_name(pg_current_wal_lsn()), 8) WHERE version = 7;
