package postgres_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/pgtest"
	"example.com/schedlock/schedlock/ledger"
)

// Otherwise its leader repeats the statement as long as it leads.
func TestARunEndsThoughTheDatabaseLacksTheLettersOfItsError(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ encoding, client, want string }{
		"no such letter":   {"LATIN1", "UTF8", "caf? ??: full"},
		"no such bytes":    {"EUC_JP", "EUC_JP", "caf? ??: full"},
		"letters as bytes": {"LATIN1", "LATIN1", "café 日本: full"},
	} {
		t.Run(name, func(t *testing.T) {
			server := pgtest.Shared(t)
			plain := server.Database(t)
			admin := session(t, plain)
			database := admin.Config().Database + "_encoded"
			exec(t, admin, "CREATE DATABASE "+database+" ENCODING "+c.encoding+
				" TEMPLATE template0 LOCALE 'C'")
			t.Cleanup(func() { exec(t, admin, "DROP DATABASE "+database+" WITH (FORCE)") })
			url := strings.Replace(plain, admin.Config().Database, database, 1)
			migrate(t, url)
			store := open(t, url+"&client_encoding="+c.client)
			view, err := store.Look(ctx)
			require.NoError(t, err)
			held := claim(view, time.Minute)
			grant, err := store.Acquire(ctx, held)
			require.NoError(t, err)
			held.Ref.Term = grant.Term
			at := time.Now().UTC().Truncate(time.Second)
			run, _, err := store.Decide(ctx, held.Ref, ledger.Decision{Job: "j",
				Spec: "every 1m0s", To: at, Start: at})
			require.NoError(t, err)
			written, err := store.Finish(ctx, run,
				ledger.End{Status: ledger.Failed, Error: "café 日本: full"})
			require.NoError(t, err)
			require.True(t, written)
			runs, err := store.Runs(ctx, "j", 1)
			require.NoError(t, err)
			assert.Equal(t, ledger.Failed, runs[0].Status)
			assert.Equal(t, c.want, runs[0].Error)
		})
	}
}
