-- Who has given which order, and why, for SQLite.
--
-- Code of the versions before works beside this table: it does not know it, so the orders that it
-- carries out have no line here.

-- +goose Up

-- One row per order that was carried out, written together with it. The newest 1,000 stay.
CREATE TABLE scheduler_audit (
    id     INTEGER PRIMARY KEY, -- grows with every row
    at     TEXT NOT NULL, -- when
    what   TEXT NOT NULL CHECK (what IN ('pause', 'resume', 'run', 'hand-over', 'reset-cursor')), -- the order; hand-over: the leader was told to leave
    job    TEXT NOT NULL, -- name of the job; '': every job, or not about a job
    by     TEXT NOT NULL, -- who
    reason TEXT NOT NULL  -- why, or ''
) STRICT;

INSERT INTO scheduler_lock_schema (version, min_code) VALUES (11, 1);
