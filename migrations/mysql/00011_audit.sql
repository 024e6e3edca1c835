-- Who has given which order, and why, for MariaDB.
--
-- Code of the versions before works beside this table: it does not know it, so the orders that it
-- carries out have no line here.

-- +goose NO TRANSACTION
-- +goose Up

CREATE TABLE IF NOT EXISTS scheduler_audit (
    id                bigint PRIMARY KEY AUTO_INCREMENT COMMENT 'grows with every row',
    at                datetime(6) NOT NULL COMMENT 'when',
    what              varchar(16) NOT NULL COMMENT 'the order; hand-over: the leader was told to leave' CHECK (what IN ('pause', 'resume', 'run', 'hand-over', 'reset-cursor')),
    job               varchar(200) NOT NULL COMMENT 'name of the job; empty: every job, or not about a job',
    `by`              text NOT NULL COMMENT 'who',
    reason            text NOT NULL COMMENT 'why, or empty'
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_nopad_bin
  COMMENT = 'one row per order that was carried out, written together with it; the newest 1,000 stay';


INSERT IGNORE INTO scheduler_lock_schema (version, min_code) VALUES (11, 1);
