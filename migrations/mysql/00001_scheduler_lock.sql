-- The scheduler lock, its history, and the run ledger, for MariaDB.
--
-- Every time is UTC. Durations are whole milliseconds. There are no floats. What each column is,
-- SHOW FULL COLUMNS shows.
--
-- MariaDB commits each statement that makes or alters a table at once. So every statement of every
-- migration bears repetition, and the row in scheduler_lock_schema comes last.
--
-- There is no Down section: migrations only add, so that a replica of the version before survives
-- a deploy and a roll-back. To undo a deploy, run the older code: it works with the newer tables.

-- +goose NO TRANSACTION
-- +goose Up

-- A heartbeat updates heartbeat_at, beat and at times state. None of them may ever be indexed.
CREATE TABLE IF NOT EXISTS scheduler_lock (
    id                integer PRIMARY KEY COMMENT 'always 1' CHECK (id = 1),
    pid               bigint NOT NULL COMMENT 'process id of the holder (in a container often 1), shown, never trusted alone',
    hostname          varchar(255) NOT NULL COMMENT 'host name of the holder, shown, never trusted alone',
    created_at        datetime(6) NOT NULL COMMENT 'when the lock was acquired',
    heartbeat_at      datetime(6) NOT NULL COMMENT 'when the holder last renewed it',
    token             varchar(255) NOT NULL COMMENT '128 random bits as 32 hex digits, new for every acquisition: this is the ownership',
    term              bigint NOT NULL COMMENT 'the fencing token: grows with every acquisition',
    beat              bigint NOT NULL COMMENT '+ 1 with every heartbeat: what standbys watch',
    state             varchar(16) NOT NULL COMMENT 'revoked: an operator asks the holder to leave' CHECK (state IN ('leading', 'draining', 'revoked')),
    ttl_ms            bigint NOT NULL COMMENT 'the TTL of this holder',
    renew_deadline_ms bigint NOT NULL COMMENT 'this holder stops trusting its lease that long after its last heartbeat',
    heartbeat_ms      bigint NOT NULL COMMENT 'the heartbeat interval of this holder',
    server            varchar(100) COMMENT 'server_uid and server_id of the server on which it was acquired: another one means a fail-over'
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_nopad_bin
  COMMENT = 'who leads: at most one row, the lock row';

CREATE TABLE IF NOT EXISTS scheduler_terms (
    term              bigint PRIMARY KEY COMMENT 'the fencing token of this term',
    token             varchar(255) NOT NULL COMMENT 'the token that was in the lock row',
    pid               bigint NOT NULL COMMENT 'process id of the leader of this term',
    hostname          varchar(255) NOT NULL COMMENT 'host name of the leader of this term',
    acquired_at       datetime(6) NOT NULL COMMENT 'when the term began',
    ended_at          datetime(6) COMMENT 'when the end was written down; NULL: no end is known',
    end_reason        varchar(16) COMMENT 'how it ended' CHECK (end_reason IN ('released', 'expired', 'proven dead', 'session ended', 'revoked', 'lost')),
    next_term         bigint COMMENT 'the term that took over; NULL: none did',
    ttl_ms            bigint NOT NULL COMMENT 'the TTL of this leader: what must pass if its lock row is missing',
    server            varchar(100) COMMENT 'server_uid and server_id of the server on which the term was acquired',
    CHECK ((ended_at IS NULL) = (end_reason IS NULL))
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_nopad_bin
  COMMENT = 'one row per term: it outlives the lock row, and with it the counter of terms';

-- A heartbeat must pass while a transaction is fenced, a take-over must not. A lock on the lock row
-- would stop both. So the fence has a row of its own, which every acquisition and release deletes
-- and makes anew, and a fenced transaction inserts a row that refers to it.
CREATE TABLE IF NOT EXISTS scheduler_fence (
    term              bigint NOT NULL COMMENT 'of the lock row; 0: nobody leads',
    token             varchar(255) NOT NULL COMMENT 'of the lock row; empty: nobody leads',
    PRIMARY KEY (term, token)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_nopad_bin
  COMMENT = 'one row: whose transactions may be fenced';

INSERT INTO scheduler_fence (term, token)
SELECT 0, '' FROM DUAL WHERE NOT EXISTS (SELECT 1 FROM scheduler_fence);

CREATE TABLE IF NOT EXISTS scheduler_fenced (
    id                bigint PRIMARY KEY AUTO_INCREMENT COMMENT 'of the transaction',
    term              bigint NOT NULL COMMENT 'of the leader',
    token             varchar(255) NOT NULL COMMENT 'of the leader',
    FOREIGN KEY (term, token) REFERENCES scheduler_fence (term, token) ON DELETE CASCADE
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_nopad_bin
  COMMENT = 'transactions that are fenced: each deletes its own row before it is committed';

CREATE TABLE IF NOT EXISTS scheduler_jobs (
    job               varchar(200) PRIMARY KEY COMMENT 'name of the job',
    spec              text NOT NULL COMMENT 'when it runs: interval or cron, as text',
    cursor_at         datetime(6) NOT NULL COMMENT 'the newest tick that was decided: run or skipped',
    updated_at        datetime(6) NOT NULL COMMENT 'when this row was last written'
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_nopad_bin
  COMMENT = 'one row per job: how far its ticks were decided';

CREATE TABLE IF NOT EXISTS scheduler_runs (
    id                bigint PRIMARY KEY AUTO_INCREMENT COMMENT 'grows with every row',
    job               varchar(200) NOT NULL COMMENT 'name of the job',
    scheduled_at      datetime(6) NOT NULL COMMENT 'the tick this run is for (the first one of a range of skipped ticks)',
    started_at        datetime(6) COMMENT 'when it started; NULL: skipped',
    finished_at       datetime(6) COMMENT 'when its end was written down; NULL: not yet, or skipped',
    status            varchar(16) NOT NULL COMMENT 'abandoned: its leader died' CHECK (status IN ('in_progress', 'done', 'failed', 'abandoned', 'skipped')),
    term              bigint NOT NULL COMMENT 'the term that started or skipped it',
    pid               bigint NOT NULL COMMENT 'process id of that leader',
    hostname          varchar(255) NOT NULL COMMENT 'host name of that leader',
    attempt           integer NOT NULL COMMENT '1, and + 1 with every retry',
    error             text COMMENT 'of a failed run its error, of a skipped one the reason: missed, overlap, paused',
    until             datetime(6) COMMENT 'last tick of a range of skipped ticks; NULL: no range',
    count             bigint COMMENT 'number of ticks in a range of skipped ticks; NULL: no range',
    UNIQUE KEY scheduler_runs_tick (job, scheduled_at),
    KEY scheduler_runs_scheduled_at (scheduled_at),
    KEY scheduler_runs_status (status, term)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_nopad_bin
  COMMENT = 'the run ledger: each (job, scheduled time) starts at most once across the fleet';

CREATE TABLE IF NOT EXISTS scheduler_lock_schema (
    version           bigint PRIMARY KEY COMMENT 'version of the migration',
    min_code          bigint NOT NULL COMMENT 'the lowest code version (= newest migration that the code embeds) that still works with it',
    server            varchar(100) COMMENT 'server_uid and server_id of the server that ran the migration'
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_nopad_bin
  COMMENT = 'one row per migration: every migration inserts its own';

INSERT IGNORE INTO scheduler_lock_schema (version, min_code, server)
VALUES (1, 1, coalesce(
    (SELECT concat('galera ', g.variable_value) FROM information_schema.global_status g
     WHERE g.variable_name = 'WSREP_CLUSTER_STATE_UUID' AND g.variable_value <> ''),
    concat(@@server_uid, ' ', @@global.server_id)));
