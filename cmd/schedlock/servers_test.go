package main

import (
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/mytest"
	"example.com/schedlock/internal/pgtest"
	"example.com/schedlock/migrations"
)

// inServers runs a test on the server of each kind.
func inServers(t *testing.T, test func(t *testing.T, s serverKind)) {
	t.Helper()
	t.Parallel()
	for name, s := range map[string]serverKind{
		"postgres": {
			url:      func(t testing.TB, name string) string { return pgtest.Shared(t).URL(name) },
			database: func(t testing.TB) string { return pgtest.Shared(t).Database(t) },
			migrated: migratedServer, users: usersOfPostgres,
		},
		"mariadb": {
			url:      func(t testing.TB, name string) string { return mytest.Shared(t).URL(name) },
			database: func(t testing.TB) string { return mytest.Shared(t).Database(t) },
			migrated: migratedMaria, users: usersOfMaria,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, s)
		})
	}
}

// A serverKind is what the tests of every server do with one.
type serverKind struct {
	url      func(t testing.TB, name string) string // of a database
	database func(t testing.TB) string              // a new one
	migrated func(t testing.TB) string              // a new one that has its tables
	// users makes the user needsPassword, and returns one whom the secret lets into a database
	users func(t testing.TB, url string) string
}

// needsPassword is a user whose password is not the secret.
const needsPassword = "needs_password"

func usersOfMaria(t testing.TB, url string) string {
	t.Helper()
	alter(t, url,
		`CREATE OR REPLACE USER `+needsPassword+`@'127.0.0.1' IDENTIFIED BY 'right'`,
		`CREATE OR REPLACE USER app@'127.0.0.1' IDENTIFIED BY 'ge/heim'`,
		`GRANT ALL ON `+mytest.Name(url)+`.* TO app@'127.0.0.1'`)
	return "app"
}

func usersOfPostgres(t testing.TB, url string) string {
	t.Helper()
	server := pgtest.Shared(t)
	execute(t, url, `DROP ROLE IF EXISTS `+needsPassword,
		`CREATE ROLE `+needsPassword+` LOGIN PASSWORD 'right'`)
	hba := filepath.Join(server.Dir(), "data", "pg_hba.conf")
	before, err := os.ReadFile(hba)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(hba, append([]byte("host all "+needsPassword+
		" 127.0.0.1/32 scram-sha-256\n"), before...), 0o600))
	execute(t, url, `SELECT pg_reload_conf()`)
	eventually(t, "the server has read pg_hba.conf", func() bool {
		conn, err := pgx.Connect(bg, withSecret(t, url, needsPassword))
		if err == nil {
			conn.Close(bg)
		}
		return err != nil
	})
	return "postgres"
}

func TestStatusOfEveryServer(t *testing.T) {
	inServers(t, func(t *testing.T, s serverKind) {
		held := s.migrated(t)
		lease := leadOn(t, held)
		user := s.users(t, held)
		newer, compatible, older := s.migrated(t), s.migrated(t), s.migrated(t)
		const version = `INSERT INTO scheduler_lock_schema (version, min_code) VALUES `
		alter(t, newer, version+`(99, 98)`)
		alter(t, compatible, version+`(99, 1)`)
		alter(t, older, fmt.Sprintf(`DELETE FROM scheduler_lock_schema WHERE version = %d`,
			migrations.Latest))
		at := func(host string) string {
			u, err := url.Parse(held)
			require.NoError(t, err)
			u.Host = host
			return withSecret(t, u.String(), "app")
		}
		for _, tc := range []struct {
			name, url string
			code      int
			says      []string
		}{
			{"held", withSecret(t, held, user), exitDone,
				[]string{"held: ", fmt.Sprint(lease.Term())}},
			{"newer tables", newer, exitUnknown, []string{"needs code of version 98"}},
			{"newer tables that allow this code", compatible, exitNothing, []string{"free: "}},
			{"older tables", older, exitUnknown,
				[]string{"older than this tool", "schedlock migrate"}},
			{"no tables", s.database(t), exitUnknown,
				[]string{"has no scheduler tables", "schedlock migrate"}},
			{"down", at("127.0.0.1:1"), exitUnknown,
				[]string{"127.0.0.1:1", "see that the server runs"}},
			{"unknown host", at("no-such-host.invalid"), exitUnknown,
				[]string{"no-such-host.invalid"}},
			{"unknown database", s.url(t, "nowhere"), exitUnknown,
				[]string{`database "nowhere"`, "create the database"}},
			{"wrong password", withSecret(t, held, needsPassword), exitUnknown,
				[]string{"check the password of ", `"` + needsPassword + `"`}},
		} {
			t.Run(tc.name, func(t *testing.T) {
				t.Parallel()
				r := call(t, "status", "--db", tc.url)
				assert.Equal(t, tc.code, r.code, r)
				first, _, _ := strings.Cut(r.out+r.err, "\n")
				for _, s := range tc.says {
					assert.Contains(t, first, s)
				}
				if tc.code == exitUnknown {
					assert.Empty(t, r.out)
					assert.Equal(t, 1, strings.Count(r.err, "\n"), r.err)
				}
				j := call(t, "status", "--db", tc.url, "--json")
				assert.Equal(t, tc.code, j.code)
				all := r.out + r.err + j.out + j.err + call(t, "doctor", "--db", tc.url).out
				assert.NotContains(t, all, secret)
				assert.NotContains(t, all, "heim")
			})
		}
	})
}

// The commands that act, and those that look, on every kind of server.
func TestTheCommandsOnAServer(t *testing.T) {
	inServers(t, func(t *testing.T, s serverKind) {
		databaseURL := s.database(t)
		says := expecting(t, "--db", databaseURL)
		first := startReplica(t, databaseURL, "20s")
		was := leads(t, databaseURL, first)
		second := startReplica(t, databaseURL, "20s")
		w := startWatch(t, databaseURL)
		w.await(t, "start", was.Lock.Term)
		var r releaseJSON
		strict(t, says(exitDone, "release", "--force", "--yes", "--by", "ann",
			"--reason", "to see", "--wait", patience.String(), "--json"), &r)
		assert.True(t, r.Ended)
		assert.Equal(t, "revoked", r.Reason)
		now := leads(t, databaseURL, second)
		w.await(t, "ended", was.Lock.Term)
		w.await(t, "leader", now.Lock.Term)
		assert.Equal(t, exitDone, w.stop(t))
		out := says(exitDone, "history", "-o", "wide")
		assert.Contains(t, out, "by ann: to see")
		assert.Contains(t, out, fmt.Sprint(was.Lock.Term))

		var asked requestJSON
		strict(t, says(exitDone, "run", "work", "--by", "ann", "--wait",
			patience.String(), "--json"), &asked)
		assert.EqualValues(t, "done", asked.Run.Status)
		for _, command := range []string{"runs", "jobs"} {
			assert.Contains(t, says(exitDone, command), "work")
		}
		says(exitDone, "pause", "work", "--by", "ann", "--reason", "a look")
		assert.Contains(t, says(exitDone, "jobs", "-o", "wide"), "a look")
		says(exitDone, "resume", "work", "--by", "ann")
		says(exitDone, "reset-cursor", "work", "--by", "ann")
		assert.Contains(t, says(exitDone, "audit"), "ann")
		for _, command := range []string{"locks", "queue", "replicas"} {
			says(exitDone, command)
		}
		report := call(t, "doctor", "--db", databaseURL).out
		assert.NotContains(t, report, "[error]")
		assert.NotContains(t, report, "not looked at")
	})
}
