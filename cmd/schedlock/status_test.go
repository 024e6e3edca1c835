package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	sqlite3driver "github.com/ncruces/go-sqlite3/driver"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/missing"
	"example.com/schedlock/migrations"
	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/sqlite"
)

var bg = context.Background()

// leadTTL is longer than the tests take on a busy machine: who leads in them sends no heartbeat.
const leadTTL = 10 * time.Minute

// migrated makes a database with its tables and nothing else in the folder.
func migrated(t testing.TB, dir string) string {
	t.Helper()
	path := filepath.Join(dir, "app.db")
	content, err := migratedFile()
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path, content, 0o644))
	return path
}

// migratedFile is what a file has whose tables were made: they take a while, and
// are always the same.
var migratedFile = sync.OnceValues(func() ([]byte, error) {
	dir, err := os.MkdirTemp("", "schedlock-migrated")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "app.db")
	store, err := sqlite.Open(bg, path)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(store.Migrate(bg), store.Close()); err != nil {
		return nil, err
	}
	return os.ReadFile(path)
})

// lead makes this process the leader, by a clock that is off by so much.
func lead(t testing.TB, path string, off time.Duration) (*sqlite.Store, *schedlock.Lease) {
	t.Helper()
	store, err := sqlite.Open(bg, path, sqlite.WithClock(func() time.Time {
		return time.Now().Add(off)
	}))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	lease := silentLease(t, store)
	t.Cleanup(func() { _ = lease.Release(bg) })
	return store, lease
}

// silentLease is one that sends no heartbeat.
func silentLease(t testing.TB, store driver.Store) *schedlock.Lease {
	t.Helper()
	lease := acquired(t, store, schedlock.WithTTL(leadTTL))
	require.NoError(t, lease.TakeRenewal())
	return lease
}

func acquired(t testing.TB, store driver.Store, opts ...schedlock.Option) *schedlock.Lease {
	t.Helper()
	lock, err := schedlock.New(store, append(opts, schedlock.WithLogger(discard))...)
	require.NoError(t, err)
	lease, err := lock.Acquire(bg)
	require.NoError(t, err)
	return lease
}

// edit runs statements as a hand would, and leaves no file behind if nobody
// else has the database open.
func edit(t testing.TB, path string, statements ...string) {
	t.Helper()
	if len(statements) == 0 {
		return
	}
	db, err := sqlite3driver.Open("file:" + (&url.URL{Path: path}).EscapedPath() +
		"?_pragma=busy_timeout(5000)")
	require.NoError(t, err)
	for _, s := range statements {
		_, err := db.Exec(s)
		require.NoError(t, err, s)
	}
	require.NoError(t, db.Close())
}

// readOnly makes the folder one in which nobody may write.
func readOnly(t testing.TB, dir string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, e := range entries {
		require.NoError(t, os.Chmod(filepath.Join(dir, e.Name()), 0o444))
	}
	require.NoError(t, os.Chmod(dir, 0o555))
}

// crashed kills a replica that leads, and returns the path.
func crashed(t *testing.T, dir string) string {
	t.Helper()
	path := filepath.Join(dir, "app.db")
	cmd := startReplica(t, path, "20s")
	leads(t, path, cmd)
	kill(cmd)
	return path
}

