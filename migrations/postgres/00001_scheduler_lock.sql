-- The scheduler lock, its history, and the run ledger, for PostgreSQL.
--
-- Durations are whole milliseconds. There are no floats. Table names are not qualified: the tables
-- land in the first schema of the search_path. What each column is, "\d+" in psql shows.
--
-- There is no Down section: migrations only add, so that a replica of the version before survives
-- a deploy and a roll-back. To undo a deploy, run the older code: it works with the newer tables.

-- +goose Up

-- A heartbeat updates heartbeat_at, beat and at times state. None of them may ever be indexed, and
-- half of the page stays free, so that each update is a HOT update: no index write, no bloat.
CREATE TABLE scheduler_lock (
    id                integer PRIMARY KEY CHECK (id = 1),
    pid               bigint NOT NULL,
    hostname          text NOT NULL,
    created_at        timestamptz NOT NULL,
    heartbeat_at      timestamptz NOT NULL,
    token             text NOT NULL,
    term              bigint NOT NULL,
    beat              bigint NOT NULL,
    state             text NOT NULL CHECK (state IN ('leading', 'draining', 'revoked')),
    ttl_ms            bigint NOT NULL,
    renew_deadline_ms bigint NOT NULL,
    heartbeat_ms      bigint NOT NULL,
    file_id           text,
    backend_pid       integer,
    backend_start     timestamptz,
    postmaster_start  timestamptz,
    timeline          text
) WITH (fillfactor = 50);

COMMENT ON TABLE scheduler_lock IS 'who leads: at most one row, the lock row';
COMMENT ON COLUMN scheduler_lock.id IS 'always 1';
COMMENT ON COLUMN scheduler_lock.pid IS 'process id of the holder (in a container often 1), shown, never trusted alone';
COMMENT ON COLUMN scheduler_lock.hostname IS 'host name of the holder, shown, never trusted alone';
COMMENT ON COLUMN scheduler_lock.created_at IS 'when the lock was acquired';
COMMENT ON COLUMN scheduler_lock.heartbeat_at IS 'when the holder last renewed it';
COMMENT ON COLUMN scheduler_lock.token IS '128 random bits as 32 hex digits, new for every acquisition: this is the ownership';
COMMENT ON COLUMN scheduler_lock.term IS 'the fencing token: grows with every acquisition';
COMMENT ON COLUMN scheduler_lock.beat IS '+ 1 with every heartbeat: what standbys watch';
COMMENT ON COLUMN scheduler_lock.state IS 'revoked: an operator asks the holder to leave';
COMMENT ON COLUMN scheduler_lock.ttl_ms IS 'the TTL of this holder';
COMMENT ON COLUMN scheduler_lock.renew_deadline_ms IS 'this holder stops trusting its lease that long after its last heartbeat';
COMMENT ON COLUMN scheduler_lock.heartbeat_ms IS 'the heartbeat interval of this holder';
COMMENT ON COLUMN scheduler_lock.file_id IS 'id of the lease file, on SQLite only: NULL here';
COMMENT ON COLUMN scheduler_lock.backend_pid IS 'server process of the session of the holder; NULL: the death of this holder gives no sign';
COMMENT ON COLUMN scheduler_lock.backend_start IS 'when that server process started';
COMMENT ON COLUMN scheduler_lock.postmaster_start IS 'when the server of that session started';
COMMENT ON COLUMN scheduler_lock.timeline IS 'timeline of the server at the last heartbeat: another one means a fail-over';

CREATE TABLE scheduler_terms (
    term        bigint PRIMARY KEY,
    token       text NOT NULL,
    pid         bigint NOT NULL,
    hostname    text NOT NULL,
    acquired_at timestamptz NOT NULL,
    ended_at    timestamptz,
    end_reason  text CHECK (end_reason IN ('released', 'expired', 'proven dead', 'session ended', 'revoked', 'lost')),
    next_term   bigint,
    ttl_ms      bigint NOT NULL,
    file_id     text,
    timeline    text,
    CHECK ((ended_at IS NULL) = (end_reason IS NULL))
);

