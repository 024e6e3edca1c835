-- How long others wait once the session of the holder has ended, for SQLite.
--
-- Code of the versions before works with these columns: it does not read them.

-- +goose Up

ALTER TABLE scheduler_lock ADD COLUMN grace_ms INTEGER /* on PostgreSQL only: NULL here */;
ALTER TABLE scheduler_lock ADD COLUMN ttl_only TEXT    /* on PostgreSQL only: NULL here */;

INSERT INTO scheduler_lock_schema (version, min_code) VALUES (4, 1);
