package doctor

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/mytest"
	"example.com/schedlock/internal/pgtest"
	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/driver"
)

func TestMain(m *testing.M) {
	if childMain() {
		return
	}
	usual.statement = time.Minute // the machine may be busy
	code := pgtest.Run(m)
	mytest.Close()
	os.Exit(code)
}

var (
	bg    = context.Background()
	quiet = slog.New(slog.DiscardHandler)
)

func examined(dsn string) Report { return Examine(bg, dsn, "") }

// found is what a judgement finds.
func found(judge func(*findings)) Report {
	var f findings
	judge(&f)
	return f.report()
}

// finding returns the first finding of a check with that level, and fails if
// there is none or if it does not say what it should.
func finding(t testing.TB, r Report, check string, level Level, says ...string) Finding {
	t.Helper()
	for _, f := range r.Findings {
		if f.Check != check || f.Level != level {
			continue
		}
		for _, text := range says {
			assert.Contains(t, f.Found+" → "+f.Do, text)
		}
		if level == Warning || level == Error {
			assert.NotEmpty(t, f.Do, "no advice: %v", f)
		} else {
			assert.Empty(t, f.Do, "advice for nothing: %v", f)
		}
		return f
	}
	require.Failf(t, "no such finding", "check %q, level %q in\n%s", check, level, text(r))
	return Finding{}
}

// noConnection fails unless each address is answered by why there is none, and what to do.
func noConnection(t testing.TB, answers map[string][2]string) {
	t.Helper()
	for dsn, says := range answers {
		r := examined(dsn)
		finding(t, r, "connection", Error, says[0], says[1])
		for _, part := range []string{"hunter2", "secret", "hush"} {
			assert.NotContains(t, text(r), part)
		}
	}
}

// healthy fails if anything is worth an operator's time, but for the checks that are named.
func healthy(t testing.TB, r Report, but ...string) {
	t.Helper()
	r.Findings = slices.DeleteFunc(slices.Clone(r.Findings), func(f Finding) bool {
		return slices.Contains(but, f.Check)
	})
	assert.Contains(t, []Level{OK, Note}, r.Worst(), text(r))
	assert.NotEmpty(t, r.Database)
	for _, f := range r.Findings {
		assert.Empty(t, f.Do)
	}
}

func text(r Report) string {
	var b strings.Builder
	fmt.Fprintln(&b, r.Database)
	for _, f := range r.Findings {
		fmt.Fprintf(&b, "%-8s %s: %s\n", f.Level, f.Check, f.Found)
		if f.Do != "" {
			fmt.Fprintf(&b, "         → %s\n", f.Do)
		}
	}
	return b.String()
}

func newLock(t testing.TB, s driver.Store, opts ...schedlock.Option) *schedlock.Lock {
	t.Helper()
	lock, err := schedlock.New(s, append([]schedlock.Option{schedlock.WithLogger(quiet)},
		opts...)...)
	require.NoError(t, err)
	return lock
}

// lead acquires the lock, and releases it when the test ends.
func lead(t testing.TB, s driver.Store, opts ...schedlock.Option) *schedlock.Lease {
	t.Helper()
	lease, err := newLock(t, s, opts...).Acquire(bg)
	require.NoError(t, err)
	require.NoError(t, lease.TakeRenewal()) // and sends no heartbeat
	t.Cleanup(func() { _ = lease.Release(bg) })
	return lease
}

// listing is what a folder has: every file, and of all but -shm, which is the
// memory that SQLite's processes share, its bytes.
func listing(t testing.TB, folder string) map[string]string {
	t.Helper()
	files := map[string]string{}
	require.NoError(t, filepath.WalkDir(folder, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		files[path] = ""
		if !strings.HasSuffix(path, "-shm") {
			content, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			files[path] = fmt.Sprintf("%x", sha256.Sum256(content))
		}
		return nil
	}))
	return files
}

func TestWorst(t *testing.T) {
	t.Parallel()
	of := func(levels ...Level) (r Report) {
		for _, l := range levels {
			r.Findings = append(r.Findings, Finding{Level: l})
		}
		return r
	}
	assert.Equal(t, OK, of().Worst())
	assert.Equal(t, Note, of(OK, Note, OK).Worst())
	assert.Equal(t, Warning, of(Warning, Note).Worst())
	assert.Equal(t, Error, of(OK, Error, Warning).Worst())
}

func TestADSNThatCannotBeUsedIsNotShown(t *testing.T) {
	t.Parallel()
	for dsn, says := range map[string][2]string{
		"mariadb://root:hunter2@h/d":                      {"database", "write mysql://"},
		"root:hunter2/@tcp(127.0.0.1:1)":                  {"database", "address of a server"},
		"mysql://root:hunter2@h":                          {"database", "names no database"},
		"postgres://app:hunter2@127.0.0.1:bad/d":          {"database", "cannot be used"},
		"host=127.0.0.1 port=nine password=hunter2":       {"database", "cannot be used"},
		"host=127.0.0.1 port=1 password=x hunter2 user=a": {"database", "cannot be used"},
		"file://host/app.db?textkey=hunter2":              {"path", "no host"},
		"":                                                {"path", "names no file"},
		":memory:":                                        {"path", "in memory"},
	} {
		r := examined(dsn)
		finding(t, r, says[0], Error, says[1])
		assert.NotContains(t, text(r), "hunter2")
		assert.NotEmpty(t, r.Database)
	}
}

func TestAnExaminationEndsWithItsContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(bg)
	cancel()
	path := newDatabase(t).Path()
	began := time.Now()
	r := Examine(ctx, path, "")
	assert.Less(t, time.Since(began), time.Minute)
	finding(t, r, "doctor", Warning, "ran out")
}

func TestGrantsAreGrouped(t *testing.T) {
	for grants, want := range map[string]string{
		"GRANT DELETE ON s.a TO app; GRANT SELECT ON s.a TO app; GRANT SELECT ON s.b TO app; " +
			"GRANT DELETE ON s.c TO app; GRANT SELECT ON s.c TO app": "GRANT DELETE, SELECT " +
			"ON s.a, s.c TO app; GRANT SELECT ON s.b TO app",
		`GRANT SELECT ON "s; t".a TO app`: `GRANT SELECT ON "s; t".a TO app`,
	} {
		assert.Equal(t, want, grouped(grants))
	}
}
