-- Queues of tasks, for MariaDB.
--
-- Code of the versions before works with this table: it does not know it.

-- +goose NO TRANSACTION
-- +goose Up

-- A capture reads its candidates in the order of an index that says the same of each.
CREATE TABLE IF NOT EXISTS queue_tasks (
    queue             varchar(200) NOT NULL COMMENT 'name of the queue' CHECK (octet_length(queue) BETWEEN 1 AND 200),
    id                varchar(200) NOT NULL COMMENT 'what the app calls the task' CHECK (octet_length(id) BETWEEN 1 AND 200),
    seq               bigint NOT NULL AUTO_INCREMENT COMMENT 'the order in which the tasks were added',
    state             varchar(16) NOT NULL COMMENT 'failed: no retry is left' CHECK (state IN ('pending', 'in_progress', 'done', 'failed')),
    retries_left      integer NOT NULL COMMENT 'how many attempts may still follow the present one, or the next' CHECK (retries_left >= 0),
    attempts          integer NOT NULL DEFAULT 0 COMMENT 'how often it was captured',
    token             varchar(255) COMMENT '128 random bits as 32 hex digits, new for every capture: whose task it is, or was when it was done',
    visible_at        datetime(6) COMMENT 'from when on it can be captured (again); NULL: now if it is pending, never if it has ended',
    last_error        text COMMENT 'of the latest attempt that failed, its first 1,000 characters',
    created_at        datetime(6) NOT NULL COMMENT 'when it was added',
    updated_at        datetime(6) NOT NULL COMMENT 'when this row was last written',
    PRIMARY KEY (queue, id),
    UNIQUE KEY queue_tasks_seq (seq),
    KEY queue_tasks_ready (queue, state, visible_at, seq),
    KEY queue_tasks_ended (queue, state, updated_at),
    CHECK (CASE state WHEN 'in_progress' THEN token IS NOT NULL AND visible_at IS NOT NULL WHEN 'pending' THEN token IS NULL ELSE visible_at IS NULL END)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_nopad_bin
  COMMENT = 'tasks of all queues, without a payload: the data of the app are rows of its own';

INSERT IGNORE INTO scheduler_lock_schema (version, min_code) VALUES (6, 1);
