-- What the attempts of a run were before the latest, for MariaDB.
--
-- Code of the versions before works beside this table: it does not know it, so an attempt that its
-- retry replaces has no row here. The rows of a run that it deletes go all the same.

-- +goose NO TRANSACTION
-- +goose Up

CREATE TABLE IF NOT EXISTS scheduler_attempts (
    run_id            bigint NOT NULL COMMENT 'id of the run',
    attempt           integer NOT NULL COMMENT '1, and + 1 with every retry',
    started_at        datetime(6) COMMENT 'when it started',
    finished_at       datetime(6) COMMENT 'when its end was written down',
    status            varchar(16) NOT NULL COMMENT 'failed, or abandoned: its leader died',
    term              bigint NOT NULL COMMENT 'the term that started it',
    pid               bigint NOT NULL COMMENT 'process id of that leader',
    hostname          varchar(255) NOT NULL COMMENT 'host name of that leader',
    error             text COMMENT 'of a failed one',
    PRIMARY KEY (run_id, attempt),
    FOREIGN KEY (run_id) REFERENCES scheduler_runs (id) ON DELETE CASCADE
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_nopad_bin
  COMMENT = 'one row per attempt of a run that a later one has replaced, the latest one is in scheduler_runs; of each run the newest 100 stay';

INSERT IGNORE INTO scheduler_lock_schema (version, min_code) VALUES (13, 1);
