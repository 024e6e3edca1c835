-- Named locks after a fail-over, and after the server's clock was set back, for MariaDB.
--
-- Code of the versions before works with these columns: it does not know them, so it takes at once
-- what it finds free on a promoted server. What it takes has a ttl_of that is not its term.

-- +goose NO TRANSACTION
-- +goose Up

ALTER TABLE named_locks
    ADD COLUMN IF NOT EXISTS ttl_ms bigint COMMENT 'the TTL, if ttl_of is the term',
    ADD COLUMN IF NOT EXISTS ttl_of bigint COMMENT 'the term that ttl_ms is of: older code leaves both as they were';

ALTER TABLE named_locks_floor
    ADD COLUMN IF NOT EXISTS server varchar(100) COMMENT 'server_uid and server_id when this was last written: others mean a fail-over that nobody has noticed yet',
    ADD COLUMN IF NOT EXISTS since datetime(6) COMMENT 'when the fail-over was noticed: nothing is taken before its TTL has passed since; NULL: there was no fail-over';

UPDATE named_locks_floor SET server = coalesce(
    (SELECT concat('galera ', g.variable_value) FROM information_schema.global_status g
     WHERE g.variable_name = 'WSREP_CLUSTER_STATE_UUID' AND g.variable_value <> ''),
    concat(@@server_uid, ' ', @@global.server_id)) WHERE server IS NULL;

INSERT IGNORE INTO scheduler_lock_schema (version, min_code) VALUES (8, 1);
