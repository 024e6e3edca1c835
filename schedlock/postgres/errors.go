package postgres

import (
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"example.com/schedlock/internal/pgdsn"
	"example.com/schedlock/schedlock/driver"
)

// SQLSTATEs, from appendix A of the PostgreSQL manual.
const (
	codeNotInEncoding  = "22021" // character_not_in_repertoire
	codeUntranslatable = "22P05" // untranslatable_character
	codeReadOnly       = "25006" // read_only_sql_transaction
	codeInvalidAuth    = "28000" // invalid_authorization_specification
	codeBadPassword    = "28P01" // invalid_password
	codeNoDatabase     = "3D000" // invalid_catalog_name
	codeNoSchema       = "3F000" // invalid_schema_name
	codeSerialization  = "40001" // serialization_failure
	codeDeadlock       = "40P01" // deadlock_detected
	codeNoPrivilege    = "42501" // insufficient_privilege
	codeNoColumn       = "42703" // undefined_column
	codeNoTable        = "42P01" // undefined_table
	codeLockTimeout    = "55P03" // lock_not_available
	codeUnique         = "23505" // unique_violation
)

// code is the SQLSTATE of an error, "" if it did not come from the server.
func code(err error) string {
	var e *pgconn.PgError
	if errors.As(err, &e) {
		return e.Code
	}
	return ""
}

// readOnly reports whether the server has become a replica: another connection
// may find the primary.
func readOnly(err error) bool { return code(err) == codeReadOnly }

// permanent reports whether only an operator can mend what code says.
func permanent(code string) bool {
	switch code {
	case codeNoTable, codeNoColumn, codeNoSchema, codeNoPrivilege, codeBadPassword, codeInvalidAuth,
		codeNoDatabase:
		return true
	}
	return false
}

// explainTheirs is explain of an error in a transaction of the caller's, whose server and
// settings are not those of the store's own sessions.
func (s *Store) explainTheirs(err error) error {
	if code(err) == codeReadOnly {
		return fmt.Errorf("%s: the caller's transaction is read-only, or its server is: %w",
			s.name(), pgdsn.Safe(err))
	}
	return s.explain(err)
}

// explain names the database, and for an error that no retry can mend says
// what to do. All others are worth a retry: connections are lost, servers are
// restarted and fail over.
func (s *Store) explain(err error) error {
	if err == nil || errors.Is(err, driver.ErrLost) || errors.Is(err, driver.ErrConflict) ||
		errors.Is(err, driver.ErrBlocked) {
		return err
	}
	// Such an error is explained already.
	if errors.Is(err, driver.ErrPermanent) || errors.Is(err, driver.ErrCorrupt) {
		return err
	}
	err = pgdsn.Safe(err)
	var advice string
	switch c := code(err); c {
	case codeNoTable, codeNoColumn:
		advice = fmt.Sprintf("run the migrations (have they nothing to do? restore a backup), "+
			"or set the search_path to the schema that has the tables, or GRANT USAGE on it to "+
			"role %q", s.config.User)
		if s.schema != "" {
			advice = fmt.Sprintf("run the migrations (have they nothing to do? restore a "+
				"backup), or correct WithSchema(%q), "+
				"or GRANT USAGE ON SCHEMA %s TO %q", s.schema, s.path(), s.config.User)
		}
	case codeNoSchema:
		advice = "create the schema, or correct the search_path"
	case codeNoPrivilege:
		advice = fmt.Sprintf("GRANT what role %q needs (see docs/databases.md), "+
			"or ALTER ROLE %[1]q BYPASSRLS if row-level security is in its way", s.config.User)
	case codeBadPassword, codeInvalidAuth:
		advice = fmt.Sprintf("check the password of role %q, and pg_hba.conf", s.config.User)
	case codeNoDatabase:
		advice = "create the database, or correct the URL"
	case codeReadOnly:
		s.runs.Pool.Reset() // their connections lead there too
		s.pool.Pool.Reset()
		return fmt.Errorf("%s: the server is read-only "+
			"(a replica, or its default_transaction_read_only is on); connecting anew: %w",
			s.name(), err)
	case codeLockTimeout:
		return fmt.Errorf("%s: a transaction of somebody else keeps a row "+
			"or a table locked that this needs: %w", s.name(), err)
	default:
		if strings.HasPrefix(c, "XX00") && c != "XX000" { // data_corrupted, index_corrupted
			return fmt.Errorf("%w: %s: %w", driver.ErrCorrupt, s.name(), err)
		}
		return fmt.Errorf("%s: %w", s.name(), err)
	}
	return fmt.Errorf("%w: %s: %w: %s", driver.ErrPermanent, s.name(), err, advice)
}
