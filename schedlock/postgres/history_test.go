package postgres_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// sqlHistory is of terms that have ended, from 1 on; $1 is how many.
const sqlHistory = `
INSERT INTO scheduler_terms (term, token, pid, hostname, acquired_at, ended_at, end_reason,
    next_term, ttl_ms)
SELECT n, md5(n::text), 1, 'host', now(), now(), 'released', n + 1, 60000
FROM generate_series(1, $1) AS n`

func TestOldTermsAreSweptNowAndThen(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	store, conn := open(t, url), session(t, url)
	exec(t, conn, sqlHistory, 3000)
	// 1: by hand
	exec(t, conn,
		`UPDATE scheduler_terms SET ended_at = NULL, end_reason = NULL WHERE term IN (1, 3000)`)
	const sqlCount = `SELECT count(*) FROM scheduler_terms`
	acquisitions := 1
	for acquire(t, store, time.Minute); value[int](t, conn, sqlCount) != 1000; acquire(t, store,
		time.Minute) {
		acquisitions++
		require.Less(t, acquisitions, 1000, "none of them has swept")
	}
	var swept []int64
	for _, term := range []int64{1, 2000 + int64(acquisitions), 2001 + int64(acquisitions)} {
		if value[bool](t, conn, `SELECT NOT EXISTS (SELECT FROM scheduler_terms WHERE term = $1)`,
			term) {
			swept = append(swept, term)
		}
	}
	require.Equal(t, []int64{1, 2000 + int64(acquisitions)}, swept)
	require.Equal(t, 1, value[int](t, conn,
		`SELECT count(*) FROM scheduler_terms WHERE ended_at IS NULL`), "open terms")
	terms, err := store.Terms(ctx, 5000)
	require.NoError(t, err)
	require.Equal(t, 1000, len(terms))
}
