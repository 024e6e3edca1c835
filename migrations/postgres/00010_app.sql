-- Which app leads, for PostgreSQL: two apps that share a lock by mistake can tell.
--
-- Code of the versions before works with these columns: it leaves them NULL, and what is not known is
-- nobody's other app.

-- +goose Up

-- See 00002: whoever waits behind this statement waits with it.
SET LOCAL lock_timeout = '500ms';

ALTER TABLE scheduler_lock
    ADD COLUMN app text,
    ADD COLUMN program text;

ALTER TABLE scheduler_terms
    ADD COLUMN app text,
    ADD COLUMN program text;

COMMENT ON COLUMN scheduler_lock.app IS 'the app of the holder, as it was named, else its program; NULL: older code has written the row';
COMMENT ON COLUMN scheduler_lock.program IS 'import path of the main package of the holder, or the name of its executable file';
COMMENT ON COLUMN scheduler_terms.app IS 'the app of the leader of this term, as in the lock row';
COMMENT ON COLUMN scheduler_terms.program IS 'the program of the leader of this term, as in the lock row';

INSERT INTO scheduler_lock_schema (version, min_code) VALUES (10, 1);
