package mysql_test

import (
	"context"
	"errors"
	"math"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/datasource/dsntest"
	"example.com/schedlock/internal/missing"
	"example.com/schedlock/internal/mytest"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/mysql"
)

func TestOpenTakesAURLAndADSN(t *testing.T) {
	t.Parallel()
	server := mytest.Shared(t)
	url := migrated(t)
	server.Exec(t, `CREATE OR REPLACE USER 'p@ss'@'localhost' IDENTIFIED BY 'a/b?c#d@e'`)
	server.Exec(t, `CREATE OR REPLACE USER 'p@ss'@'127.0.0.1' IDENTIFIED BY 'a/b?c#d@e'`)
	server.Exec(t, `GRANT ALL ON *.* TO 'p@ss'@'127.0.0.1'`)
	address, _, _ := strings.Cut(strings.TrimPrefix(url, "mysql://root@"), "?")
	_, database, _ := strings.Cut(address, "/")
	for _, url := range []string{
		"mysql://p%40ss:a%2Fb%3Fc%23d%40e@" + address,
		"mysql://root@" + address + "?sql_mode=''&time_zone='%2B05:00'&tx_isolation='SERIALIZABLE'" +
			"&parseTime=true&interpolateParams=false&autocommit=0&charset=latin1" +
			"&completion_type='CHAIN'&sql_safe_updates=1&foreign_key_checks=0&sql_select_limit=1",
		server.DSN(database),
	} {
		s := open(t, url)
		require.Equal(t, "READ-COMMITTED", value[string](t, s.DB(), `SELECT @@tx_isolation`))
		require.Equal(t, "+00:00", value[string](t, s.DB(), `SELECT @@time_zone`))
		require.Contains(t, value[string](t, s.DB(), `SELECT @@sql_mode`), "STRICT")
		require.Equal(t, "NO_CHAIN", value[string](t, s.DB(), `SELECT @@completion_type`))
		require.Zero(t, value[int](t, s.DB(), `SELECT @@sql_safe_updates`))
		require.Equal(t, 1, value[int](t, s.DB(), `SELECT @@foreign_key_checks`))
		require.Equal(t, uint64(math.MaxUint64),
			value[uint64](t, s.DB(), `SELECT @@sql_select_limit`))
		require.Equal(t, "ü", value[string](t, s.DB(), `SELECT 'ü'`))
		acquire(t, s)
	}
}

func TestErrorsSayWhatToDo(t *testing.T) {
	t.Parallel()
	server := mytest.Shared(t)
	url := server.Database(t)
	_, err := open(t, url).Look(ctx)
	require.ErrorIs(t, err, driver.ErrPermanent)
	require.ErrorContains(t, err, "run the migrations")
	require.ErrorContains(t, err, mytest.Name(url))
	server.Exec(t, `CREATE USER 'reader'@'127.0.0.1' IDENTIFIED BY 'hush'`)
	url = migrated(t)
	server.Exec(t, `GRANT SELECT ON `+mytest.Name(url)+`.* TO 'reader'@'127.0.0.1'`)
	s := open(t, strings.Replace(url, "root@", "reader:hush@", 1))
	_, err = s.Acquire(ctx, claim(look(t, s)))
	require.ErrorIs(t, err, driver.ErrPermanent)
	require.ErrorContains(t, err, `to user "reader"`)
	_, err = mysql.Open(ctx, strings.Replace(url, "root@", "reader:hushh@", 1))
	require.ErrorIs(t, err, driver.ErrPermanent)
	require.ErrorContains(t, err, "check the password")
	require.NotContains(t, err.Error(), "hush")
}

// PostgreSQL is such a server: it waits until the client has spoken.
func TestAServerThatSaysNothingIsNamed(t *testing.T) {
	t.Parallel()
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer silent.Close()
	says := func(ctx context.Context) bool {
		_, err := mysql.Open(ctx, "mysql://root:hush@"+silent.Addr().String()+"/app")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.NotContains(t, err.Error(), "hush")
		return strings.Contains(err.Error(), "does not answer as MariaDB does")
	}
	limit, said := 50*time.Millisecond, false
	for ; !said && limit < time.Minute; limit *= 2 { // until a busy machine has got that far
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		said = says(ctx)
		cancel()
	}
	require.True(t, said)
	if missing.Full() { // the attempt has a limit of its own, of 10 s
		require.True(t, says(t.Context()))
	}
}

// FuzzNoErrorOfOpenHasAPartOfAPassword tries every spelling, also broken ones, of
// the address of a server that does not answer. A minute of it:
//
//	go test ./schedlock/mysql -run '^$' -fuzz FuzzNoError -fuzztime 1m
func FuzzNoErrorOfOpenHasAPartOfAPassword(f *testing.F) {
	dsntest.Fuzz(f, 7, func(t *testing.T, text string) []string {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		store, err := mysql.Open(ctx, text)
		if err == nil {
			require.NoError(t, store.Close())
			t.Fatalf("%q: nobody answers there", text)
		}
		var said []string
		for e := err; e != nil; e = errors.Unwrap(e) {
			said = append(said, e.Error())
		}
		return said
	})
}

// The driver sends what it doesn't know as a variable, and the server quotes it.
func TestAServerThatRefusesAParameterDoesNotTellIt(t *testing.T) {
	t.Parallel()
	url := mytest.Shared(t).Database(t)
	for _, parameter := range []string{"hush=1", "wait_timeout=hush", "lower_case_table_names=hush",
		"time_zone2=hush", "wait_timeout='hush"} {
		_, err := mysql.Open(ctx, url+"&"+parameter)
		require.ErrorContains(t, err, "the server refuses a parameter of the address", parameter)
		require.NotContains(t, err.Error(), "hush")
	}
}
