package mysql

import (
	"errors"
	"fmt"

	"github.com/go-sql-driver/mysql"

	"example.com/schedlock/internal/bounded"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/driver/taskqueue"
	"example.com/schedlock/schedlock/ledger"
)

// Numbers of errors, from the list of MariaDB's error codes.
const (
	errChanged      = 1020 // ER_CHECKREAD: the row was changed since the transaction's snapshot
	errNoDBAccess   = 1044
	errAccess       = 1045 // wrong user or password
	errNotReady     = 1047 // of Galera: the node is out of the primary component
	errNull         = 1048 // of a column that cannot be NULL
	errNoDatabase   = 1049
	errNoColumn     = 1054
	errDuplicate    = 1062
	errNoRight      = 1142
	errNoColumnUse  = 1143
	errNoTable      = 1146
	errNoVariable   = 1193
	errCrashed      = 1194
	errLockTimeout  = 1205
	errDeadlock     = 1213
	errNoPrivilege  = 1227
	errOption       = 1290 // --read-only
	errNoParent     = 1452 // of a foreign key
	errStatements   = 1461 // max_prepared_stmt_count is reached
	errStatementLog = 1665 // binlog_format = STATEMENT
	errAccessOther  = 1698 // the user signs in otherwise than by a password
	errIndexCorrupt = 1712
	errReadOnlyTx   = 1792
	errReadOnly     = 1836
	errLocked       = 4151 // the user is
)

// errNode is what a node of Galera is that does not know its cluster yet.
var errNode = errors.New("it is not ready")

// unsynced tells what an error means of something that takes no lock of a row: then a node of
// Galera says by it that it does not come to know what the others have committed, see
// wsrep_sync_wait. One that is alone says so as well, where it has not checked that before.
func unsynced(err error) error {
	if number(err) == errLockTimeout {
		return fmt.Errorf("%w: %w", errNode, err)
	}
	return err
}

// number is that of an error of the server, 0 of any other.
func number(err error) uint16 {
	if e, ok := errors.AsType[*mysql.MySQLError](err); ok {
		return e.Number
	}
	return 0
}

// sqlOne is 1, and NULL on a server that was made read-only, for a column that takes none: so
// that what takes or keeps a lock fails there with errNull, whoever sends it. To a user with
// READ_ONLY ADMIN, as GRANT ALL makes, the server itself refuses nothing: a holder would lead
// on at the old primary, beside that of the promoted server. MariaDB 12 knows more values
// than two.
const sqlOne = `if(concat(@@global.read_only) IN ('0', 'OFF'), 1, NULL)`

var errMadeReadOnly = errors.New("read_only is on, and READ_ONLY ADMIN is no right to lead there")

// undone reports whether the server has undone all of the transaction, and another
// attempt may succeed.
func undone(err error) bool {
	n := number(err)
	return n == errDeadlock || n == errChanged
}

// readOnly reports whether the server has become a replica: another connection may
// find the primary.
func readOnly(n uint16) bool { return n == errOption || n == errReadOnlyTx || n == errReadOnly }

// permanent reports whether only an operator can mend what the number says.
func permanent(n uint16) bool {
	switch n {
	case errNoDBAccess, errAccess, errAccessOther, errLocked, errNoDatabase, errNoColumn,
		errNoRight, errNoColumnUse, errNoTable, errNoVariable, errNoPrivilege, errStatementLog:
		return true
	}
	return false
}

// explainTheirs is explain of an error in a transaction of the caller's, whose server and
// settings are not those of the store's own sessions.
func (s *Store) explainTheirs(err error) error {
	switch n := number(err); {
	case n == errNotReady:
		return fmt.Errorf("%s: the node of the caller's transaction is not in the primary "+
			"component of its Galera cluster: %w", s.name(), err)
	case readOnly(n):
		return fmt.Errorf("%s: the caller's transaction is read-only, or its server is: %w",
			s.name(), err)
	}
	return s.explain(err)
}

// explain names the database, and for an error that no retry can mend says what to do.
// All others are worth a retry: connections are lost, servers are restarted and fail
// over.
func (s *Store) explain(err error) error {
	if err == nil {
		return nil
	}
	for _, said := range []error{driver.ErrLost, driver.ErrConflict, driver.ErrBlocked,
		driver.ErrPermanent, driver.ErrNoFence, taskqueue.ErrTx, bounded.ErrClosed,
		ledger.ErrPaused, ledger.ErrNoJob, ledger.ErrBacklog} {
		if errors.Is(err, said) {
			return err
		}
	}
	var advice string
	switch n := number(err); {
	case n == errNoTable || n == errNoColumn:
		advice = "run the migrations (have they nothing to do? restore a backup), " +
			"or correct the name of the database"
	case n == errNoDBAccess || n == errNoRight || n == errNoColumnUse || n == errNoPrivilege:
		advice = fmt.Sprintf("GRANT SELECT, INSERT, UPDATE, DELETE on the database to user %q",
			s.config.User)
	case n == errAccess:
		advice = fmt.Sprintf("check the password of user %q", s.config.User)
	case n == errAccessOther:
		advice = fmt.Sprintf("user %q signs in by a plugin: give it a password by "+
			"ALTER USER, or connect as the plugin wants it", s.config.User)
	case n == errLocked:
		advice = fmt.Sprintf("ALTER USER %q ACCOUNT UNLOCK", s.config.User)
	case n == errNoDatabase:
		advice = "create the database, or correct its name"
	case n == errNoVariable:
		advice = "this needs MariaDB 10.11 or newer, and an address without parameters that it " +
			"does not know"
	case n == errStatementLog:
		advice = "set binlog_format to ROW or MIXED"
	case n == errNotReady || errors.Is(err, errNode):
		s.leaveServer()
		return fmt.Errorf("%s: this node is not in the primary component of its Galera cluster; "+
			"connecting anew: %w", s.name(), err)
	case n == errNull:
		s.leaveServer()
		return fmt.Errorf("%s: connecting anew: %w: %w", s.name(), errMadeReadOnly, err)
	case readOnly(n):
		s.leaveServer()
		return fmt.Errorf("%s: the server is read-only; connecting anew: %w", s.name(), err)
	case n == errLockTimeout:
		return fmt.Errorf("%s: a transaction of somebody else keeps a row locked that this "+
			"needs: %w", s.name(), err)
	case n == errCrashed || n == errIndexCorrupt:
		return fmt.Errorf("%w: %s: %w", driver.ErrCorrupt, s.name(), err)
	default:
		return fmt.Errorf("%s: %w", s.name(), err)
	}
	return fmt.Errorf("%w: %s: %w: %s", driver.ErrPermanent, s.name(), err, advice)
}
