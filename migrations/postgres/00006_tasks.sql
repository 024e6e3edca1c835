-- Queues of tasks, for PostgreSQL.
--
-- Code of the versions before works with this table: it does not know it.

-- +goose Up

-- Each task is written three times or more and then deleted: dead rows are taken away early.
CREATE TABLE queue_tasks (
    queue        text COLLATE "C" NOT NULL CHECK (octet_length(queue) BETWEEN 1 AND 200),
    id           text COLLATE "C" NOT NULL CHECK (octet_length(id) BETWEEN 1 AND 200),
    seq          bigint GENERATED ALWAYS AS IDENTITY,
    state        text NOT NULL CHECK (state IN ('pending', 'in_progress', 'done', 'failed')),
    retries_left integer NOT NULL CHECK (retries_left >= 0),
    attempts     integer NOT NULL DEFAULT 0,
    token        text,
    visible_at   timestamptz,
    last_error   text,
    created_at   timestamptz NOT NULL,
    updated_at   timestamptz NOT NULL,
    PRIMARY KEY (queue, id),
    CHECK (CASE state WHEN 'in_progress' THEN token IS NOT NULL AND visible_at IS NOT NULL WHEN 'pending' THEN token IS NULL ELSE visible_at IS NULL END)
) WITH (autovacuum_vacuum_scale_factor = 0.02);

-- Each unfinished task is in one of the first three, what has ended in none of them: so a capture costs
-- the same with a million done tasks. In queue_tasks_last are those that a lost worker makes failed.
CREATE INDEX queue_tasks_ready ON queue_tasks (queue, seq) WHERE state = 'pending' AND visible_at IS NULL;
CREATE INDEX queue_tasks_waiting ON queue_tasks (queue, visible_at) WHERE visible_at IS NOT NULL AND (state = 'pending' OR retries_left > 0);
CREATE INDEX queue_tasks_last ON queue_tasks (queue, visible_at) WHERE state = 'in_progress' AND retries_left = 0;
CREATE INDEX queue_tasks_ended ON queue_tasks (queue, state, updated_at) WHERE state IN ('done', 'failed');

COMMENT ON TABLE queue_tasks IS 'tasks of all queues, without a payload: the data of the app are rows of its own';
COMMENT ON COLUMN queue_tasks.queue IS 'name of the queue';
COMMENT ON COLUMN queue_tasks.id IS 'what the app calls the task';
COMMENT ON COLUMN queue_tasks.seq IS 'the order in which the tasks were added';
COMMENT ON COLUMN queue_tasks.state IS 'failed: no retry is left';
COMMENT ON COLUMN queue_tasks.retries_left IS 'how many attempts may still follow the present one, or the next';
COMMENT ON COLUMN queue_tasks.attempts IS 'how often it was captured';
COMMENT ON COLUMN queue_tasks.token IS '128 random bits as 32 hex digits, new for every capture: whose task it is, or was when it was done';
COMMENT ON COLUMN queue_tasks.visible_at IS 'from when on it can be captured (again); NULL: now if it is pending, never if it has ended';
COMMENT ON COLUMN queue_tasks.last_error IS 'of the latest attempt that failed, its first 1,000 characters';
COMMENT ON COLUMN queue_tasks.created_at IS 'when it was added';
COMMENT ON COLUMN queue_tasks.updated_at IS 'when this row was last written';

INSERT INTO scheduler_lock_schema (version, min_code) VALUES (6, 1);
