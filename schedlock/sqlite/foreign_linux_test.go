package sqlite

import (
	"context"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"example.com/schedlock/internal/missing"
)

// Another SQLite is, to the kernel, a descriptor that we do not know.
func openElsewhere(t *testing.T, path string) *os.File {
	t.Helper()
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	require.NoError(t, err)
	t.Cleanup(func() { file.Close() })
	return file
}

func TestAFileThatAnotherDriverHasOpenIsRefusedBeforeItIsOpened(t *testing.T) {
	t.Parallel()
	missing.Long(t, "takes seconds")
	path := unused(t)
	link := filepath.Join(filepath.Dir(path), "link.db")
	require.NoError(t, os.Symlink(path, link))
	file := openElsewhere(t, path)
	var wg sync.WaitGroup
	for name, open := range map[string]func() error{
		"Opener":       func() error { _, err := Opener(path)(bg); return err },
		"by a link":    func() error { _, err := Opener(link)(bg); return err },
		"OpenExisting": func() error { _, err := OpenExisting(bg, path); return err },
		"Read": func() error {
			return Read(bg, path, func(context.Context, *Store) error { return nil })
		},
	} {
		wg.Go(func() {
			err := open()
			assert.ErrorContains(t, err,
				"is open in this process already, through another SQLite driver", name)
			assert.ErrorContains(t, err, "sqlite.Use(db)", name)
			assert.ErrorContains(t, err, path, name)
		})
	}
	wg.Wait()
	require.NoFileExists(t, path+"-wal")
	require.NoFileExists(t, path+"-lease")
	require.NoError(t, file.Close())
	mustOpen(t, path)
}

func TestAFileThatTheSameDriverHasOpenIsNotRefused(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "app.db")
	db := appPool(t, "file:"+path+"?_pragma=journal_mode(wal)&_pragma=busy_timeout(500)")
	require.NoError(t, db.PingContext(bg))
	require.NoError(t, mustOpen(t, path).Migrate(bg))
}

// A process that gets no processor may need long to open a file.
func TestConnectionsOfOursThatAreBeingOpenedPutTheVerdictOff(t *testing.T) {
	t.Parallel()
	missing.Long(t, "takes seconds")
	s := newStore(t)
	openElsewhere(t, s.Path())
	opening.Add(1)
	found := make(chan int, 1)
	go func() { found <- s.files.foreign(true) }()
	select {
	case fd := <-found:
		opening.Add(-1)
		require.Fail(t, "it did not wait", "descriptor %d", fd)
	case <-time.After(2 * openingTime):
	}
	opening.Add(-1)
	require.NotZero(t, <-found)
}

// While many connections are opened at the same time there is always one that is
// not known yet, but never the same.
func TestConnectionsThatAreJustOpenedAreNoOtherDriver(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	file := openElsewhere(t, s.Path())
	found := make(chan int)
	go func() { found <- s.files.foreign(true) }()
	for tick := time.NewTicker(openingTime / 10); ; {
		select {
		case fd := <-found:
			require.Zero(t, fd)
			return
		case <-tick.C:
			next := openElsewhere(t, s.Path())
			require.NoError(t, file.Close())
			file = next
		}
	}
}

// sql.Open opens nothing: an app's driver may open the file after the lock has.
func TestConnectionsStayOpenWhenAnotherDriverComesLater(t *testing.T) {
	t.Parallel()
	missing.Long(t, "takes seconds")
	s := newStore(t)
	conn, err := s.DB().Conn(bg)
	require.NoError(t, err)
	count := func() (n int) {
		all, err := descriptors()
		require.NoError(t, err)
		for _, d := range all {
			if d.file == s.files.file {
				n++
			}
		}
		return n
	}
	file := openElsewhere(t, s.Path())
	before := count()
	s.DB().SetMaxIdleConns(-1) // each that is given back is closed
	require.NoError(t, conn.Close())
	assert.Equal(t, before, count(), "closing it would have taken the locks of the other away")
	_, err = s.DB().Conn(bg)
	assert.ErrorContains(t, err, "sqlite.Use(db)")
	require.NoError(t, file.Close())
	conn, err = s.DB().Conn(bg)
	require.NoError(t, err)
	require.NoError(t, conn.Close())
}

func TestWithoutADescriptorToLookAnotherDriverMayHaveTheFileOpen(t *testing.T) {
	s := newStore(t)
	openElsewhere(t, s.Path())
	var was unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &was))
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 3, Max: was.Max}))
	fd := s.files.foreign(true)
	err := s.files.checkForeign(true)
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &was))
	assert.NotZero(t, fd, "closing a connection would take its locks away")
	assert.NoError(t, err, "it is not known")
}

// Who copies the file may open it as he likes, for reading.
func TestAReaderOfTheFileIsInNobodysWayOnceItIsOpen(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	file, err := os.Open(s.Path())
	require.NoError(t, err)
	defer file.Close()
	s.DB().SetMaxIdleConns(-1)
	for range 2 {
		conn, err := s.DB().Conn(bg)
		require.NoError(t, err)
		require.NoError(t, conn.Close())
	}
}

// Many that start at once on a machine that has no processor to spare found each
// other, time and again, and took that for a process whose -wal was removed.
func TestThoseWhoOnlyAskWhetherTheyAreAloneDoNotFindEachOther(t *testing.T) {
	missing.Long(t, "asks 800 times")
	t.Parallel()
	s := newStore(t)
	path := s.Path()
	require.NoError(t, s.Close())
	require.NoFileExists(t, path+"-wal")
	files, err := findFiles(path)
	require.NoError(t, err)
	var wg sync.WaitGroup
	var found atomic.Int64
	for range 8 {
		wg.Go(func() {
			for range 100 {
				if !files.alone(bg) {
					found.Add(1)
				}
			}
		})
	}
	wg.Wait()
	assert.Zero(t, found.Load(), "of 800 who asked so many found another")
}
