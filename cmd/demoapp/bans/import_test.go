package bans

import (
	"context"
	"database/sql"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"testing/fstest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/cmd/demoapp/blocklists"
	"example.com/schedlock/internal/missing"
)

// countingFence lets all calls pass but the failAt-th.
type countingFence struct {
	calls, failAt int
	err           error
}

func (f *countingFence) fence(ctx context.Context, tx *sql.Tx) error {
	f.calls++
	if f.calls == f.failAt {
		return f.err
	}
	return nil
}

func TestImportReadsTheListsOfAFolder(t *testing.T) {
	s := newStore(t)
	fsys := folder(
		"a.txt", "# a\n192.0.2.1\n192.0.2.1 # again\nbad\n",
		"b.ipset", "192.0.2.1\n192.0.2.2\n",
		"c.netset", "198.51.100.0/24\n",
		"d.list", "2001:db8::/32\n",
		"e.txt", "",
		"README.md", "203.0.113.1\n",
		"txt", "203.0.113.2\n",
		".hidden.txt", "203.0.113.3\n",
		"sub/f.txt", "203.0.113.4\n",
		"folder.txt/g.txt", "203.0.113.5\n",
	)
	report, err := s.Import(t.Context(), fsys, nil, t0)
	require.NoError(t, err)
	bad := BadLine{Number: 4, Excerpt: `"bad"`, Reason: "not an IP address"}
	assert.Equal(t, Report{Files: []FileReport{
		{Name: "a.txt", Lines: 4, Bans: 1, Duplicates: 1, Garbage: 1, FirstBad: bad},
		{Name: "b.ipset", Lines: 2, Bans: 1, Duplicates: 1},
		{Name: "c.netset", Lines: 1, Bans: 1},
		{Name: "d.list", Lines: 1, Bans: 1},
		{Name: "e.txt"},
	}}, report)
	assert.Equal(t, 4, count(t, s))
	assert.Equal(t, `5 lists: 8 lines, 4 bans, 2 duplicates, 1 garbage lines, 0 unreadable`,
		report.String())
	assert.Equal(t, `"a.txt": 4 lines, 1 bans, 1 duplicates, 1 garbage lines; `+
		`first line 4: "bad": not an IP address`, report.Files[0].String())

	latest, err := s.Latest(t.Context(), 10)
	require.NoError(t, err)
	lists := map[string]string{}
	for _, ban := range latest {
		lists[ban.Prefix.String()] = ban.List
	}
	assert.Equal(t, map[string]string{
		"192.0.2.1/32": "a.txt", "192.0.2.2/32": "b.ipset", "198.51.100.0/24": "c.netset",
		"2001:db8::/32": "d.list",
	}, lists)
}

func TestImportFindsDuplicatesAcrossBatches(t *testing.T) {
	s := newStore(t)
	list := addresses(1001)
	report, err := s.Import(t.Context(), folder("a.txt", list+list), nil, t0)
	require.NoError(t, err)
	assert.Equal(t, FileReport{Lines: 2002, Bans: 1001, Duplicates: 1001}, report.Total())
	assert.Equal(t, 1001, count(t, s))
}

func TestImporterRemembersNoMoreThanABatch(t *testing.T) {
	im := importer{store: newStore(t), now: t0, file: FileReport{Name: "a.txt"}}
	im.fence = func(context.Context, *sql.Tx) error {
		assert.Len(t, im.inBatch, len(im.batch))
		assert.LessOrEqual(t, len(im.batch), batchRows)
		return nil
	}
	require.NoError(t, im.importFile(t.Context(), folder("a.txt", addresses(2500))))
	assert.Equal(t, 2500, im.file.Bans)
}

func TestImportAgainOnlyMovesTimesForward(t *testing.T) {
	s := newStore(t)
	fsys := folder("a.txt", "192.0.2.1")
	first := t0.Truncate(time.Microsecond)
	for _, step := range []struct {
		now      time.Time
		bans     int
		lastSeen time.Time
	}{
		{first, 1, first},
		{first.Add(time.Hour), 1, first.Add(time.Hour)},
		{first.Add(time.Hour), 0, first.Add(time.Hour)},  // the same again
		{first.Add(-time.Hour), 0, first.Add(time.Hour)}, // a clock stepped back
	} {
		report, err := s.Import(t.Context(), fsys, nil, step.now)
		require.NoError(t, err)
		assert.Equal(t, step.bans, report.Total().Bans)
		latest, err := s.Latest(t.Context(), 2)
		require.NoError(t, err)
		require.Len(t, latest, 1)
		assert.Equal(t, first, latest[0].FirstSeen)
		assert.Equal(t, step.lastSeen, latest[0].LastSeen)
		assert.Equal(t, step.lastSeen.Add(BanDuration), latest[0].ExpiresAt)
	}
}

