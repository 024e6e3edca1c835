package mysql_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/datasource/dsntest"
	"example.com/schedlock/internal/mytest"
	"example.com/schedlock/schedlock/mysql"
)

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
