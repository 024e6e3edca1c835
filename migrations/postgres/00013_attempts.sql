-- What the attempts of a run were before the latest, for PostgreSQL.
--
-- Code of the versions before works beside this table: it does not know it, so an attempt that its
-- retry replaces has no row here. The rows of a run that it deletes go all the same.

-- +goose Up

-- The foreign key locks scheduler_runs, and whoever comes after a statement that waits for a lock
-- waits with it. This one gives way, and is tried again.
SET LOCAL lock_timeout = '500ms';

CREATE TABLE scheduler_attempts (
    run_id      bigint NOT NULL REFERENCES scheduler_runs (id) ON DELETE CASCADE,
    attempt     integer NOT NULL,
    started_at  timestamptz,
    finished_at timestamptz,
    status      text NOT NULL,
    term        bigint NOT NULL,
    pid         bigint NOT NULL,
    hostname    text NOT NULL,
    error       text,
    PRIMARY KEY (run_id, attempt)
);

COMMENT ON TABLE scheduler_attempts IS 'one row per attempt of a run that a later one has replaced, the latest one is in scheduler_runs; of each run the newest 100 stay';
COMMENT ON COLUMN scheduler_attempts.run_id IS 'id of the run';
COMMENT ON COLUMN scheduler_attempts.attempt IS '1, and + 1 with every retry';
COMMENT ON COLUMN scheduler_attempts.started_at IS 'when it started';
COMMENT ON COLUMN scheduler_attempts.finished_at IS 'when its end was written down';
COMMENT ON COLUMN scheduler_attempts.status IS 'failed, or abandoned: its leader died';
COMMENT ON COLUMN scheduler_attempts.term IS 'the term that started it';
COMMENT ON COLUMN scheduler_attempts.pid IS 'process id of that leader';
COMMENT ON COLUMN scheduler_attempts.hostname IS 'host name of that leader';
COMMENT ON COLUMN scheduler_attempts.error IS 'of a failed one';

INSERT INTO scheduler_lock_schema (version, min_code) VALUES (13, 1);
