-- Who told a leader to leave, and why, for PostgreSQL.
--
-- Code of the versions before works with these columns: it obeys a revocation, and shows none.

-- +goose Up

-- See 00002: whoever waits behind this statement waits with it.
SET LOCAL lock_timeout = '500ms';

ALTER TABLE scheduler_terms
    ADD COLUMN revoked_at    timestamptz,
    ADD COLUMN revoked_by    text,
    ADD COLUMN revoke_reason text;

COMMENT ON COLUMN scheduler_terms.revoked_at IS 'when an operator told this leader to leave; NULL: nobody did';
COMMENT ON COLUMN scheduler_terms.revoked_by IS 'who told it to leave';
COMMENT ON COLUMN scheduler_terms.revoke_reason IS 'why, or empty';

INSERT INTO scheduler_lock_schema (version, min_code) VALUES (3, 1);
