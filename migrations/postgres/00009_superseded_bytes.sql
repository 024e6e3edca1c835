-- On PostgreSQL there is nothing to change: both dialects have the same versions.

-- +goose Up

INSERT INTO scheduler_lock_schema (version, min_code) VALUES (9, 1);
