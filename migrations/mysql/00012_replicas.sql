-- Which replicas there are, for MariaDB, where an app switches that on.
--
-- Code of the versions before works beside this table: it does not know it, so its replicas are not
-- in it.

-- +goose NO TRANSACTION
-- +goose Up

CREATE TABLE IF NOT EXISTS scheduler_replicas (
    instance          varchar(64) PRIMARY KEY COMMENT '128 random bits as 32 hex digits, new with every start',
    pid               bigint NOT NULL COMMENT 'process id',
    hostname          text NOT NULL COMMENT 'host name',
    version           text NOT NULL COMMENT 'of the app, as Go has recorded it in the program, or empty',
    state             varchar(16) NOT NULL COMMENT 'starting, standby, leading, suspended, draining or stopped',
    reason            text NOT NULL COMMENT 'of the state, in words',
    seen_at           datetime(6) NOT NULL COMMENT 'when it last told so'
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_nopad_bin
  COMMENT = 'one row per replica that tells of itself: nothing is decided by it';

INSERT IGNORE INTO scheduler_lock_schema (version, min_code) VALUES (12, 1);
