-- Who told a leader to leave, and why, for SQLite.
--
-- Code of the versions before works with these columns: it obeys a revocation, and shows none.

-- +goose Up

ALTER TABLE scheduler_terms ADD COLUMN revoked_at    TEXT /* when an operator told this leader to leave; NULL: nobody did */;
ALTER TABLE scheduler_terms ADD COLUMN revoked_by    TEXT /* who */;
ALTER TABLE scheduler_terms ADD COLUMN revoke_reason TEXT /* why, or '' */;

INSERT INTO scheduler_lock_schema (version, min_code) VALUES (3, 1);