// Each situation gives one exit code and one line that says what it is, and no
// look leaves a trace.
func TestStatusOfEveryDatabaseFile(t *testing.T) {
	missing.Long(t, "starts many processes")
	t.Parallel()
	type maker func(t *testing.T, dir string) string
	// A file with its tables, changed by a hand.
	of := func(statements ...string) maker {
		return func(t *testing.T, dir string) string {
			path := migrated(t, dir)
			edit(t, path, statements...)
			return path
		}
	}
	// One with a leader whose clock is off by so much.
	led := func(off time.Duration) maker {
		return func(t *testing.T, dir string) string {
			path := migrated(t, dir)
			lead(t, path, off)
			return path
		}
	}
	// One whose leader was killed, and of whose files one was removed then.
	died := func(removed string, statements ...string) maker {
		return func(t *testing.T, dir string) string {
			path := crashed(t, dir)
			if removed != "" {
				require.NoError(t, os.Remove(path+removed))
			}
			edit(t, path, statements...)
			return path
		}
	}
	written := func(content string) maker {
		return func(t *testing.T, dir string) string {
			path := filepath.Join(dir, "app.db")
			require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
			return path
		}
	}
	unwritable := func(make maker) maker {
		return func(t *testing.T, dir string) string {
			path := make(t, dir)
			readOnly(t, dir)
			return path
		}
	}
	for _, tc := range []struct {
		name   string
		make   maker
		nobody bool
		code   int
		says   []string // in the first line
		proof  string
	}{
		{name: "free, never led", make: of(), code: exitNothing,
			says: []string{"free: nobody has ever held"}},
		{name: "free, released", make: func(t *testing.T, dir string) string {
			path := migrated(t, dir)
			store, lease := lead(t, path, 0)
			require.NoError(t, lease.Release(bg))
			require.NoError(t, store.Close())
			return path
		}, code: exitNothing, says: []string{"free: nobody leads", "was released"}},
		{name: "held", make: led(0), code: exitDone,
			says: []string{"held: ", " has led for ", fmt.Sprintf("(pid %d, term ", os.Getpid())}},
		{name: "held, an empty file in the way of the lease file",
			make: func(t *testing.T, dir string) string {
				path := migrated(t, dir)
				require.NoError(t, os.WriteFile(path+"-lease", nil, 0o600))
				lead(t, path, 0)
				return path
			}, code: exitDone, says: []string{"held: "},
			proof: "none, only the heartbeats tell: lease file "},
		{name: "stale, alive", make: led(-time.Hour), code: exitStale,
			says: []string{"stale: ", "lives, but its last heartbeat was 1h", "TTL 10m0s"}},
		{name: "dead", make: died(""), code: exitStale, says: []string{"dead: ", "is proven dead"}},
		{name: "no row, no end, no proof", code: exitStale,
			make: died("-lease", `DELETE FROM scheduler_lock`),
			says: []string{"not free: ", "has no end"}},
		{name: "missing", make: func(_ *testing.T, dir string) string {
			return filepath.Join(dir, "no", "app.db")
		}, code: exitUnknown, says: []string{"no/app.db: file does not exist", "correct the path"}},
		{name: "a directory", make: func(t *testing.T, dir string) string {
			path := filepath.Join(dir, "app.db")
			require.NoError(t, os.Mkdir(path, 0o755))
			return path
		}, code: exitUnknown, says: []string{"is a directory, not a file"}},
		{name: "not a database", make: written(strings.Repeat("dear diary, ", 1000)),
			code: exitUnknown, says: []string{"app.db: ", "file is not a database: this is no " +
				"SQLite file: see that the path is right"}},
		{name: "corrupt", make: func(t *testing.T, dir string) string {
			path := migrated(t, dir)
			raw, err := os.ReadFile(path)
			require.NoError(t, err)
			for i := 4096; i < len(raw); i++ { // all but the schema
				raw[i] = 0xab
			}
			require.NoError(t, os.WriteFile(path, raw, 0o600))
			return path
		}, code: exitUnknown, says: []string{"app.db", "damaged", "restore it from a backup"}},
		{name: "empty", make: written(""), code: exitUnknown,
			says: []string{"has no scheduler tables", "schedlock migrate"}},
		{name: "of another app", make: func(t *testing.T, dir string) string {
			path := filepath.Join(dir, "app.db")
			edit(t, path, `CREATE TABLE bans (address TEXT)`)
			return path
		}, code: exitUnknown, says: []string{"has no scheduler tables"}},
		{name: "older tables", make: of(fmt.Sprintf(
			`DELETE FROM scheduler_lock_schema WHERE version = %d`, migrations.Latest)),
			code: exitUnknown, says: []string{fmt.Sprintf("tables of version %d",
				migrations.Latest-1), "older than this tool", "schedlock migrate"}},
		{name: "newer tables that allow this code",
			make: of(`INSERT INTO scheduler_lock_schema VALUES (99, 1)`), code: exitNothing,
			says: []string{"free: "}},
		{name: "newer tables that do not",
			make: of(`INSERT INTO scheduler_lock_schema VALUES (99, 98)`), code: exitUnknown,
			says: []string{"needs code of version 98 or newer", "deploy a newer release"}},
		{name: "read-only file", nobody: true, make: unwritable(of()), code: exitNothing,
			says: []string{"free: "}},
		{name: "read-only file of a dead leader", nobody: true, make: unwritable(died("")),
			code: exitUnknown, says: []string{"only if it may write the -", "as the user of the app"}},
		{name: "-wal without -shm", make: died("-shm"), code: exitUnknown,
			says: []string{"no -shm file", "start the app, or run schedlock migrate"}},
		{name: "unreadable file", nobody: true, make: func(t *testing.T, dir string) string {
			path := migrated(t, dir)
			require.NoError(t, os.Chmod(path, 0))
			return path
		}, code: exitUnknown, says: []string{"cannot be read", "permission denied"}},
		{name: "behind a symbolic link", make: func(t *testing.T, dir string) string {
			target := filepath.Join(dir, "data")
			require.NoError(t, os.Mkdir(target, 0o755))
			path := led(0)(t, target)
			require.NoError(t, os.Symlink(path, filepath.Join(dir, "app.db")))
			return filepath.Join(dir, "app.db")
		}, code: exitDone, says: []string{"held: "}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			dir := folder(t)
			path := tc.make(t, dir)
			before := listing(t, dir)
			cmd := process(t, "status", "--db", path, "--timeout", callTimeout.String())
			if tc.nobody {
				asNobody(cmd)
			}
			r := finish(t, cmd)
			assert.Equal(t, before, listing(t, dir), "it wrote something")
			assert.Equal(t, tc.code, r.code, r)
			if tc.code == exitUnknown {
				assert.Empty(t, r.out)
				assert.Equal(t, 1, strings.Count(r.err, "\n"), "one line: %s", r.err)
				assert.Contains(t, r.err, "app.db", "it names the database")
			} else {
				assert.Empty(t, r.err)
			}
			assert.Contains(t, r.out, tc.proof)
			first, _, _ := strings.Cut(r.out+r.err, "\n")
			for _, s := range tc.says {
				assert.Contains(t, first, s)
			}
			assert.NotContains(t, r.out+r.err, "\x1b", "colours without a terminal")

			if tc.nobody {
				return // this process may be root
			}
			j := call(t, "status", "--json", "--db", path)
			assert.Equal(t, tc.code, j.code)
			if j.code == exitUnknown {
				var e map[string]string
				require.NoError(t, json.Unmarshal([]byte(j.out), &e), j.out)
				assert.Equal(t, 1, strings.Count(j.out, "\n"), "one line, also of watch: %s", j.out)
				assert.Contains(t, j.err, e["error"])
			} else {
				var s statusJSON
				strict(t, j.out, &s)
				word, _, _ := strings.Cut(first, ":")
				assert.True(t, strings.HasPrefix(s.Summary, word+":"), s.Summary)
			}
		})
	}
}

