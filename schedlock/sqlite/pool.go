package sqlite

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"time"

	"github.com/ncruces/go-sqlite3"
	"github.com/ncruces/go-sqlite3/vfs"
)

// A pool makes the connections of a store that has its own, and sees to it that
// all of them have the same files open. When the files are lost under them
// their transactions are not committed any more, they are closed as soon as
// they are returned, and only when none is left another is opened.
type pool struct {
	*databaseFiles
	sqldriver.Connector
	pause openPause
}

// openPool returns the pool of connections to the file, opened by dsn.
func openPool(f *databaseFiles, dsn string) (*sql.DB, error) {
	if err := f.checkForeign(false); err != nil {
		return nil, err
	}
	c, err := newConnector(dsn)
	if err != nil {
		return nil, fmt.Errorf("database %s: %w", f.path, err)
	}
	f.owned = true
	return sql.OpenDB(&pool{databaseFiles: f, Connector: c}), nil
}

// An openPause keeps callers that try again and again from opening a database
// each time that cannot be opened: it costs memory that the driver does not give
// back, and a process can have only so many pieces of it.
type openPause struct {
	mu     sync.Mutex
	failed error
	until  time.Time
	length time.Duration
}

// How long nothing is opened after a failure: twice as long after each, so that
// a database that was mended is found within as long again as it was spoiled.
const (
	openPauseFirst = 50 * time.Millisecond
	openPauseMost  = 10 * time.Second
)

// over returns nil if the pause is, else why there is one.
func (p *openPause) over() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if time.Now().Before(p.until) {
		return p.failed
	}
	return nil
}

// learn takes what became of an opening.
func (p *openPause) learn(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case err == nil:
		p.length, p.until = 0, time.Time{}
	case is(err, sqlite3.BUSY, sqlite3.LOCKED), errors.Is(err, sqlite3.INTERRUPT),
		// says nothing about the next
		errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
	default:
		p.length = min(max(2*p.length, openPauseFirst), openPauseMost)
		p.failed, p.until = err, time.Now().Add(p.length)
	}
}

