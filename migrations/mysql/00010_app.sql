-- Which app leads, for MariaDB: two apps that share a lock by mistake can tell.
--
-- Code of the versions before works with these columns: it leaves them NULL, and what is not known is
-- nobody's other app.

-- +goose NO TRANSACTION
-- +goose Up

ALTER TABLE scheduler_lock
    ADD COLUMN IF NOT EXISTS app text COMMENT 'the app of the holder, as it was named, else its program; NULL: older code has written the row',
    ADD COLUMN IF NOT EXISTS program text COMMENT 'import path of the main package of the holder, or the name of its executable file';

ALTER TABLE scheduler_terms
    ADD COLUMN IF NOT EXISTS app text COMMENT 'the app of the leader of this term, as in the lock row',
    ADD COLUMN IF NOT EXISTS program text COMMENT 'the program of the leader of this term, as in the lock row';


INSERT IGNORE INTO scheduler_lock_schema (version, min_code) VALUES (10, 1);