// strict decodes JSON that has the fields of v and no other.
func strict(t testing.TB, text string, v any) {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader([]byte(text)))
	d.DisallowUnknownFields()
	require.NoError(t, d.Decode(v), text)
}

func (t *timestamp) UnmarshalJSON(raw []byte) error {
	if string(raw) == "null" {
		return nil
	}
	parsed, err := time.Parse(`"2006-01-02T15:04:05.000000Z"`, string(raw))
	*t = timestamp(parsed)
	return err
}

// A reader that comes while the database is in use sees what was committed
// last, and the -wal and -shm files stay.
func TestStatusSaysWhatHolds(t *testing.T) {
	t.Parallel()
	dir := folder(t)
	path := migrated(t, dir)
	store, lease := lead(t, path, 0)
	edit(t, path, `INSERT INTO scheduler_jobs (job, spec, cursor_at, updated_at)
		VALUES ('import', 'every 1h0m0s offset 0s',
		'2026-01-01T00:00:00.000000Z', '2026-01-01T00:00:00.000000Z')`)
	for _, args := range [][]string{{"pause", "--all", "--by", "ann", "--reason", "disk full"},
		{"pause", "import", "--by", "bob"}} {
		require.Equal(t, exitDone, call(t, append(args, "--db", path)...).code)
	}
	// an order with it is refused
	edit(t, path,
		`UPDATE scheduler_pauses SET reason = 'disk ' || char(27) || '[31mfull'
			WHERE paused_by = 'ann'`)
	_, err := schedlock.Revoke(bg, store, lease.Term(), "carol", "wants to sleep")
	require.NoError(t, err)

	r := call(t, "status", "--db", "file:"+path)
	assert.Equal(t, exitDone, r.code)
	for _, s := range []string{"was told to leave, and drains", "state      revoked",
		`revoked    by "carol" at 20`, `"wants to sleep"`, "proof      alive",
		"heartbeat  20", "TTL 10m0s, renew deadline 7m30s", "standby    waits for a release",
		"10m0s from now at most", "paused by ann", "disk ·[31mfull", "jobs by themselves: 1",
		fmt.Sprint("schema     version ", migrations.Latest)} {
		assert.Contains(t, r.out, s)
	}
	var s statusJSON
	strict(t, call(t, "--db", path, "--json", "status").out, &s)
	assert.Equal(t, held, s.Verdict)
	assert.Equal(t, lease.Term(), s.Lock.Term)
	assert.Equal(t, driver.StateRevoked, s.Lock.State)
	assert.Equal(t, "carol", s.Lock.Revoked.By)
	assert.Equal(t, "alive", s.Lock.Sign)
	assert.InDelta(t, leadTTL.Seconds(), s.Lock.TTLSeconds, 0)
	assert.InDelta(t, leadTTL.Seconds(), s.Standby.AtMostSeconds, 0)
	assert.False(t, s.Standby.AtOnce)
	assert.Equal(t, "ann", s.Paused.By)
	assert.Equal(t, "import", s.PausedJobs[0].Job)
	assert.Equal(t, lease.Term(), s.NewestTerm.Term)
	assert.Equal(t, migrations.Latest, s.SchemaVersion)
}

// SQLite says no more than "unable to open database file".
func TestAFileThatGoesAwayWhileItIsLookedAtIsNamed(t *testing.T) {
	dir := folder(t)
	path := filepath.Join(dir, "app.db")
	tl := &tool{dsn: path, timeout: time.Minute}
	made, err := tl.openAndMigrate(bg, discard)
	require.NoError(t, err)
	require.NoError(t, made.Close())
	var first error
	_ = tl.lookAtAny(bg, func(ctx context.Context, s store) error {
		if first == nil {
			require.NoError(t, os.Rename(dir, dir+"-away"))
			_, first = tl.schemaVersion(ctx, s)
			require.NoError(t, os.Rename(dir+"-away", dir))
		}
		return first
	})
	assert.ErrorContains(t, first, path)
}