func TestFenceThatFailsInTheThirdBatchKeepsTwo(t *testing.T) {
	s := newStore(t)
	lost := errors.New("lost")
	f := &countingFence{failAt: 3, err: lost}
	report, err := s.Import(t.Context(), folder("a.txt", addresses(3001), "b.txt", "192.0.2.1"),
		f.fence, t0)
	require.ErrorIs(t, err, lost)
	assert.ErrorContains(t, err, "a.txt")
	assert.Equal(t, 3, f.calls, "no batch after the one that failed")
	require.Len(t, report.Files, 1)
	assert.Equal(t, 2000, report.Files[0].Bans)
	assert.Equal(t, 3000, report.Files[0].Lines)
	assert.Equal(t, 2000, count(t, s))

	f = &countingFence{}
	report, err = s.Import(t.Context(), folder("a.txt", addresses(3001), "b.txt", "192.0.2.1"),
		f.fence, t0.Add(time.Minute))
	require.NoError(t, err, "the next leader goes on")
	assert.Equal(t, 5, f.calls)
	assert.Equal(t, 3002, report.Total().Bans)
	assert.Equal(t, 3002, count(t, s))
}

// What a fence writes shares the fate of its batch, and it comes before the batch.
func TestFenceIsTheFirstStatementOfTheTransaction(t *testing.T) {
	s := newStore(t)
	_, err := s.db.ExecContext(t.Context(), "CREATE TABLE fenced (rows_before INTEGER)")
	require.NoError(t, err)
	calls := 0
	fence := func(ctx context.Context, tx *sql.Tx) error {
		calls++
		if _, err := tx.ExecContext(ctx,
			"INSERT INTO fenced SELECT count(*) FROM bans"); err != nil {
			return err
		}
		if calls == 3 {
			return errors.New("lost")
		}
		return nil
	}
	_, err = s.Import(t.Context(), folder("a.txt", addresses(2001)), fence, t0)
	require.Error(t, err)
	var got string
	require.NoError(t, s.db.QueryRowContext(t.Context(),
		"SELECT group_concat(rows_before) FROM fenced").Scan(&got))
	assert.Equal(t, "0,1000", got)
}

// The write lock is held before the fence looks, even if the connection string
// does not ask for it.
func TestImportBeginsImmediate(t *testing.T) {
	path := filepath.Join(t.TempDir(), "app.db")
	s := NewStore(openSQLite(t, path), SQLite)
	require.NoError(t, s.Migrate(t.Context()))
	other, err := sql.Open("sqlite3", "file:"+path+"?_pragma=busy_timeout(0)")
	require.NoError(t, err)
	defer other.Close()

	var inFence error
	_, err = s.Import(t.Context(), folder("a.txt", "192.0.2.1"),
		func(ctx context.Context, tx *sql.Tx) error {
			_, inFence = other.ExecContext(ctx, "DELETE FROM bans")
			return nil
		}, t0)
	require.NoError(t, err)
	assert.ErrorContains(t, inFence, "locked")
}

