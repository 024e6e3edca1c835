-- Named locks, task locks, time-out locks and elections, for PostgreSQL.
--
-- Every time is the server's, by clock_timestamp().
--
-- Code of the versions before works with these tables: it does not know them.

-- +goose Up

CREATE TABLE named_locks (
    kind        text NOT NULL CHECK (kind IN ('lock', 'task', 'timeout', 'election')),
    name        text COLLATE "C" NOT NULL CHECK (octet_length(name) BETWEEN 1 AND 200),
    token       text,
    term        bigint NOT NULL,
    pid         bigint NOT NULL,
    hostname    text NOT NULL,
    acquired_at timestamptz NOT NULL,
    expires_at  timestamptz NOT NULL,
    hold_until  timestamptz,
    PRIMARY KEY (kind, name)
);

-- It makes a change of the term one of a key: so a take-over, which is an UPDATE, waits for whoever has
-- locked the row FOR KEY SHARE (a fence), while extending and releasing, which change no key, do not.
CREATE UNIQUE INDEX named_locks_term ON named_locks (kind, name, term);

-- For cleaning up. It costs extending its HOT updates, of which there are three per TTL and holder.
CREATE INDEX named_locks_expires_at ON named_locks (expires_at);

COMMENT ON TABLE named_locks IS 'named locks, task locks, time-out locks and elections: who holds which';
COMMENT ON COLUMN named_locks.kind IS 'one name may be used once for each kind';
COMMENT ON COLUMN named_locks.name IS 'any text of up to 200 bytes';
COMMENT ON COLUMN named_locks.token IS '128 random bits as 32 hex digits, new for every acquisition: this is the ownership; NULL: nobody holds it';
COMMENT ON COLUMN named_locks.term IS 'the fencing token of this name: grows with every acquisition';
COMMENT ON COLUMN named_locks.pid IS 'process id of the (last) holder, shown only';
COMMENT ON COLUMN named_locks.hostname IS 'host name of the (last) holder, shown only';
COMMENT ON COLUMN named_locks.acquired_at IS 'when it was taken';
COMMENT ON COLUMN named_locks.expires_at IS 'when it ends unless it is extended, or when it was released';
COMMENT ON COLUMN named_locks.hold_until IS 'nobody takes it before, even if it is released; NULL: it can be taken at once';

-- The terms of a name grow, also after its row was cleaned up.
CREATE TABLE named_locks_floor (
    id   integer PRIMARY KEY CHECK (id = 1),
    term bigint NOT NULL
);

INSERT INTO named_locks_floor (id, term) VALUES (1, 0);

COMMENT ON TABLE named_locks_floor IS 'one row: what is left of the terms of names that were cleaned up';
COMMENT ON COLUMN named_locks_floor.id IS 'always 1';
COMMENT ON COLUMN named_locks_floor.term IS 'no row with a higher term was ever cleaned up';

INSERT INTO scheduler_lock_schema (version, min_code) VALUES (5, 1);
