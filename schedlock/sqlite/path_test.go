package sqlite

import (
	"context"
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/datasource"
	"example.com/schedlock/internal/datasource/dsntest"
)

func TestParseDSN(t *testing.T) {
	ours := []string{"busy_timeout(500)", "journal_mode(wal)", "synchronous(full)"}
	for _, tc := range []struct {
		dsn    string
		path   string
		pragma []string // nil: ours
		txlock string   // "": immediate
	}{
		{dsn: "app.db", path: "app.db"},
		{dsn: "/var/lib/my app/app.db", path: "/var/lib/my app/app.db"},
		{dsn: "what?.db", path: "what?.db"},
		{dsn: "no#1.db", path: "no#1.db"},
		{dsn: "100%.db", path: "100%.db"},
		{dsn: "100%25.db", path: "100%25.db"},
		{dsn: "file:app.db", path: "app.db"},
		{dsn: "file:./data/app.db", path: "./data/app.db"},
		{dsn: "file:/srv/app.db", path: "/srv/app.db"},
		{dsn: "file:///srv/app.db", path: "/srv/app.db"},
		{dsn: "file://localhost/srv/app.db", path: "/srv/app.db"},
		{dsn: "//srv/app.db", path: "/srv/app.db"},
		{dsn: "file:////srv/app.db", path: "/srv/app.db"},
		{dsn: "file:my%20app.db", path: "my app.db"},
		{dsn: "file:what%3F%23%25.db", path: "what?#%.db"},
		{dsn: "file:app.db#part", path: "app.db"},
		{dsn: "file:app.db?cache=private#part", path: "app.db"},
		{dsn: "file:app.db?_txlock=exclusive", path: "app.db", txlock: "exclusive"},
		{dsn: "file:app.db?_pragma=foreign_keys(1)", path: "app.db",
			pragma: slices.Concat(ours, []string{"foreign_keys(1)"})},
		{dsn: "file:app.db?_pragma=busy_timeout(100)&_pragma=cache_size(10)", path: "app.db",
			pragma: []string{"journal_mode(wal)", "synchronous(full)", "busy_timeout(100)",
				"cache_size(10)"}},
		{dsn: "file:app.db?_pragma=%20Synchronous%20=%20EXTRA", path: "app.db",
			pragma: []string{"busy_timeout(500)", "journal_mode(wal)", " Synchronous = EXTRA"}},
		{dsn: "file:app.db?_pragma=Journal_Mode=WAL", path: "app.db",
			pragma: []string{"busy_timeout(500)", "synchronous(full)", "Journal_Mode=WAL"}},
		{dsn: "file:app.db?_pragma=synchronous_other(1)", path: "app.db",
			pragma: slices.Concat(ours, []string{"synchronous_other(1)"})},
	} {
		t.Run(tc.dsn, func(t *testing.T) {
			src, err := parseDSN(tc.dsn)
			require.NoError(t, err)
			assert.Equal(t, tc.path, src.path)
			uri, err := url.Parse(src.dsn)
			require.NoError(t, err, src.dsn)
			assert.Equal(t, "file", uri.Scheme)
			assert.Empty(t, uri.Host)
			assert.Empty(t, uri.Fragment)
			path := uri.Path
			if uri.Opaque != "" {
				path, err = url.PathUnescape(uri.Opaque)
				require.NoError(t, err)
			}
			assert.Equal(t, tc.path, path, "what the driver opens")
			if tc.pragma == nil {
				tc.pragma = ours
			}
			assert.Equal(t, tc.pragma, uri.Query()["_pragma"])
			if tc.txlock == "" {
				tc.txlock = "immediate"
			}
			assert.Equal(t, []string{tc.txlock}, uri.Query()["_txlock"])
		})
	}
}

