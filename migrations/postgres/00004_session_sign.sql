-- How long others wait once the session of the holder has ended, for PostgreSQL.
--
-- Code of the versions before works with these columns: it leaves them NULL, and waits for the TTL.

-- +goose Up

-- See 00002: whoever waits behind this statement waits with it.
SET LOCAL lock_timeout = '500ms';

ALTER TABLE scheduler_lock
    ADD COLUMN grace_ms bigint,
    ADD COLUMN ttl_only text;

COMMENT ON COLUMN scheduler_lock.grace_ms IS 'how long others wait once the session of this holder has ended; NULL: they wait for the TTL';
COMMENT ON COLUMN scheduler_lock.ttl_only IS 'why they wait for the TTL; NULL: they do not, or it is not known';

INSERT INTO scheduler_lock_schema (version, min_code) VALUES (4, 1);
