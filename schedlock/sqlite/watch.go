package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"time"

	"github.com/ncruces/go-sqlite3"

	"example.com/schedlock/internal/inotify"
	"example.com/schedlock/schedlock/driver"
)

// A tenure is what a lease of this store depends on besides its row.
type tenure struct {
	set      *fileSet
	lease    fileID // the lease file that its byte is held in; zero: it holds none
	doubtful bool   // whether its row was committed is not known: the next look tells
}

// CheckFile returns a *FileChangedError if a file that the database consists of
// is not the one any more that is open: the database file, the -wal and -shm
// files beside it, or, while this replica leads, the lease file; or if the path
// that the app gave leads elsewhere.
func (s *Store) CheckFile() error {
	if err := s.files.check(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range s.tenures {
		if err := s.checkLeaseFile(t); err != nil {
			return err
		}
	}
	return nil
}

// mayWrite refuses to write to a file that is not the one that was opened: the
// pages would go to the -wal file beside whatever lies at its path now, or to
// one that nobody else will ever read.
func (s *Store) mayWrite() error { return asLost(s.files.check()) }

func asLost(err error) error {
	if changed := (*FileChangedError)(nil); errors.As(err, &changed) {
		return fmt.Errorf("%w: %w", driver.ErrLost, err)
	}
	return err
}

// mayLead is mayWrite for whoever acts under a lease.
func (s *Store) mayLead(t driver.Token) error {
	if err := s.mayWrite(); err != nil {
		return err
	}
	return s.checkTenure(t)
}

// checkTenure refuses a lease that files were lost under, even if all has been
// opened anew since.
func (s *Store) checkTenure(t driver.Token) error {
	s.mu.Lock()
	held, ok := s.tenures[t]
	s.mu.Unlock()
	if !ok {
		return nil // not acquired by this store
	}
	if lost := held.set.lost.Load(); lost != nil {
		return asLost(lost)
	}
	return asLost(s.checkLeaseFile(held))
}

// checkLeaseFile looks whether others still ask the lease file that a byte is
// held in.
func (s *Store) checkLeaseFile(held tenure) error {
	if held.lease == (fileID{}) {
		return nil
	}
	id, err := identify(s.files.path + "-lease")
	switch {
	case err != nil && !isGone(err):
		return fmt.Errorf("lease file: %w", err)
	case id == held.lease:
		return nil
	}
	return &FileChangedError{Path: s.files.path + "-lease", Err: err, Beside: s.files.path,
		do: "the lock is acquired anew"}
}

// findOpen finds out which files the connection of an app's pool has open; the
// turn is held. Every connection of our own pool has been asked already.
func (s *Store) findOpen(ctx context.Context, conn *sql.Conn) error {
	if s.files.owned || s.files.lost() != nil || s.files.path == "" {
		return nil // path: see findFile
	}
	var n int
	if err := conn.QueryRowContext(ctx, `SELECT count(*) FROM sqlite_schema`).Scan(&n); err != nil {
		return err
	}
	known, err := s.askOpen(conn)
	if err == nil && !known {
		err = s.lookForOpen(ctx, conn)
	}
	return err
}

// findSides looks for -wal and -shm files that a connection in another journal
// mode did not have.
func (s *Store) findSides(ctx context.Context, conn *sql.Conn) {
	if known, _ := s.askOpen(conn); known || s.files.lost() != nil || !exists(s.files.path+"-wal") {
		return
	}
	_ = s.lookForOpen(ctx, conn) // what has changed shows at the next check
}

// askOpen asks the connection of an app's pool itself; known is false if its
// driver does not tell.
func (s *Store) askOpen(conn *sql.Conn) (known bool, err error) {
	err = conn.Raw(func(conn any) error {
		c, ok := conn.(rawConn)
		if !ok {
			return nil
		}
		main, beside, ok := openFiles(c.Raw())
		if !ok {
			return nil
		}
		if known = true; main != s.files.file {
			return &FileChangedError{Path: s.files.path}
		}
		set := s.files.sets.Load()
		if open := set.beside.Load(); beside != nil && (open == nil || *open != *beside) {
			if err := s.files.syncNames(); err != nil {
				return err
			}
		}
		set.beside.Store(beside)
		return nil
	})
	return known, err
}

// forgetOpen is for when a connection of an app's pool is given back.
func (f *databaseFiles) forgetOpen() {
	if set := f.sets.Load(); set != nil {
		set.beside.Store(nil)
	}
}

// How often the files are looked at even if nothing is heard of them: while there is a lease to
// end, or files to give up, and else. A standby looks with its own statements once a second, and
// need not wake once more for it.
const (
	watchInterval     = time.Second
	idleWatchInterval = 10 * time.Second
)

// watchFiles looks at the files whenever something happens to them. It
// ends leases, and closes what connections it can to files that were lost.
func (s *Store) watchFiles() {
	stirred := make(chan struct{}, 1)
	defer s.tick.Stop()
	for {
		s.listen(stirred)
		gone := s.files.set().gone
		_ = s.files.check()
		s.endLeases()
		if s.files.lost() != nil {
			s.retire()
			gone = nil
		}
		s.mu.Lock()
		s.retick()
		s.mu.Unlock()
		select {
		case <-s.closed:
			return
		case <-stirred:
		case <-gone:
		case <-s.tick.C:
		}
	}
}

// listen lets stirred tell of what becomes of the files, of their folder, and of the links in the
// path that the app gave. What else happens in the folder is the app's, and may be much.
func (s *Store) listen(stirred chan<- struct{}) {
	f := s.files
	s.events.Add(filepath.Dir(f.path), inotify.Moves, stirred)
	for _, suffix := range []string{"", "-wal", "-shm", "-lease"} {
		s.events.Add(f.path+suffix, inotify.Fate, stirred)
	}
	if f.owned {
		// Written to by a checkpoint only: what it is like then is kept, see unspoiled.
		s.events.Add(f.path, inotify.Writes, stirred)
	}
	if f.given == f.path {
		return
	}
	for path := f.given; path != filepath.Dir(path); path = filepath.Dir(path) {
		if info, err := os.Lstat(path); err == nil && info.Mode()&os.ModeSymlink != 0 {
			s.events.Add(path, inotify.Fate, stirred)
		}
	}
}

// retick is for when that may have changed; mu is held.
func (s *Store) retick() {
	if len(s.tenures) > 0 || s.files.lost() != nil {
		s.tick.Reset(watchInterval)
	} else {
		s.tick.Reset(idleWatchInterval)
	}
}

// retire closes the connections that nobody uses, so that files which were lost
// can be given up, and the database be opened anew.
func (s *Store) retire() {
	if s.files.owned {
		s.db.SetMaxIdleConns(-1)
		s.db.SetMaxIdleConns(openConns)
	}
	select {
	case s.turn <- struct{}{}:
		if s.conn != nil && s.files.lost() != nil {
			s.discard()
		}
		<-s.turn
	case <-s.closed:
	}
}

// AwaitLoss implements driver.Store.
func (s *Store) AwaitLoss(ctx context.Context, ref driver.Ref) error {
	lost := make(chan error, 1)
	s.mu.Lock()
	s.awaiting[lost] = ref.Token
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.awaiting, lost)
		s.mu.Unlock()
	}()
	if err := s.mayLead(ref.Token); errors.Is(err, driver.ErrLost) {
		return err
	}
	select {
	case err := <-lost:
		return err
	case <-ctx.Done():
	case <-s.closed:
	}
	return nil
}

