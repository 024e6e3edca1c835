-- Attempts, requests and pauses, and how the runs of each job have ended, for SQLite.
--
-- Code of version 1 works with these tables: it starts no second attempt, answers no request and
-- knows no pause. What it leaves, code of version 2 takes up.
--
-- SQLite keeps the text of a new column up to the semicolon: so ".schema" shows these comments too.

-- +goose Up

ALTER TABLE scheduler_runs ADD COLUMN retry_at       TEXT /* when the next attempt of a failed or abandoned run is due; NULL: none is */;
ALTER TABLE scheduler_runs ADD COLUMN requested_by   TEXT /* who asked for this run; NULL: it was due by its schedule */;
ALTER TABLE scheduler_runs ADD COLUMN request_reason TEXT /* why */;

CREATE INDEX scheduler_runs_retry_at ON scheduler_runs (retry_at) WHERE retry_at IS NOT NULL;

-- How the attempts of the job have ended. These columns do not shrink when old runs are deleted.
ALTER TABLE scheduler_jobs ADD COLUMN done_count     INTEGER NOT NULL DEFAULT 0 /* attempts that succeeded */;
ALTER TABLE scheduler_jobs ADD COLUMN failed_count   INTEGER NOT NULL DEFAULT 0 /* attempts that failed or were abandoned */;
ALTER TABLE scheduler_jobs ADD COLUMN failure_streak INTEGER NOT NULL DEFAULT 0 /* of these, since the last success */;
ALTER TABLE scheduler_jobs ADD COLUMN last_done_at   TEXT /* when the last success ended */;
ALTER TABLE scheduler_jobs ADD COLUMN last_failed_at TEXT /* when the last failure was recorded */;
ALTER TABLE scheduler_jobs ADD COLUMN last_error     TEXT /* of that failure, its first 1,000 characters */;
ALTER TABLE scheduler_jobs ADD COLUMN done_us        INTEGER NOT NULL DEFAULT 0 /* microseconds that the successful attempts took */;
ALTER TABLE scheduler_jobs ADD COLUMN longest_us     INTEGER NOT NULL DEFAULT 0 /* microseconds of the longest of them */;

-- Runs that somebody asked for, from any replica, until the leader has started them.
CREATE TABLE scheduler_requests (
    job          TEXT NOT NULL, -- name of the job
    requested_at TEXT NOT NULL, -- becomes scheduled_at of the run
    requested_by TEXT NOT NULL, -- who asked
    reason       TEXT NOT NULL, -- why, or ''
    PRIMARY KEY (job, requested_at)
) STRICT;

-- The latest pause of each job, and of the whole scheduler. While one is in force, nothing starts.
CREATE TABLE scheduler_pauses (
    job        TEXT PRIMARY KEY, -- name of the job; '': every job
    paused_at  TEXT NOT NULL,    -- since when
    paused_by  TEXT NOT NULL,    -- by whom
    reason     TEXT NOT NULL,    -- why, or ''
    resumed_at TEXT,             -- until when; NULL: it is in force
    resumed_by TEXT,             -- who ended it
    CHECK ((resumed_at IS NULL) = (resumed_by IS NULL))
) STRICT;

INSERT INTO scheduler_lock_schema (version, min_code) VALUES (2, 1);
