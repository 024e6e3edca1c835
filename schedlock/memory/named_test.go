package memory_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/locktest"
	"example.com/schedlock/schedlock/memory"
	"example.com/schedlock/schedlock/named"
)

func TestConformanceOfNamedLocks(t *testing.T) {
	locktest.RunNamed(t, func(testing.TB) locktest.NamedDatabase {
		db := memory.New()
		return locktest.NamedDatabase{
			Open:    func(testing.TB) named.Store { return db.Named() },
			Age:     func(_ testing.TB, d time.Duration) { db.AgeNamed(d) },
			Edit:    func(_ testing.TB, key named.Key, term int64) { db.SetNamedTerm(key, term) },
			Without: []locktest.Feature{locktest.Fences},
		}
	})
}

func TestABackupHasTheNamedLocks(t *testing.T) {
	db, _ := at(noon)
	claim := named.Claim{Key: named.Key{Kind: named.KindLock, Name: "a"}, Owner: owner, Token: schedlock.NewToken(), TTL: time.Minute}
	term, _, err := db.Named().Take(ctx, claim)
	require.NoError(t, err)
	require.Equal(t, noon.UnixMilli(), term, "the database's clock")
	restore := db.Backup()
	for range 2 {
		_, err = db.Named().Release(ctx, named.Ref{Key: claim.Key, Token: claim.Token, Term: term}, true)
		require.NoError(t, err)
		restore()
		row, err := db.Named().Look(ctx, claim.Key)
		require.NoError(t, err)
		require.Equal(t, claim.Token, row.Token)
	}
}
