package postgres_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock/ledger"
)

// A demoted server keeps its sessions: those of the ledger must be given up
// too, or no run would start under a lock that is long renewed elsewhere.
func TestTheLedgerLeavesAServerThatHasBecomeReadOnly(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	s := open(t, url)
	ref := acquire(t, s, time.Minute)
	admin := session(t, url)
	setReadOnly := func(value string) {
		exec(t, admin, fmt.Sprintf(`ALTER DATABASE %q SET default_transaction_read_only = %s`,
			databaseName(t, url), value))
	}
	tick := time.Now().Truncate(time.Second)
	decide := func() error {
		_, _, err := s.Decide(ctx, ref, ledger.Decision{Job: "j", Spec: "s", To: tick, Start: tick})
		return err
	}
	setReadOnly("on") // for sessions that begin from now on
	require.ErrorContains(t, decide(), "read-only")
	setReadOnly("off")
	require.NoError(t, decide())
}
