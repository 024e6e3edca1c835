-- The scheduler lock, its history, and the run ledger, for SQLite.
--
-- Every time is UTC text of the fixed width 2026-11-21T09:50:46.123456Z, so that it sorts as it
-- reads and a plain SQL shell shows it. Durations are whole milliseconds. There are no floats.
-- The comments stand inside the statements: ".schema" in the shell shows them.
--
-- There is no Down section: migrations only add, so that a replica of the version before survives
-- a deploy and a roll-back. To undo a deploy, run the older code: it works with the newer tables.

-- +goose Up

CREATE TABLE scheduler_lock (
    id                INTEGER PRIMARY KEY CHECK (id = 1), -- there is at most one row: the lock row
    pid               INTEGER NOT NULL, -- process id of the holder (in a container often 1), shown, never trusted alone
    hostname          TEXT    NOT NULL, -- host name of the holder, shown, never trusted alone
    created_at        TEXT    NOT NULL, -- when the lock was acquired
    heartbeat_at      TEXT    NOT NULL, -- when the holder last renewed it
    token             TEXT    NOT NULL, -- 128 random bits as 32 hex digits, new for every acquisition: this is the ownership
    term              INTEGER NOT NULL, -- the fencing token: grows with every acquisition
    beat              INTEGER NOT NULL, -- + 1 with every heartbeat: what standbys watch
    state             TEXT    NOT NULL CHECK (state IN ('leading', 'draining', 'revoked')), -- revoked: an operator asks the holder to leave
    ttl_ms            INTEGER NOT NULL, -- the TTL of this holder
    renew_deadline_ms INTEGER NOT NULL, -- this holder stops trusting its lease that long after its last heartbeat
    heartbeat_ms      INTEGER NOT NULL, -- the heartbeat interval of this holder
    file_id           TEXT              -- id of the lease file this holder locked; NULL: the death of this holder cannot be proven
) STRICT;

-- One row per term. It outlives the lock row, and with it the counter of terms.
CREATE TABLE scheduler_terms (
    term        INTEGER PRIMARY KEY, -- the fencing token of this term
    token       TEXT    NOT NULL, -- the token that was in the lock row
    pid         INTEGER NOT NULL, -- process id of the leader of this term
    hostname    TEXT    NOT NULL, -- host name of the leader of this term
    acquired_at TEXT    NOT NULL, -- when the term began
    ended_at    TEXT,             -- when the end was written down; NULL: no end is known
    end_reason  TEXT CHECK (end_reason IN ('released', 'expired', 'proven dead', 'session ended', 'revoked', 'lost')), -- how it ended
    next_term   INTEGER,          -- the term that took over; NULL: none did
    ttl_ms      INTEGER NOT NULL, -- the TTL of this leader: what must pass if its lock row is missing
    file_id     TEXT,             -- as in the lock row
    CHECK ((ended_at IS NULL) = (end_reason IS NULL))
) STRICT;

CREATE TABLE scheduler_jobs (
    job        TEXT PRIMARY KEY, -- name of the job
    spec       TEXT NOT NULL, -- when it runs: interval or cron, as text
    cursor_at  TEXT NOT NULL, -- the newest tick that was decided: run or skipped
    updated_at TEXT NOT NULL  -- when this row was last written
) STRICT;

-- The run ledger: each (job, scheduled time) starts at most once across the fleet.
CREATE TABLE scheduler_runs (
    id           INTEGER PRIMARY KEY, -- grows with every row
    job          TEXT    NOT NULL, -- name of the job
    scheduled_at TEXT    NOT NULL, -- the tick this run is for (the first one of a range of skipped ticks)
    started_at   TEXT,             -- when it started; NULL: skipped
    finished_at  TEXT,             -- when its end was written down; NULL: not yet, or skipped
    status       TEXT    NOT NULL CHECK (status IN ('in_progress', 'done', 'failed', 'abandoned', 'skipped')), -- abandoned: its leader died
    term         INTEGER NOT NULL, -- the term that started or skipped it
    pid          INTEGER NOT NULL, -- process id of that leader
    hostname     TEXT    NOT NULL, -- host name of that leader
    attempt      INTEGER NOT NULL, -- 1, and + 1 with every retry
    error        TEXT,             -- of a failed run its error, of a skipped one the reason: missed, overlap, paused
    until        TEXT,             -- last tick of a range of skipped ticks; NULL: no range
    count        INTEGER,          -- number of ticks in a range of skipped ticks; NULL: no range
    UNIQUE (job, scheduled_at)
) STRICT;

CREATE INDEX scheduler_runs_scheduled_at ON scheduler_runs (scheduled_at);
CREATE INDEX scheduler_runs_in_progress ON scheduler_runs (term) WHERE status = 'in_progress';

-- One row per migration. Every migration inserts its own.
CREATE TABLE scheduler_lock_schema (
    version  INTEGER PRIMARY KEY, -- version of the migration
    min_code INTEGER NOT NULL     -- the lowest code version (= newest migration that the code embeds) that still works with it
) STRICT;

INSERT INTO scheduler_lock_schema (version, min_code) VALUES (1, 1);
