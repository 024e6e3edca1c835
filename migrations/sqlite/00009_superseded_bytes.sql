-- In which lease file the byte of a term that has ended means nothing any more, for SQLite.
--
-- Code of the versions before works with this column: the ends that it writes have NULL there, and
-- then the byte counts.

-- +goose Up

ALTER TABLE scheduler_terms ADD COLUMN ended_file_id TEXT /* id of the lease file beside which ended_at was written, by who knew that this leader had stopped; NULL: nobody did */;

INSERT INTO scheduler_lock_schema (version, min_code) VALUES (9, 1);
