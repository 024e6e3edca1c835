-- Attempts, requests and pauses, and how the runs of each job have ended, for MariaDB.
--
-- Code of version 1 works with these tables: it starts no second attempt, answers no request and
-- knows no pause. What it leaves, code of version 2 takes up.

-- +goose NO TRANSACTION
-- +goose Up

ALTER TABLE scheduler_runs
    ADD COLUMN IF NOT EXISTS retry_at datetime(6) COMMENT 'when the next attempt of a failed or abandoned run is due; NULL: none is',
    ADD COLUMN IF NOT EXISTS requested_by text COMMENT 'who asked for this run; NULL: it was due by its schedule',
    ADD COLUMN IF NOT EXISTS request_reason text COMMENT 'why somebody asked for this run',
    ADD INDEX IF NOT EXISTS scheduler_runs_retry_at (retry_at);

-- How the attempts of the job have ended. These columns do not shrink when old runs are deleted.
ALTER TABLE scheduler_jobs
    ADD COLUMN IF NOT EXISTS done_count bigint NOT NULL DEFAULT 0 COMMENT 'attempts that succeeded',
    ADD COLUMN IF NOT EXISTS failed_count bigint NOT NULL DEFAULT 0 COMMENT 'attempts that failed or were abandoned',
    ADD COLUMN IF NOT EXISTS failure_streak bigint NOT NULL DEFAULT 0 COMMENT 'of these, since the last success',
    ADD COLUMN IF NOT EXISTS last_done_at datetime(6) COMMENT 'when the last success ended',
    ADD COLUMN IF NOT EXISTS last_failed_at datetime(6) COMMENT 'when the last failure was recorded',
    ADD COLUMN IF NOT EXISTS last_error text COMMENT 'of the last failure, its first 1,000 characters',
    ADD COLUMN IF NOT EXISTS done_us bigint NOT NULL DEFAULT 0 COMMENT 'microseconds that the successful attempts took',
    ADD COLUMN IF NOT EXISTS longest_us bigint NOT NULL DEFAULT 0 COMMENT 'microseconds of the longest successful attempt';

CREATE TABLE IF NOT EXISTS scheduler_requests (
    job               varchar(200) NOT NULL COMMENT 'name of the job',
    requested_at      datetime(6) NOT NULL COMMENT 'becomes scheduled_at of the run',
    requested_by      text NOT NULL COMMENT 'who asked',
    reason            text NOT NULL COMMENT 'why, or empty',
    PRIMARY KEY (job, requested_at)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_nopad_bin
  COMMENT = 'runs that somebody asked for, from any replica, until the leader has started them';

CREATE TABLE IF NOT EXISTS scheduler_pauses (
    job               varchar(200) PRIMARY KEY COMMENT 'name of the job; empty: every job',
    paused_at         datetime(6) NOT NULL COMMENT 'since when',
    paused_by         text NOT NULL COMMENT 'by whom',
    reason            text NOT NULL COMMENT 'why, or empty',
    resumed_at        datetime(6) COMMENT 'until when; NULL: it is in force',
    resumed_by        text COMMENT 'who ended it',
    CHECK ((resumed_at IS NULL) = (resumed_by IS NULL))
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_nopad_bin
  COMMENT = 'the latest pause of each job, and of the whole scheduler: while one is in force, nothing starts';

-- A pause that is not there yet cannot be locked.
CREATE TABLE IF NOT EXISTS scheduler_gate (
    id                integer PRIMARY KEY COMMENT 'always 1' CHECK (id = 1)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_nopad_bin
  COMMENT = 'one row: what starts a run refers to it, a new pause deletes it and makes it anew';

INSERT IGNORE INTO scheduler_gate (id) VALUES (1);

CREATE TABLE IF NOT EXISTS scheduler_gated (
    id                bigint PRIMARY KEY AUTO_INCREMENT COMMENT 'of the start',
    gate              integer NOT NULL COMMENT 'always 1',
    FOREIGN KEY (gate) REFERENCES scheduler_gate (id) ON DELETE CASCADE
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_nopad_bin
  COMMENT = 'starts that are under way: each deletes its own row before it is committed';

INSERT IGNORE INTO scheduler_lock_schema (version, min_code) VALUES (2, 1);
