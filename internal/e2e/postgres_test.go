//go:build unix

package e2e

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/pgtest"
)

// soakRounds is how often a case is repeated: twice, or as often as it takes to
// believe it under -soak.
func soakRounds(often int) int {
	if *soak {
		return often
	}
	return 2
}

// requireNoTickTwice checks that no tick has two runs.
func requireNoTickTwice(t *testing.T, r *replica) {
	t.Helper()
	seen := map[time.Time]bool{}
	for _, run := range r.runs("tick") {
		require.False(t, seen[run.ScheduledAt], "two runs of the tick at %v", run.ScheduledAt)
		seen[run.ScheduledAt] = true
	}
}

// logTimes logs the middle and the longest.
func logTimes(t *testing.T, what string, took []time.Duration) {
	t.Helper()
	slices.Sort(took)
	t.Logf("%d times %s: p50 %v, max %v", len(took), what, took[len(took)/2], took[len(took)-1])
}

// as is the URL for another role.
func as(role, url string) string { return strings.Replace(url, "postgres@", role+"@", 1) }

func TestThroughPgBouncerReplicasStartAtOnceAndHandOver(t *testing.T) {
	server := pgtest.Shared(t)
	pooler := pgtest.PgBouncer(t, server)
	direct := server.Database(t)
	config, err := pgx.ParseConfig(direct)
	require.NoError(t, err)
	f := newFleetOn(t, direct, "TICK=200ms")
	f.url = pooler.URL(config.Database)
	atOnce(t, f, sized(4, 20, 20))
	require.Len(t, f.replicas[0].log.with("no LISTEN"), 1)
	requireStop(f.replicas[3:])

	replicas := f.replicas[:3:3]
	leader, term := awaitOneLeader(t, replicas, 0)
	eventually(t, "the page says that the end of no session is a sign of death", func() error {
		if page := string(leader.get("/").body); !strings.Contains(page,
			", by the TTL alone: a pooler is between the holder and the server") {
			return errors.New(page)
		}
		return nil
	})
	var took []time.Duration
	for range soakRounds(30) {
		old := leader
		leader.stop()
		at := slices.Index(replicas, old)
		leader, term = awaitOneLeader(t, slices.Delete(slices.Clone(replicas), at, at+1), term)
		replicas[at] = f.start() // only now: it would find the lock free before a standby does
		terms := leader.terms()
		require.Equal(t, old.pid(), terms[1].PID)
		require.Equal(t, "released", terms[1].EndReason)
		require.False(t, terms[1].EndedAt.After(terms[0].AcquiredAt))
		took = append(took, terms[0].AcquiredAt.Sub(terms[1].EndedAt))
	}
	requireNoTickTwice(t, leader)
	logTimes(t, "from the release to the next acquisition, by polling", took)
	assert.Less(t, took[len(took)-1], soon(3*time.Second), "it is 1.5 s on a quiet machine")
	for _, r := range f.replicas {
		require.Empty(t, r.errorLines())
	}
}

func TestPostgresThatCannotBeUsedAtStartIsSaidInOneLine(t *testing.T) {
	t.Parallel()
	server := pgtest.Shared(t) // the rule and the roles are this test's own
	hba := filepath.Join(server.Dir(), "data", "pg_hba.conf")
	rules, err := os.ReadFile(hba)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(hba,
		append([]byte("host all app 127.0.0.1/32 scram-sha-256\n"), rules...), 0o600))
	_, err = queryServer(server.URL("postgres"),
		`DROP ROLE IF EXISTS app; DROP ROLE IF EXISTS reader;
		CREATE ROLE app LOGIN PASSWORD 'right';
		CREATE ROLE reader LOGIN; SELECT pg_reload_conf()`)
	require.NoError(t, err)
	eventually(t, "the server has read pg_hba.conf", func() error {
		conn, err := pgx.Connect(context.Background(), as("app", server.URL("postgres")))
		if err == nil {
			conn.Close(context.Background())
			return errors.New("it asks for no password")
		}
		return nil
	})
	silent, err := net.Listen("tcp4", "127.0.0.1:0") // it accepts, and says nothing
	require.NoError(t, err)
	defer silent.Close()
	const closed = "127.0.0.1:1" // a port that was closed could be another's meanwhile
	migrated := server.Database(t)
	f := newFleetOn(t, migrated)
	first, _ := f.startLeader()
	first.stop()
	_, err = queryServer(migrated, `GRANT ALL ON ALL TABLES IN SCHEMA public TO reader;
		GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO reader;
		REVOKE INSERT, DELETE ON bans FROM reader`)
	require.NoError(t, err)

	empty := server.Database(t)
	t.Run("cases", func(t *testing.T) { // which wait for each other before the databases go
		for _, tc := range []struct {
			name, url, lock string
			words           []string
		}{
			{"wrong password", as("app:secret", empty), "", []string{"28P01", "password"}},
			{"no such role", as("nobody", empty), "", []string{`role "nobody"`, "pg_hba.conf"}},
			{"no such database", server.URL("nonsense"), "",
				[]string{`"nonsense"`, "create the database"}},
			{"nobody listens", "postgres://u:secret@" + closed + "/db", "",
				[]string{"refused", closed, "DEMOAPP_DATABASE_URL"}},
			{"no answer", "postgres://u:secret@" + silent.Addr().String() + "/db?sslmode=disable",
				"", []string{silent.Addr().String(), "DEMOAPP_DATABASE_URL"}},
			{"may not create tables", as("reader", empty), "",
				[]string{`GRANT CREATE ON SCHEMA "public" TO "reader"`}},
			{"may not create its own table", as("reader", empty), migrated,
				[]string{"bans", "GRANT USAGE, CREATE ON SCHEMA", "DEMOAPP_DATABASE_URL"}},
			{"may not use its own table", as("reader", migrated), "",
				[]string{"GRANT DELETE ON public.bans TO reader; " +
					"GRANT INSERT ON public.bans TO reader"}},
			{"the app's own server is away", "postgres://u:secret@" + closed + "/db", migrated,
				[]string{"refused", "DEMOAPP_DATABASE_URL"}},
		} {
			t.Run(tc.name, func(t *testing.T) {
				t.Parallel()
				f := newFleetOn(t, tc.url, "LOCK_DATABASE_URL="+tc.lock)
				r := f.launch()
				require.Equal(t, 1, r.wait())
				require.Less(t, time.Since(r.begun), soon(40*time.Second),
					"it is at most 25 s on a machine that does nothing else")
				lines := r.log.with("demoapp: ")
				require.Len(t, lines, 1, "%s", r.log.String())
				require.True(t, strings.HasSuffix(r.log.String(), lines[0]+"\n"),
					"nothing follows: %s", r.log.String())
				for _, w := range tc.words {
					require.Contains(t, lines[0], w)
				}
				require.NotContains(t, r.log.String(), "secret")
			})
		}
	})
}
