package doctor

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"

	"github.com/ncruces/go-sqlite3"
	sqlite3driver "github.com/ncruces/go-sqlite3/driver"
	"github.com/ncruces/go-sqlite3/vfs"

	"example.com/schedlock/internal/leasefile"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/sqlite"
)

func examineSQLite(ctx context.Context, f *findings, dsn string, limits bounds) {
	path, ok := checkPath(f, dsn)
	if !ok {
		return
	}
	readable := checkPermissions(f, path)
	checkLockFiles(f, path)
	accepted := checkMount(f, path)
	checkLog(f, path, limits)
	checkWriter(ctx, f, path, limits)
	if !readable || !accepted {
		return
	}
	var part findings
	err := sqlite.Read(ctx, dsn, func(ctx context.Context, store *sqlite.Store) error {
		part = findings{} // it may be called again
		return readSQLite(ctx, &part, store, path, limits)
	})
	f.adopt(&part)
	if err != nil {
		failToRead(f, "database", err)
	}
}

// readSQLite is everything that needs the file to be opened. What it cannot
// read at all is its error.
func readSQLite(ctx context.Context, f *findings, store *sqlite.Store, path string,
	limits bounds) error {
	db := store.DB()
	version, mode, err := describeSQLite(ctx, db)
	if err != nil {
		return err
	}
	f.ok("database", "a SQLite database, read with SQLite "+version)
	if mode == "wal" {
		f.ok("journal mode", "wal")
	} else {
		f.warn("journal mode", mode, "readers and heartbeats wait for each other: "+
			"the next start of the app sets WAL, unless it gives the lock its own *sql.DB; "+
			"by hand, with the app stopped: PRAGMA journal_mode = WAL")
	}
	if checkIntegrity(ctx, f, db, path, limits) {
		judgeSQLite(ctx, f, store, path, mode == "wal")
	}
	return nil
}

// describeSQLite reads the header: of a file that is no database this fails.
func describeSQLite(ctx context.Context, db *sql.DB) (version, mode string, err error) {
	conn, err := db.Conn(ctx)
	if err != nil {
		return "", "", err
	}
	defer conn.Close()
	if err := conn.QueryRowContext(ctx,
		`SELECT sqlite_version()
		FROM (SELECT count(*) FROM sqlite_master)`).Scan(&version); err != nil {
		return "", "", err
	}
	if err := conn.QueryRowContext(ctx, `PRAGMA journal_mode`).Scan(&mode); err != nil {
		return "", "", err
	}
	// A file that nobody writes to is read without a journal; its header says
	// which one it will have. It is read through SQLite's own descriptor: the
	// lock's rule is that nobody else opens the file.
	err = conn.Raw(func(raw any) error {
		pointer, err := raw.(sqlite3driver.Conn).Raw().FileControl("main",
			sqlite3.FCNTL_FILE_POINTER)
		file, ok := pointer.(vfs.File)
		if !ok {
			return err
		}
		var header [20]byte
		if n, _ := file.ReadAt(header[:], 0); n == len(header) && header[18] == 2 {
			mode = "wal"
		}
		return nil
	})
	return version, mode, err
}

// checkIntegrity reports whether the file can be trusted. It looks for damaged
// pages; indexes are not compared with their tables.
func checkIntegrity(ctx context.Context, f *findings, db *sql.DB, path string, limits bounds) bool {
	const byHand = "PRAGMA quick_check"
	info, err := os.Stat(path)
	if err == nil && info.Size() > limits.quickCheck {
		f.note("integrity", fmt.Sprintf("not looked at: the file has %s, more than %s; "+
			"run %s in a shell", size(info.Size()), size(limits.quickCheck), byHand))
		return true
	}
	checking, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	var found string
	err = db.QueryRowContext(checking, `PRAGMA quick_check(1)`).Scan(&found)
	switch {
	case err != nil && checking.Err() != nil:
		f.note("integrity", "not looked at to the end: it takes more than five seconds; run "+
			byHand+" in a shell")
	case err != nil:
		failToRead(f, "integrity", err)
		return false
	case found != "ok":
		f.fail("integrity", "the database is damaged: "+firstLine(found),
			"stop the replicas, keep a copy of all its files, and restore it from a backup")
		return false
	default:
		f.ok("integrity", "quick_check finds nothing")
	}
	return true
}

func failToRead(f *findings, check string, err error) {
	do := "do what it says, if it says something, and run this again; " +
		"if it stays, see the app's log"
	switch {
	case errors.Is(err, sqlite3.NOTADB):
		do = "this is another kind of file, an encrypted database, or one whose beginning was " +
			"overwritten: check the path, or restore it from a backup"
	case errors.Is(err, sqlite3.CORRUPT):
		do = "stop the replicas, keep a copy of all its files, and restore it from a backup"
	case strings.Contains(err.Error(), "no such table: "):
		do = toRestore
	case errors.Is(err, sqlite3.BUSY), errors.Is(err, sqlite3.LOCKED):
		do = "another process keeps it locked: end it, or run this again"
	case errors.Is(err, sqlite3.READONLY_ROLLBACK):
		do = "a writer has died inside a transaction: the next start of the app rolls it back"
	case errors.Is(err, sqlite3.CANTOPEN), errors.Is(err, sqlite3.READONLY):
		do = "run it as the app's user: a database in WAL mode can be read only by who may write " +
			"its -shm file"
	}
	f.fail(check, "it cannot be read: "+err.Error(), do)
}

