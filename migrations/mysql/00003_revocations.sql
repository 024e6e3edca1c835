-- Who told a leader to leave, and why, for MariaDB.
--
-- Code of the versions before works with these columns: it obeys a revocation, and shows none.

-- +goose NO TRANSACTION
-- +goose Up

ALTER TABLE scheduler_terms
    ADD COLUMN IF NOT EXISTS revoked_at datetime(6) COMMENT 'when an operator told this leader to leave; NULL: nobody did',
    ADD COLUMN IF NOT EXISTS revoked_by text COMMENT 'who told it to leave',
    ADD COLUMN IF NOT EXISTS revoke_reason text COMMENT 'why, or empty';


INSERT IGNORE INTO scheduler_lock_schema (version, min_code) VALUES (3, 1);
