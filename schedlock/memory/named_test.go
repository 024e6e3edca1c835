package memory_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/driver/namedlock"
	"example.com/schedlock/schedlock/locktest"
	"example.com/schedlock/schedlock/memory"
)

func TestConformanceOfNamedLocks(t *testing.T) {
	t.Parallel()
	locktest.RunNamed(t, func(t testing.TB) locktest.NamedDatabase {
		t.(*testing.T).Parallel()
		db := memory.New()
		return locktest.NamedDatabase{
			Open: func(testing.TB) namedlock.Store { return db.Named() },
			Age:  func(_ testing.TB, d time.Duration) { db.AgeNamed(d) },
			Edit: func(_ testing.TB, key namedlock.Key, term int64) {
				db.SetNamedTerm(key, term)
			},
			FailOver: func(testing.TB) { db.FailOverNamed() },
			Begin: func(testing.TB) locktest.Tx {
				tx := db.Begin()
				return locktest.Tx{Tx: tx, Commit: tx.Commit, Rollback: tx.Rollback}
			},
			ExtendPassesFence: true,
		}
	})
}

func TestABackupHasTheNamedLocks(t *testing.T) {
	db := atNoon()
	claim := namedlock.Claim{Key: namedlock.Key{Kind: namedlock.KindLock, Name: "a"}, Owner: owner,
		Token: driver.NewToken(), TTL: time.Minute}
	term, _, err := db.Named().Take(ctx, claim)
	require.NoError(t, err)
	require.Equal(t, noon.UnixMilli(), term, "the database's clock")
	restore := db.Backup()
	for range 2 {
		_, err = db.Named().Release(ctx, namedlock.Ref{Key: claim.Key,
			Token: claim.Token, Term: term}, true)
		require.NoError(t, err)
		restore()
		row, err := db.Named().Look(ctx, claim.Key)
		require.NoError(t, err)
		require.Equal(t, claim.Token, row.Token)
	}
}
