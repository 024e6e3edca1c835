package migrations

import (
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"
	"testing"

	"github.com/stretchr/testify/assert"
)

// A pgError is the error of a PostgreSQL server with that SQLSTATE.
type pgError string

func (e pgError) Error() string    { return "ERROR: it says why (SQLSTATE " + string(e) + ")" }
func (e pgError) SQLState() string { return string(e) }

// mysqlError is the error of a MariaDB server, as the driver writes it with a SQLSTATE.
func mysqlError(number int) error { return fmt.Errorf("Error %d (HY000): it says why", number) }

func TestWhatTimeMayCureIsTriedAgain(t *testing.T) {
	lost := []error{&net.OpError{Op: "dial", Err: errors.New("refused")}, net.ErrClosed, io.EOF,
		io.ErrUnexpectedEOF, driver.ErrBadConn, sql.ErrConnDone}
	cured := map[Dialect][]error{
		SQLite: {errors.New("database is locked (5)"), errors.New("database table is locked"),
			errors.New("database schema is locked: main"), errors.New("locking protocol")},
		PostgreSQL: append(lost, errors.New("conn closed"), pgError("08006"), pgError("08P01"),
			pgError("40001"), pgError("40P01"), pgError("53300"), pgError("55P03"),
			pgError("57014"), pgError("57P01"), pgError("57P02"), pgError("57P03")),
		MySQL: append(lost, errors.New("invalid connection"), errors.New("Error 1040: too many"),
			mysqlError(1040), mysqlError(1047), mysqlError(1053), mysqlError(1203),
			mysqlError(1205), mysqlError(1213), mysqlError(1226), mysqlError(1317),
			mysqlError(1927), mysqlError(1969)),
	}
	statements := errors.New("not allowed in statement pooling mode")
	for dialect, never := range map[Dialect][]error{
		SQLite: {errors.New("no such table: x")},
		PostgreSQL: {pgError("42501"), statements,
			fmt.Errorf("%w: %w", statements, pgError("08P01"))},
		MySQL: {mysqlError(1142), errors.New("no server said so: 1205")},
	} {
		for _, err := range cured[dialect] {
			wrapped := fmt.Errorf("apply a file: %w", err)
			assert.True(t, engines[dialect].transient(wrapped), "%s: %v", dialect, err)
		}
		for _, err := range never {
			assert.False(t, engines[dialect].transient(err), "%s: %v", dialect, err)
		}
	}
}

func TestAnErrorSaysWhatToDo(t *testing.T) {
	for text, errs := range map[string][]error{
		"connect to the primary": {pgError("25006"), mysqlError(1290), mysqlError(1792),
			mysqlError(1836)},
		"check the user": {pgError("28P01"), pgError("28000"),
			mysqlError(1045)},
		"create the database": {pgError("3D000"), mysqlError(1049)},
		"GRANT CREATE, ALTER": {mysqlError(1044), mysqlError(1142),
			mysqlError(1227)},
		"MariaDB 10.11 or newer":             {mysqlError(1193)},
		`GRANT CREATE ON SCHEMA "s"`:         {pgError("42501")},
		"create one, or GRANT USAGE, CREATE": {pgError("3F000")},
		"choose another schema":              {pgError("42P07")},
		"pool_mode = transaction":            {errors.New("not allowed in statement pooling mode")},
	} {
		for _, err := range errs {
			explain := mysqlEngine.explain
			if sqlState(err) != "" || takesNoTransaction(err) {
				explain = postgresEngine.explain
			}
			got := explain(state{createIn: "s", role: "r"}, err)
			assert.ErrorContains(t, got, text)
			assert.ErrorIs(t, got, err)
		}
	}
	denied := pgError("42501")
	assert.ErrorContains(t, explainConnect(denied), "GRANT CONNECT")
	for text, s := range map[string]state{
		`CREATE SCHEMA "s" AUTHORIZATION "r"`:       {noSchema: true, named: true},
		`GRANT USAGE, CREATE ON SCHEMA "s" TO "r";`: {named: true},
	} {
		s.createIn, s.role = "s", "r"
		assert.ErrorContains(t, explainPostgres(s, denied), text)
	}
	other := errors.New("something else")
	assert.Equal(t, other, explainPostgres(state{noSchema: true, named: true}, other))
	assert.Equal(t, other, explainMySQL(other))
}