func TestParseDSNRefuses(t *testing.T) {
	const memory = "a database in memory cannot be shared, so it can lock nothing"
	for dsn, want := range map[string]string{
		"":                              memory,
		"file:":                         memory,
		":memory:":                      memory,
		"file::memory:?cache=shared":    memory,
		"file:app.db?mode=memory":       memory,
		"file:app.db?vfs=memdb":         memory,
		"file:%3Amemory%3A":             memory,
		"postgres://localhost/app":      "is not a path or a file: URI: it is for package postgres",
		"mysql://localhost/app":         "is not a path or a file: URI: it is for package mysql",
		"sqlite://app.db":               "is not a path or a file: URI: write file:app.db",
		"file://server/share/app.db":    `a file URI has no host, found "server"`,
		"file:app%zz.db":                "invalid URL escape",
		"file:app.db?_pragma=%zz":       "invalid URL escape",
		"file:app.db?a;b":               "semicolon",
		"file:app.db?_pragma=a&_txlock": "",
		"file:postgres://h/app":         "is not a path or a file: URI",
		"host=h dbname=app":             "is not a path or a file: URI",
		"ann:geheim@h/app":              "looks like the address of a server",
	} {
		_, err := parseDSN(dsn)
		if want == "" {
			assert.NoError(t, err, dsn)
			continue
		}
		assert.ErrorContains(t, err, want)
		assert.ErrorContains(t, err, fmt.Sprintf("DSN %q", datasource.Shown(dsn)))
	}
}

// The names that parseDSN escapes are the names that SQLite makes.
func TestOpenMakesTheFileThatWasNamed(t *testing.T) {
	t.Chdir(t.TempDir())
	dir, err := os.Getwd()
	require.NoError(t, err)
	for _, tc := range []struct{ dsn, name string }{
		{"plain.db", "plain.db"},
		{"with space.db", "with space.db"},
		{"what?.db", "what?.db"},
		{"no#1.db", "no#1.db"},
		{"100%.db", "100%.db"},
		{"a%20b.db", "a%20b.db"},
		{"semi;colon&amp=+.db", "semi;colon&amp=+.db"},
		{"a:b.db", "a:b.db"},
		{"./dot.db", "dot.db"},
		{".//two.db", "two.db"},
		{"ünï.db", "ünï.db"},
		{"file:uri%20%3F.db?cache=private", "uri ?.db"},
		{"deep/er/app.db", "deep/er/app.db"},
		{"/" + dir + "/slashes.db", "slashes.db"},
		{"file://" + dir + "/authority.db", "authority.db"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := mustOpen(t, tc.dsn)
			want, err := filepath.EvalSymlinks(filepath.Join(dir, filepath.FromSlash(tc.name)))
			require.NoError(t, err)
			assert.Equal(t, want, s.Path())
			assert.NoError(t, s.CheckFile())
		})
	}
}

func TestOpenSaysWhatIsWrongWithTheFile(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	require.NoError(t, os.WriteFile(file, []byte(strings.Repeat("this is no database. ", 100)),
		0o600))
	socket := filepath.Join(dir, "socket")
	l, err := net.Listen("unix", socket)
	require.NoError(t, err)
	defer l.Close()
	for name, tc := range map[string]struct{ dsn, wants string }{
		"a directory":         {dir, "is a directory, not a file"},
		"not a database":      {file, "file is not a database"},
		"a path under a file": {filepath.Join(file, "app.db"), "not a directory"},
		"a folder that cannot be made": {filepath.Join(file, "deep", "er", "app.db"),
			"not a directory"},
		"not a regular file":  {socket, "is not a regular file but a socket"},
		"a pragma that fails": {filepath.Join(dir, "p.db") + "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			if tc.wants == "" {
				tc.dsn, tc.wants = "file:"+tc.dsn+"?_pragma=nonsense(", "p.db"
			}
			before := listing(t, dir)
			s, err := Open(t.Context(), tc.dsn)
			require.Nil(t, s)
			require.ErrorContains(t, err, tc.wants)
			assert.Equal(t, 1, strings.Count(err.Error(), "database "+dir),
				"it names the file, once: %v", err)
			if name != "a pragma that fails" {
				assert.Equal(t, before, listing(t, dir), "nothing was made")
			}
		})
	}
}

func listing(t *testing.T, dir string) (names []string) {
	t.Helper()
	require.NoError(t, filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		names = append(names, path)
		return err
	}))
	return names
}

// FuzzNoFileIsNamedByAPassword opens the addresses of servers in every spelling.
// A minute of it:
//
//	go test ./schedlock/sqlite -run '^$' -fuzz FuzzNoFile -fuzztime 1m
func FuzzNoFileIsNamedByAPassword(f *testing.F) {
	dsntest.Fuzz(f, 7, func(t *testing.T, text string) []string {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		var said []string
		store, err := Open(ctx, text)
		if err != nil {
			said = append(said, err.Error())
		} else {
			require.NoError(t, store.Close())
		}
		err = Read(ctx, text, func(ctx context.Context, s *Store) error {
			_, err := s.Look(ctx)
			return err
		})
		if err != nil {
			said = append(said, err.Error())
		}
		return said
	})
}
