-- Attempts, requests and pauses, and how the runs of each job have ended, for PostgreSQL.
--
-- Code of version 1 works with these tables: it starts no second attempt, answers no request and
-- knows no pause. What it leaves, code of version 2 takes up.

-- +goose Up

-- Whoever comes after an ALTER TABLE that waits for a long-running reader waits with it. This one gives
-- way, and is tried again.
SET LOCAL lock_timeout = '500ms';

ALTER TABLE scheduler_runs
    ADD COLUMN retry_at       timestamptz,
    ADD COLUMN requested_by   text,
    ADD COLUMN request_reason text;

COMMENT ON COLUMN scheduler_runs.retry_at IS 'when the next attempt of a failed or abandoned run is due; NULL: none is';
COMMENT ON COLUMN scheduler_runs.requested_by IS 'who asked for this run; NULL: it was due by its schedule';
COMMENT ON COLUMN scheduler_runs.request_reason IS 'why somebody asked for this run';

CREATE INDEX scheduler_runs_retry_at ON scheduler_runs (retry_at) WHERE retry_at IS NOT NULL;

-- How the attempts of the job have ended. These columns do not shrink when old runs are deleted.
-- None of them may ever be indexed: the end of a run is a HOT update.
ALTER TABLE scheduler_jobs
    ADD COLUMN done_count     bigint NOT NULL DEFAULT 0,
    ADD COLUMN failed_count   bigint NOT NULL DEFAULT 0,
    ADD COLUMN failure_streak bigint NOT NULL DEFAULT 0,
    ADD COLUMN last_done_at   timestamptz,
    ADD COLUMN last_failed_at timestamptz,
    ADD COLUMN last_error     text,
    ADD COLUMN done_us        bigint NOT NULL DEFAULT 0,
    ADD COLUMN longest_us     bigint NOT NULL DEFAULT 0;

COMMENT ON COLUMN scheduler_jobs.done_count IS 'attempts that succeeded';
COMMENT ON COLUMN scheduler_jobs.failed_count IS 'attempts that failed or were abandoned';
COMMENT ON COLUMN scheduler_jobs.failure_streak IS 'of these, since the last success';
COMMENT ON COLUMN scheduler_jobs.last_done_at IS 'when the last success ended';
COMMENT ON COLUMN scheduler_jobs.last_failed_at IS 'when the last failure was recorded';
COMMENT ON COLUMN scheduler_jobs.last_error IS 'of the last failure, its first 1,000 characters';
COMMENT ON COLUMN scheduler_jobs.done_us IS 'microseconds that the successful attempts took';
COMMENT ON COLUMN scheduler_jobs.longest_us IS 'microseconds of the longest successful attempt';

CREATE TABLE scheduler_requests (
    job          text NOT NULL,
    requested_at timestamptz NOT NULL,
    requested_by text NOT NULL,
    reason       text NOT NULL,
    PRIMARY KEY (job, requested_at)
);

COMMENT ON TABLE scheduler_requests IS 'runs that somebody asked for, from any replica, until the leader has started them';
COMMENT ON COLUMN scheduler_requests.job IS 'name of the job';
COMMENT ON COLUMN scheduler_requests.requested_at IS 'becomes scheduled_at of the run';
COMMENT ON COLUMN scheduler_requests.requested_by IS 'who asked';
COMMENT ON COLUMN scheduler_requests.reason IS 'why, or empty';

CREATE TABLE scheduler_pauses (
    job        text PRIMARY KEY,
    paused_at  timestamptz NOT NULL,
    paused_by  text NOT NULL,
    reason     text NOT NULL,
    resumed_at timestamptz,
    resumed_by text,
    CHECK ((resumed_at IS NULL) = (resumed_by IS NULL))
);

COMMENT ON TABLE scheduler_pauses IS 'the latest pause of each job, and of the whole scheduler: while one is in force, nothing starts';
COMMENT ON COLUMN scheduler_pauses.job IS 'name of the job; empty: every job';
COMMENT ON COLUMN scheduler_pauses.paused_at IS 'since when';
COMMENT ON COLUMN scheduler_pauses.paused_by IS 'by whom';
COMMENT ON COLUMN scheduler_pauses.reason IS 'why, or empty';
COMMENT ON COLUMN scheduler_pauses.resumed_at IS 'until when; NULL: it is in force';
COMMENT ON COLUMN scheduler_pauses.resumed_by IS 'who ended it';

INSERT INTO scheduler_lock_schema (version, min_code) VALUES (2, 1);