// Connect implements driver.Connector.
func (p *pool) Connect(ctx context.Context) (sqldriver.Conn, error) {
	set := p.set()
	p.mu.Lock()
	if lost := set.lost.Load(); lost != nil {
		n := set.conns
		p.mu.Unlock()
		return nil, fmt.Errorf("%w; connections that were not returned yet: %d", lost, n)
	}
	set.conns++
	alone := set.joined == set.leaving
	p.mu.Unlock()
	c := &pooledConn{pool: p, set: set}
	if err := c.open(ctx, alone); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// A pooledConn is one connection of a pool.
type pooledConn struct {
	*conn  // nil: it could not be opened
	pool   *pool
	set    *fileSet
	joined bool
}

func (c *pooledConn) open(ctx context.Context, alone bool) error {
	if err := c.pool.checkForeign(true); err != nil {
		return err
	}
	if alone && !c.pool.readOnly {
		if err := c.pool.awaitOthers(ctx); err != nil {
			return err
		}
	}
	if err := c.pool.pause.over(); err != nil {
		return err
	}
	err := c.connect(ctx)
	c.pool.pause.learn(err)
	if err != nil {
		return err
	}
	main, beside, ok := openFiles(c.Raw())
	if ok && main != c.pool.file {
		return &FileChangedError{Path: c.pool.path}
	}
	// If all was removed before the -wal file was opened, this one is new, and what is put into it
	// would be in the way of the next database.
	if _, err := c.pool.checkPath(); err != nil {
		return err
	}
	if ok {
		if err := c.join(beside); err != nil {
			return err
		}
	}
	if lost := c.set.lost.Load(); lost != nil {
		return lost
	}
	if c.pool.readOnly {
		return nil
	}
	c.Raw().CommitHook(func() (commit bool) { return c.set.lost.Load() == nil })
	return c.checkpoint()
}

// connect opens the database, and its -wal and -shm files.
func (c *pooledConn) connect(ctx context.Context) error {
	opened, err := c.pool.Connector.Connect(ctx)
	if err != nil {
		return err
	}
	c.conn = opened.(*conn)
	defer c.SetInterrupt(c.SetInterrupt(ctx))
	return c.Raw().Exec(`SELECT count(*) FROM sqlite_schema`)
}

// checkpoint does what SQLite does by itself after a commit, unless the files
// were lost meanwhile; and it looks at the database file as it is then, see
// unspoiled.
func (c *pooledConn) checkpoint() error {
	stmt, _, err := c.Raw().Prepare(`PRAGMA wal_autocheckpoint`)
	if err != nil {
		return err
	}
	defer stmt.Close()
	if !stmt.Step() {
		return stmt.Err()
	}
	most := stmt.ColumnInt(0)
	if most <= 0 {
		return nil // the app sees to it
	}
	c.Raw().WALHook(func(db *sqlite3.Conn, schema string, pages int) error {
		if pages < most || c.pool.check() != nil {
			return nil
		}
		// the commit stands whatever becomes of it
		_, _, _ = db.WALCheckpoint(schema, sqlite3.CHECKPOINT_PASSIVE)
		if now, err := examineFile(c.pool.path); err == nil && now.fileID == c.pool.file &&
			c.pool.check() != nil {
			c.set.seen.Store(&now) // removed meanwhile, but this was written by us
		}
		return nil
	})
	return nil
}

// join makes the connection one of its set: the first one says which files the
// set has, and makes their names durable before the others go on.
func (c *pooledConn) join(beside *besideFiles) error {
	c.pool.mu.Lock()
	defer c.pool.mu.Unlock()
	open := c.set.beside.Load()
	if c.set.joined == 0 || open == nil {
		if err := c.pool.syncNames(); err != nil {
			return err
		}
		c.set.beside.Store(beside)
	} else if beside != nil && *beside != *open {
		suffix := "-wal"
		if beside.wal == open.wal {
			suffix = "-shm"
		}
		_ = c.set.lose(c.pool.besideChanged(suffix, nil))
	}
	c.joined = true
	c.set.joined++
	return nil
}

// IsValid implements driver.Validator.
func (c *pooledConn) IsValid() bool { return c.set.lost.Load() == nil }

// ResetSession implements driver.SessionResetter.
func (c *pooledConn) ResetSession(context.Context) error {
	if !c.IsValid() {
		return sqldriver.ErrBadConn
	}
	return nil
}

// Close closes the connection. The last one to a database moves what is in the
// -wal file into the database file, and then removes what lies under the name of
// the -wal file, whatever that is by now: so it may do so only if all is in
// place.
func (c *pooledConn) Close() error {
	p, set := c.pool, c.set
	p.mu.Lock()
	open, last := set.beside.Load(), false
	if c.joined {
		set.leaving++
		last = set.leaving == set.joined // of several that are closed at once, the latest
	}
	p.mu.Unlock()
	foreign := c.conn != nil && p.foreign(true) != 0
	lost := c.conn != nil && !foreign && open != nil && !p.inPlace(set, *open)
	if lost && last && !p.readOnly {
		p.giveUp(c.Raw(), set, *open)
	}
	p.mu.Lock()
	if c.joined {
		set.leaving--
		if set.joined--; set.joined == 0 {
			set.beside.Store(nil) // from here on the files may go
		}
	}
	p.mu.Unlock()
	var err error
	switch {
	case c.conn == nil:
	case foreign:
		keepOpen(c.conn)
	default:
		if lost {
			_, err = c.Raw().Config(sqlite3.DBCONFIG_NO_CKPT_ON_CLOSE, true)
		}
		err = errors.Join(err, c.conn.Close())
	}
	p.mu.Lock()
	set.conns--
	p.mu.Unlock()
	return err
}

// inPlace reports whether the set was not lost.
func (f *databaseFiles) inPlace(set *fileSet, open besideFiles) bool {
	now, err := identify(f.path)
	if err != nil || now != f.file || set.lost.Load() != nil {
		return false
	}
	changed, err := f.checkBeside(open)
	return changed == nil && err == nil
}

// awaitOthers keeps this process from making a new -wal or -shm file while
// others still have one open that was removed: they would be two databases. In
// WAL mode whoever has the database open has both files, so while somebody has,
// and one is missing, nobody else may come.
func (f *databaseFiles) awaitOthers(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, othersLimit)
	defer cancel()
	for {
		missing := f.missing()
		if missing == "" {
			return nil
		}
		if f.alone(ctx) {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("database %s: %s is missing "+
				"while another process has the database open, so it was removed "+
				"under that process: "+
				"end that process (fuser %s names it), then start this one again",
				f.path, missing, f.path)
		case <-time.After(time.Duration(1+rand.IntN(20)) * time.Millisecond):
		}
	}
}

// othersLimit is how long a connection waits for other processes that still
// have files open which were removed. One of this module notices within a
// second.
const othersLimit = 5 * time.Second

func (f *databaseFiles) missing() string {
	for _, suffix := range []string{"-wal", "-shm"} {
		if _, err := os.Stat(f.path + suffix); isGone(err) {
			return f.path + suffix
		}
	}
	return ""
}

// alone reports whether nobody else has the database open in WAL mode. It reads in
// the header which journal mode there is, and asks SQLite's own file whether
// somebody has a lock: where that cannot be asked, for the lock that a last
// connection takes before it removes the files beside it. What is wrong with the
// file shows when it is opened.
func (f *databaseFiles) alone(ctx context.Context) bool {
	conn, err := openConn(ctx, fileURI(f.path)+"?mode=rw")
	if err != nil {
		return ctx.Err() == nil
	}
	defer conn.Close()
	pointer, err := conn.FileControl("main", sqlite3.FCNTL_FILE_POINTER)
	file, ok := pointer.(vfs.File)
	if err != nil || !ok {
		return true
	}
	inWAL := func() bool {
		var header [20]byte
		n, _ := file.ReadAt(header[:], 0)
		return n == len(header) && header[18] == 2 && header[19] == 2
	}
	if locked, ok := lockedElsewhere(file); ok {
		return !inWAL() || !locked
	}
	defer func() { _ = file.Unlock(vfs.LOCK_NONE) }()
	if err := file.Lock(vfs.LOCK_SHARED); err != nil {
		return !isBusy(err)
	}
	return !inWAL() || !isBusy(file.Lock(vfs.LOCK_EXCLUSIVE))
}

// isBusy knows SQLITE_BUSY as package vfs returns it, whose type has no name.
func isBusy(err error) bool { return err != nil && err.Error() == sqlite3.BUSY.Error() }
