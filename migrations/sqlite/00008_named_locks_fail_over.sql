-- The TTL of named locks, for SQLite: where the clock that decides can be set, what has more left than
-- its TTL was stamped by a clock that was set back since.
--
-- Code of the versions before works with these columns: it does not know them. What it takes has a
-- ttl_of that is not its term.

-- +goose Up

ALTER TABLE named_locks ADD COLUMN ttl_ms INTEGER /* the TTL if ttl_of is the term */;
ALTER TABLE named_locks ADD COLUMN ttl_of INTEGER /* the term that ttl_ms is of: older code leaves both as they were */;

ALTER TABLE named_locks_floor ADD COLUMN timeline TEXT /* on PostgreSQL only: NULL here */;
ALTER TABLE named_locks_floor ADD COLUMN since    TEXT /* on PostgreSQL only: NULL here */;

INSERT INTO scheduler_lock_schema (version, min_code) VALUES (8, 1);