COMMENT ON TABLE scheduler_terms IS 'one row per term: it outlives the lock row, and with it the counter of terms';
COMMENT ON COLUMN scheduler_terms.term IS 'the fencing token of this term';
COMMENT ON COLUMN scheduler_terms.token IS 'the token that was in the lock row';
COMMENT ON COLUMN scheduler_terms.pid IS 'process id of the leader of this term';
COMMENT ON COLUMN scheduler_terms.hostname IS 'host name of the leader of this term';
COMMENT ON COLUMN scheduler_terms.acquired_at IS 'when the term began';
COMMENT ON COLUMN scheduler_terms.ended_at IS 'when the end was written down; NULL: no end is known';
COMMENT ON COLUMN scheduler_terms.end_reason IS 'how it ended';
COMMENT ON COLUMN scheduler_terms.next_term IS 'the term that took over; NULL: none did';
COMMENT ON COLUMN scheduler_terms.ttl_ms IS 'the TTL of this leader: what must pass if its lock row is missing';
COMMENT ON COLUMN scheduler_terms.file_id IS 'id of the lease file, on SQLite only: NULL here';
COMMENT ON COLUMN scheduler_terms.timeline IS 'timeline of the server when the term was last confirmed';

CREATE TABLE scheduler_jobs (
    job        text PRIMARY KEY,
    spec       text NOT NULL,
    cursor_at  timestamptz NOT NULL,
    updated_at timestamptz NOT NULL
) WITH (fillfactor = 50);

COMMENT ON TABLE scheduler_jobs IS 'one row per job: how far its ticks were decided';
COMMENT ON COLUMN scheduler_jobs.job IS 'name of the job';
COMMENT ON COLUMN scheduler_jobs.spec IS 'when it runs: interval or cron, as text';
COMMENT ON COLUMN scheduler_jobs.cursor_at IS 'the newest tick that was decided: run or skipped';
COMMENT ON COLUMN scheduler_jobs.updated_at IS 'when this row was last written';

CREATE TABLE scheduler_runs (
    id           bigint PRIMARY KEY GENERATED BY DEFAULT AS IDENTITY,
    job          text NOT NULL,
    scheduled_at timestamptz NOT NULL,
    started_at   timestamptz,
    finished_at  timestamptz,
    status       text NOT NULL CHECK (status IN ('in_progress', 'done', 'failed', 'abandoned', 'skipped')),
    term         bigint NOT NULL,
    pid          bigint NOT NULL,
    hostname     text NOT NULL,
    attempt      integer NOT NULL,
    error        text,
    until        timestamptz,
    count        bigint,
    UNIQUE (job, scheduled_at)
);

CREATE INDEX scheduler_runs_scheduled_at ON scheduler_runs (scheduled_at);
CREATE INDEX scheduler_runs_in_progress ON scheduler_runs (term) WHERE status = 'in_progress';

COMMENT ON TABLE scheduler_runs IS 'the run ledger: each (job, scheduled time) starts at most once across the fleet';
COMMENT ON COLUMN scheduler_runs.id IS 'grows with every row';
COMMENT ON COLUMN scheduler_runs.job IS 'name of the job';
COMMENT ON COLUMN scheduler_runs.scheduled_at IS 'the tick this run is for (the first one of a range of skipped ticks)';
COMMENT ON COLUMN scheduler_runs.started_at IS 'when it started; NULL: skipped';
COMMENT ON COLUMN scheduler_runs.finished_at IS 'when its end was written down; NULL: not yet, or skipped';
COMMENT ON COLUMN scheduler_runs.status IS 'abandoned: its leader died';
COMMENT ON COLUMN scheduler_runs.term IS 'the term that started or skipped it';
COMMENT ON COLUMN scheduler_runs.pid IS 'process id of that leader';
COMMENT ON COLUMN scheduler_runs.hostname IS 'host name of that leader';
COMMENT ON COLUMN scheduler_runs.attempt IS '1, and + 1 with every retry';
COMMENT ON COLUMN scheduler_runs.error IS 'of a failed run its error, of a skipped one the reason: missed, overlap, paused';
COMMENT ON COLUMN scheduler_runs.until IS 'last tick of a range of skipped ticks; NULL: no range';
COMMENT ON COLUMN scheduler_runs.count IS 'number of ticks in a range of skipped ticks; NULL: no range';

CREATE TABLE scheduler_lock_schema (
    version  bigint PRIMARY KEY,
    min_code bigint NOT NULL
);

COMMENT ON TABLE scheduler_lock_schema IS 'one row per migration: every migration inserts its own';
COMMENT ON COLUMN scheduler_lock_schema.version IS 'version of the migration';
COMMENT ON COLUMN scheduler_lock_schema.min_code IS 'the lowest code version (= newest migration that the code embeds) that still works with it';

INSERT INTO scheduler_lock_schema (version, min_code) VALUES (1, 1);
