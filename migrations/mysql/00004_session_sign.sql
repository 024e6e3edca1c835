-- The end of the holder's session as a sign that it is gone, for MariaDB.
--
-- Code of the versions before works with these columns: it leaves them NULL, which means that there
-- is no sign.

-- +goose NO TRANSACTION
-- +goose Up

ALTER TABLE scheduler_lock
    ADD COLUMN IF NOT EXISTS connection_id bigint COMMENT 'id of the session of the holder; NULL: it holds no session_lock',
    ADD COLUMN IF NOT EXISTS session_lock varchar(64) COMMENT 'the lock (GET_LOCK) that this session holds, new for each session',
    ADD COLUMN IF NOT EXISTS session_server varchar(200) COMMENT 'the process of the server that has the session: server_uid, server_id, a random number, and when it started',
    ADD COLUMN IF NOT EXISTS grace_ms bigint COMMENT 'how long others wait once the session has ended; NULL: the end is no sign',
    ADD COLUMN IF NOT EXISTS ttl_only text COMMENT 'why others wait for the TTL; NULL: the end of the session is a sign';

INSERT IGNORE INTO scheduler_lock_schema (version, min_code) VALUES (4, 1);
