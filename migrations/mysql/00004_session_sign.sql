-- On MariaDB there is nothing to change: all dialects have the same versions.

-- +goose NO TRANSACTION
-- +goose Up

INSERT IGNORE INTO scheduler_lock_schema (version, min_code) VALUES (4, 1);