func firstLine(s string) string {
	s = strings.TrimSpace(strings.TrimPrefix(s, "*** in database main ***"))
	line, _, _ := strings.Cut(s, "\n")
	return line
}

// judgeSQLite reads the rows and the lease file.
func judgeSQLite(ctx context.Context, f *findings, store *sqlite.Store, path string, wal bool) {
	for try := 1; ; try++ {
		before, err := readFacts(ctx, store.DB(), sqliteDialect)
		if err != nil {
			failToRead(f, "tables", err)
			return
		}
		var part findings
		seen, _ := before.look(ctx, store)
		checkLease(&part, before, seen, path)
		if seen.Sign == driver.SignAlive && wal {
			checkBeside(&part, path)
		}
		after, err := readFacts(ctx, store.DB(), sqliteDialect)
		if err == nil && try < 3 && !sameHolder(before.view(), after.view()) {
			continue // the file and the row are of different leaders
		}
		judge(f, before, seen)
		f.adopt(&part)
		return
	}
}

// checkBeside looks for the files that a living leader must have open, in WAL
// mode.
func checkBeside(f *findings, path string) {
	for _, suffix := range []string{"-wal", "-shm"} {
		if _, err := os.Lstat(path + suffix); errors.Is(err, fs.ErrNotExist) {
			f.fail("files", path+suffix+
				" is missing, although a process that may lead has the database open: "+
				"it was removed under that process"+users(path),
				"that process gives up its lease at once, and opens the database anew if it can; "+
					"if this stays for more than a few seconds, restart it")
			return
		}
	}
	f.ok("files", "the -wal and -shm files of the leader are in place")
}

// checkLease compares the lease file with the row: whether the holder lives,
// and whether its death could be proven. seen is what a standby sees: it knows
// which bytes do not count.
func checkLease(f *findings, x facts, seen driver.Snapshot, path string) {
	var token driver.Token
	var fileID string
	switch {
	case x.row != nil:
		token, _ = driver.ParseToken(x.row.token)
		fileID = x.row.fileID
	case len(x.terms) > 0:
		token, _ = driver.ParseToken(x.terms[0].token)
		fileID = x.terms[0].fileID
	}
	var p leasefile.State
	file, err := leasefile.Find(path, nil)
	if err == nil {
		p, err = file.Probe(token)
	}
	switch {
	case errors.Is(err, errors.ErrUnsupported):
		f.note("lease file", "deaths cannot be proven here, the TTL decides: "+err.Error())
		return
	case errors.Is(err, fs.ErrNotExist) && x.row == nil:
		f.note("lease file", "there is none: the next start of a replica makes it")
		return
	case errors.Is(err, fs.ErrNotExist) && fileID == "":
		f.note("lease file",
			"there is none: the holder could not make it, so its death cannot be proven and "+
				"the TTL decides")
		return
	case errors.Is(err, fs.ErrNotExist):
		f.warn("lease file",
			"there is none, though the lock is held: "+
				"it was deleted, so the death of this holder cannot be proven and the TTL decides",
			"do not delete it while replicas run; the next leader makes another, "+
				"so restart the leader when it suits")
		return
	case errors.Is(err, fs.ErrPermission):
		f.note("lease file",
			"this user may not read it, as only those may who may write the database: "+
				"run this as the app's user")
		return
	case err != nil:
		f.fail("lease file", err.Error(),
			"deaths cannot be proven until it can be read: check its owner and mode, "+
				"or stop the replicas and remove it")
		return
	}
	found := path + "-lease, id " + p.ID
	switch {
	case x.row == nil && (p.Held || p.Others) && seen.Sign == driver.SignDead:
		f.note("lease file", found+": a process still holds a byte of it whose term has ended: "+
			"it hangs, and delays nobody; look for it with fuser or lsof")
	case x.row == nil && (p.Held || p.Others):
		f.warn("lease file", found+": a process holds a byte of it, though there is no lock row",
			"a leader whose row was deleted, or whose jobs still run: "+
				"nobody else leads before it has ended; look for it with fuser or lsof")
	case x.row == nil:
		f.ok("lease file", found+": nobody holds it")
	case p.Held:
		f.ok("lease file", found+": the holder lives")
	case p.Others && seen.Sign != driver.SignDead:
		f.warn("lease file", found+": a process holds it for another token than the row's",
			"the row was edited, or the database replaced by a copy or a backup: "+
				"its leader steps down at its next heartbeat; until then nobody else leads")
	case fileID == "":
		f.note("lease file", found+
			": the holder could not lock it, so its death cannot be proven and the TTL decides")
	case fileID != p.ID:
		f.warn("lease file", found+fmt.Sprintf(": the holder locked another one, id %s, "+
			"so its death cannot be proven and the TTL decides", fileID),
			"the lease file was deleted, or the database was copied here: "+
				"restart the leader when it suits; do not delete the file while replicas run")
	default:
		f.note("lease file", found+
			": nobody holds the byte of the row's token, so that process has ended")
	}
}
