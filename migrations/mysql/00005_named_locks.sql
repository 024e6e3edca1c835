-- Named locks, task locks, time-out locks and elections, for MariaDB.
--
-- Every time is the server's, by SYSDATE(6) in UTC.
--
-- Code of the versions before works with these tables: it does not know them.

-- +goose NO TRANSACTION
-- +goose Up

CREATE TABLE IF NOT EXISTS named_locks (
    kind              varchar(16) NOT NULL COMMENT 'one name may be used once for each kind' CHECK (kind IN ('lock', 'task', 'timeout', 'election')),
    name              varchar(200) NOT NULL COMMENT 'any text of up to 200 bytes' CHECK (octet_length(name) BETWEEN 1 AND 200),
    token             text COMMENT '128 random bits as 32 hex digits, new for every acquisition: this is the ownership; NULL: nobody holds it',
    term              bigint NOT NULL COMMENT 'the fencing token of this name: grows with every acquisition',
    pid               bigint NOT NULL COMMENT 'process id of the (last) holder, shown only',
    hostname          varchar(255) NOT NULL COMMENT 'host name of the (last) holder, shown only',
    acquired_at       datetime(6) NOT NULL COMMENT 'when it was taken',
    expires_at        datetime(6) NOT NULL COMMENT 'when it ends unless it is extended, or when it was released',
    hold_until        datetime(6) COMMENT 'nobody takes it before, even if it is released; NULL: it can be taken at once',
    PRIMARY KEY (kind, name),
    KEY named_locks_expires_at (expires_at)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_nopad_bin
  COMMENT = 'named locks, task locks, time-out locks and elections: who holds which';

-- As with scheduler_fence: a take-over deletes the row of the term before, and a fenced transaction
-- inserts one that refers to it. Extending and releasing leave it alone.
CREATE TABLE IF NOT EXISTS named_locks_fence (
    kind              varchar(16) NOT NULL COMMENT 'of the lock',
    name              varchar(200) NOT NULL COMMENT 'of the lock',
    term              bigint NOT NULL COMMENT 'of the lock',
    PRIMARY KEY (kind, name, term)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_nopad_bin
  COMMENT = 'one row per name: whose transactions may be fenced';

CREATE TABLE IF NOT EXISTS named_locks_fenced (
    id                bigint PRIMARY KEY AUTO_INCREMENT COMMENT 'of the transaction',
    kind              varchar(16) NOT NULL COMMENT 'of the lock',
    name              varchar(200) NOT NULL COMMENT 'of the lock',
    term              bigint NOT NULL COMMENT 'of the holder',
    FOREIGN KEY (kind, name, term) REFERENCES named_locks_fence (kind, name, term) ON DELETE CASCADE
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_nopad_bin
  COMMENT = 'transactions that are fenced: each deletes its own row before it is committed';

-- The terms of a name grow, also after its row was cleaned up.
CREATE TABLE IF NOT EXISTS named_locks_floor (
    id                integer PRIMARY KEY COMMENT 'always 1' CHECK (id = 1),
    term              bigint NOT NULL COMMENT 'no row with a higher term was ever cleaned up'
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_nopad_bin
  COMMENT = 'one row: what is left of the terms of names that were cleaned up';

INSERT IGNORE INTO named_locks_floor (id, term) VALUES (1, 0);

INSERT IGNORE INTO scheduler_lock_schema (version, min_code) VALUES (5, 1);
