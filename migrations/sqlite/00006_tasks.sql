-- Queues of tasks, for SQLite.
--
-- Code of the versions before works with this table: it does not know it.

-- +goose Up

-- When a task can be captured is told by boot_id and visible_ms, which no wall clock can spoil; the
-- times as text are for the reader. There is no payload: the app's data are rows of its own.
CREATE TABLE queue_tasks (
    seq          INTEGER PRIMARY KEY, -- the order in which the tasks were added
    queue        TEXT    NOT NULL CHECK (length(CAST(queue AS BLOB)) BETWEEN 1 AND 200 AND instr(queue, char(0)) = 0), -- name of the queue
    id           TEXT    NOT NULL CHECK (length(CAST(id AS BLOB)) BETWEEN 1 AND 200 AND instr(id, char(0)) = 0), -- what the app calls the task
    state        TEXT    NOT NULL CHECK (state IN ('pending', 'in_progress', 'done', 'failed')), -- failed: no retry is left
    retries_left INTEGER NOT NULL CHECK (retries_left >= 0), -- how many attempts may still follow the present one, or the next
    attempts     INTEGER NOT NULL DEFAULT 0, -- how often it was captured
    token        TEXT,             -- 128 random bits as 32 hex digits, new for every capture: whose task it is, or was when it was done
    boot_id      TEXT,             -- of the start of the machine that visible_ms counts from; another one: it can be captured
    visible_ms   INTEGER,          -- from when on it can be captured (again); NULL: now if it is pending, never if it has ended
    visible_at   TEXT,             -- the same by the wall clock, shown, never trusted
    last_error   TEXT,             -- of the latest attempt that failed, its first 1,000 characters
    created_at   TEXT    NOT NULL, -- when it was added
    updated_at   TEXT    NOT NULL, -- when this row was last written
    UNIQUE (queue, id),
    CHECK ((boot_id IS NULL) = (visible_ms IS NULL) AND (visible_at IS NULL) = (visible_ms IS NULL)),
    CHECK (CASE state WHEN 'in_progress' THEN token IS NOT NULL AND visible_ms IS NOT NULL WHEN 'pending' THEN token IS NULL ELSE visible_ms IS NULL END)
) STRICT;

-- Each unfinished task is in one of the first three, what has ended in none of them: so a capture costs
-- the same with a million done tasks. In queue_tasks_last are those that a lost worker makes failed.
CREATE INDEX queue_tasks_ready ON queue_tasks (queue, seq) WHERE state = 'pending' AND visible_ms IS NULL;
CREATE INDEX queue_tasks_waiting ON queue_tasks (queue, boot_id, visible_ms) WHERE visible_ms IS NOT NULL AND (state = 'pending' OR retries_left > 0);
CREATE INDEX queue_tasks_last ON queue_tasks (queue, boot_id, visible_ms) WHERE state = 'in_progress' AND retries_left = 0;
CREATE INDEX queue_tasks_ended ON queue_tasks (queue, state, updated_at) WHERE state IN ('done', 'failed');

INSERT INTO scheduler_lock_schema (version, min_code) VALUES (6, 1);