func TestCancelledImportStopsBetweenBatches(t *testing.T) {
	s := newStore(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	f := &countingFence{}
	report, err := s.Import(ctx, folder("a.txt", addresses(3001), "b.txt", "192.0.2.1"),
		func(ctx context.Context, tx *sql.Tx) error {
			if f.calls == 2 {
				cancel()
			}
			return f.fence(ctx, tx)
		}, t0)
	require.ErrorIs(t, err, context.Canceled)
	assert.Equal(t, 3, f.calls)
	require.Len(t, report.Files, 1)
	assert.NoError(t, report.Files[0].Err, "the file is not to blame")
	assert.Equal(t, 2000, report.Files[0].Bans)
	assert.Equal(t, 2000, count(t, s))

	report, err = s.Import(ctx, folder("a.txt", "192.0.2.1"), nil, t0)
	require.ErrorIs(t, err, context.Canceled)
	assert.Zero(t, report.Total().Bans)
}

// endless is a list without an end, and its one line neither.
type endless struct {
	fs.File
	onRead func()
}

func (e endless) Read(p []byte) (int, error) {
	e.onRead()
	return len(p), nil
}

// faultyFS fails as its name says.
type faultyFS struct {
	fstest.MapFS
	open func(name string, file fs.File) (fs.File, error)
}

func (f faultyFS) Open(name string) (fs.File, error) {
	file, err := f.MapFS.Open(name)
	if err != nil || name == "." {
		return file, err
	}
	return f.open(name, file)
}

func TestCancelledImportStopsWithinALine(t *testing.T) {
	s := newStore(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	reads := 0
	fsys := faultyFS{folder("a.txt", ""), func(name string, file fs.File) (fs.File, error) {
		return endless{file, func() {
			if reads++; reads == 100 {
				cancel()
			}
		}}, nil
	}}
	report, err := s.Import(ctx, fsys, nil, t0)
	require.ErrorIs(t, err, context.Canceled)
	require.Len(t, report.Files, 1)
	assert.NoError(t, report.Files[0].Err, "the file is not to blame")
}

type brokenFile struct{ fs.File }

func (b brokenFile) Read(p []byte) (int, error) {
	n, err := b.File.Read(p)
	if err != nil {
		err = syscall.EIO
	}
	return n, err
}

func TestUnreadableFileIsReportedAndTheOthersGoOn(t *testing.T) {
	s := newStore(t)
	fsys := faultyFS{folder(
		"a.txt", "192.0.2.1",
		"denied.txt", "192.0.2.2",
		"half.txt", "192.0.2.3\n192.0.2.4",
		"z.txt", "192.0.2.5",
	), func(name string, file fs.File) (fs.File, error) {
		switch name {
		case "denied.txt":
			return nil, errors.Join(fs.ErrPermission, file.Close())
		case "half.txt":
			return brokenFile{file}, nil
		}
		return file, nil
	}}
	report, err := s.Import(t.Context(), fsys, nil, t0)
	require.NoError(t, err)
	require.Len(t, report.Files, 4)
	assert.NoError(t, report.Files[0].Err)
	assert.ErrorIs(t, report.Files[1].Err, fs.ErrPermission)
	assert.ErrorIs(t, report.Files[2].Err, syscall.EIO)
	assert.Equal(t, 1, report.Files[2].Bans, "what came before the error")
	assert.NoError(t, report.Files[3].Err)
	assert.Equal(t, 2, report.Errors())
	assert.Contains(t, report.String(), "2 unreadable")
	assert.Contains(t, report.Files[2].String(), "unreadable: input/output error")
	assert.Equal(t, 3, count(t, s))

	_, err = s.Import(t.Context(), os.DirFS(filepath.Join(t.TempDir(), "missing")), nil, t0)
	assert.ErrorIs(t, err, fs.ErrNotExist)
}

// PostgreSQL's text takes no such name; neither does fs.ValidPath.
func TestFileNameThatIsNotTextIsReported(t *testing.T) {
	s := newStore(t)
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "a\xff.txt"), []byte("192.0.2.1"),
		0o600); err != nil {
		missing.Skip(t, "a file system that takes such a name: %v", err)
	}
	lists, err := OpenFolder(dir)
	require.NoError(t, err)
	defer lists.Close()
	report, err := s.Import(t.Context(), lists, nil, t0)
	require.NoError(t, err)
	require.Len(t, report.Files, 1)
	assert.ErrorIs(t, report.Files[0].Err, fs.ErrInvalid)
	assert.Contains(t, report.Files[0].String(), `"a\xff.txt"`)
}

func TestDatabaseErrorEndsTheImport(t *testing.T) {
	s := newStore(t)
	_, err := s.db.ExecContext(t.Context(), "DROP TABLE bans")
	require.NoError(t, err)
	_, err = s.Import(t.Context(), folder("a.txt", "192.0.2.1", "b.txt", "192.0.2.2"), nil,
		t0)
	assert.ErrorContains(t, err, "import a.txt")
	assert.ErrorContains(t, err, "no such table")
}

func TestSamplesImport(t *testing.T) {
	s := newStore(t)
	report, err := s.Import(t.Context(), blocklists.FS, nil, t0)
	require.NoError(t, err)
	assert.Equal(t, FileReport{Lines: 34, Bans: 17, Duplicates: 3, Garbage: 1}, report.Total())
	assert.Zero(t, report.Errors())
	require.Len(t, report.Files, 3)
	assert.Equal(t, BadLine{Number: 18, Excerpt: `"203.0.113.999"`,
		Reason: "not an IP address"}, report.Files[2].FirstBad)
}
