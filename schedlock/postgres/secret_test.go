package postgres

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/datasource/dsntest"
	"example.com/schedlock/internal/pgtest"
)

// FuzzNoErrorOfOpenHasAPartOfAPassword tries every spelling, also broken ones, of
// the address of a server that does not answer. A minute of it:
//
//	go test ./schedlock/postgres -run '^$' -fuzz FuzzNoError -fuzztime 1m
func FuzzNoErrorOfOpenHasAPartOfAPassword(f *testing.F) {
	dsntest.Fuzz(f, 7, func(t *testing.T, text string) []string {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		store, err := Open(ctx, text)
		if err == nil {
			require.NoError(t, store.Close())
			t.Fatalf("%q: nobody answers there", text)
		}
		var said []string
		for e := err; e != nil; e = errors.Unwrap(e) {
			said = append(said, e.Error())
		}
		var parse *pgconn.ParseConfigError
		require.False(t, errors.As(err, &parse), "it has the whole address")
		return said
	})
}

// What a server says of a parameter that it does not know may be the rest of a
// password that was not quoted.
func TestAServerThatRefusesAParameterDoesNotTellThePassword(t *testing.T) {
	t.Parallel()
	url := pgtest.Shared(t).Database(t)
	for _, rest := range []string{"Yh4tKq8n=1", "work_mem=Yh4tKq8n",
		"search_path=a\\ b Yh4tKq8n=2"} {
		_, err := Open(t.Context(), pairsOf(t, url)+" password=Qz7k "+rest)
		require.Error(t, err)
		require.Contains(t, err.Error(), "the server refuses a parameter of the address")
		require.NotContains(t, err.Error(), "Yh4t")
	}
}

// pairsOf is a URL as keyword=value pairs.
func pairsOf(t *testing.T, url string) string {
	t.Helper()
	config, err := pgconn.ParseConfig(url)
	require.NoError(t, err)
	return fmt.Sprintf("host='%s' port=%d user='%s' dbname='%s' sslmode=disable", config.Host,
		config.Port, config.User, config.Database)
}

// The rest of such a password would be looked up as a host.
func TestAPasswordThatEndsElsewhereThanMeantIsRefused(t *testing.T) {
	t.Parallel()
	for _, rest := range []string{"Qz7k@Yh4t@host/db", "Qz7k@Yh4t#x@host/db", "Qz7k@Yh4t/@host",
		"Qz7k?a=Yh4t@host/db"} {
		_, err := Open(t.Context(), "postgres://ann:"+rest)
		require.ErrorContains(t, err, "write / ? and @ of the password as %2F %3F %40", rest)
	}
}