// endLeases tells those whose lease is over.
func (s *Store) endLeases() {
	s.mu.Lock()
	awaiting := maps.Clone(s.awaiting)
	s.mu.Unlock()
	for lost, t := range awaiting {
		if err := s.mayLead(t); errors.Is(err, driver.ErrLost) {
			select {
			case lost <- err:
			default: // was told already
			}
		}
	}
}

// Warning implements driver.Store: a *LinksError if the file has
// got another name, an *UnsavedError from the loss of data on.
func (s *Store) Warning() error {
	if lost := s.files.unsaved.Load(); lost != nil {
		return lost
	}
	if n := s.files.links(); n > 1 {
		return &LinksError{Path: s.files.path, Links: n}
	}
	return nil
}

// closesQuietly keeps a connection to files that were lost from touching what
// lies in their place when it is closed; the turn is held. It returns false if
// the driver cannot: then the connection must not be closed.
func (s *Store) closesQuietly() (quiet bool) {
	if s.files.owned || s.files.lost() == nil {
		return true
	}
	_ = s.conn.Raw(func(conn any) error {
		c, ok := conn.(rawConn)
		if ok {
			_, err := c.Raw().Config(sqlite3.DBCONFIG_NO_CKPT_ON_CLOSE, true)
			quiet = err == nil
		}
		return nil
	})
	return quiet
}
