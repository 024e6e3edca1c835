-- Named locks, task locks, time-out locks and elections, for SQLite.
--
-- Times of two kinds: the text is the wall clock's, as in the other tables, and shown; what decides is
-- milliseconds of a clock that nobody can set, which begins anew with every start of the machine. A
-- row from before a restart has a holder that did not outlive it: then only hold_until counts.
--
-- Code of the versions before works with these tables: it does not know them.

-- +goose Up

CREATE TABLE named_locks (
    kind        TEXT    NOT NULL CHECK (kind IN ('lock', 'task', 'timeout', 'election')), -- one name may be used once for each
    name        TEXT    NOT NULL CHECK (length(CAST(name AS BLOB)) BETWEEN 1 AND 200 AND instr(name, char(0)) = 0), -- any text
    token       TEXT,             -- 128 random bits as 32 hex digits, new for every acquisition: this is the ownership; NULL: nobody holds it
    term        INTEGER NOT NULL, -- the fencing token of this name: grows with every acquisition
    pid         INTEGER NOT NULL, -- process id of the (last) holder, shown only
    hostname    TEXT    NOT NULL, -- host name of the (last) holder, shown only
    acquired_at TEXT    NOT NULL, -- when it was taken
    expires_at  TEXT    NOT NULL, -- when it ends unless it is extended, or when it was released
    hold_until  TEXT,             -- nobody takes it before, even if it is released; NULL: it can be taken at once
    boot_id     TEXT    NOT NULL, -- the start of the machine that the next two count from
    expires_ms  INTEGER NOT NULL, -- expires_at on the clock that decides
    hold_ms     INTEGER,          -- hold_until on the clock that decides
    PRIMARY KEY (kind, name),
    CHECK ((hold_until IS NULL) = (hold_ms IS NULL))
) WITHOUT ROWID, STRICT;

-- For cleaning up.
CREATE INDEX named_locks_expires_at ON named_locks (expires_at);

-- The terms of a name grow, also after its row was cleaned up.
CREATE TABLE named_locks_floor (
    id   INTEGER PRIMARY KEY CHECK (id = 1), -- there is one row
    term INTEGER NOT NULL -- no row with a higher term was ever cleaned up
) STRICT;

INSERT INTO named_locks_floor (id, term) VALUES (1, 0);

INSERT INTO scheduler_lock_schema (version, min_code) VALUES (5, 1);
