-- What the attempts of a run were before the latest, for SQLite.
--
-- Code of the versions before works beside this table: it does not know it, so an attempt that its
-- retry replaces has no row here. The rows of a run that it deletes go all the same.

-- +goose Up

-- One row per attempt that a later one has replaced. The latest one is in scheduler_runs. Of each
-- run the newest 100 stay.
CREATE TABLE scheduler_attempts (
    run_id      INTEGER NOT NULL, -- id of the run
    attempt     INTEGER NOT NULL, -- 1, and + 1 with every retry
    started_at  TEXT,             -- when it started
    finished_at TEXT,             -- when its end was written down
    status      TEXT    NOT NULL, -- failed, or abandoned: its leader died
    term        INTEGER NOT NULL, -- the term that started it
    pid         INTEGER NOT NULL, -- process id of that leader
    hostname    TEXT    NOT NULL, -- host name of that leader
    error       TEXT,             -- of a failed one
    PRIMARY KEY (run_id, attempt)
) STRICT, WITHOUT ROWID;

-- A foreign key would only count on connections that have switched foreign keys on.
-- +goose StatementBegin
CREATE TRIGGER scheduler_attempts_of_run AFTER DELETE ON scheduler_runs BEGIN
    DELETE FROM scheduler_attempts WHERE run_id = OLD.id;
END;
-- +goose StatementEnd

INSERT INTO scheduler_lock_schema (version, min_code) VALUES (13, 1);
