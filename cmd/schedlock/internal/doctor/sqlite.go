package doctor

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/ncruces/go-sqlite3"
	"github.com/ncruces/go-sqlite3/driver"
	"github.com/ncruces/go-sqlite3/vfs"

	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/sqlite"
)

func examineSQLite(ctx context.Context, f *findings, dsn string, limits bounds) {
	path, ok := checkPath(f, dsn)
	if !ok {
		return
	}
	readable := checkPermissions(f, path)
	accepted := checkMount(f, path)
	checkLog(f, path, limits)
	checkDSN(f, dsn)
	checkWriter(ctx, f, path, limits)
	if !readable || !accepted {
		return
	}
	var part findings
	err := sqlite.Read(ctx, dsn, func(ctx context.Context, store *sqlite.Store) error {
		part = findings{} // it may be called again
		return readSQLite(ctx, &part, store.DB(), path, limits)
	})
	f.adopt(&part)
	if err != nil {
		failToRead(f, "database", err)
	}
}

// checkDSN says what the app's own parameters change.
func checkDSN(f *findings, dsn string) {
	_, rawQuery, _ := strings.Cut(dsn, "?")
	query, err := url.ParseQuery(rawQuery)
	if err != nil || !strings.HasPrefix(dsn, "file:") {
		return
	}
	for _, p := range query["_pragma"] {
		words := strings.FieldsFunc(strings.ToLower(p), func(r rune) bool { return strings.ContainsRune("(=) ", r) })
		if len(words) == 2 && words[0] == "synchronous" && !slices.Contains([]string{"full", "extra", "2", "3"}, words[1]) {
			f.note("synchronous", fmt.Sprintf("the DSN sets %s: the lock's own writes are made with FULL all the same, the app's own may be lost with the power", p))
		}
	}
}

// readSQLite is everything that needs the file to be opened. What it cannot
// read at all is its error.
func readSQLite(ctx context.Context, f *findings, db *sql.DB, path string, limits bounds) error {
	version, mode, err := describeSQLite(ctx, db)
	if err != nil {
		return err
	}
	f.ok("database", "a SQLite database, read with SQLite "+version)
	if mode == "wal" {
		f.ok("journal mode", "wal")
	} else {
		f.warn("journal mode", mode, "readers and heartbeats wait for each other: the next start of the app sets WAL, unless it gives the lock its own *sql.DB or its DSN says otherwise; "+
			"by hand, with the app stopped: PRAGMA journal_mode = WAL")
	}
	if checkIntegrity(ctx, f, db, path, limits) {
		judgeSQLite(ctx, f, db, path)
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
	if err := conn.QueryRowContext(ctx, `SELECT sqlite_version() FROM (SELECT count(*) FROM sqlite_master)`).Scan(&version); err != nil {
		return "", "", err
	}
	if err := conn.QueryRowContext(ctx, `PRAGMA journal_mode`).Scan(&mode); err != nil {
		return "", "", err
	}
	// A file that nobody writes to is read without a journal; its header says
	// which one it will have. It is read through SQLite's own descriptor: the
	// lock's rule is that nobody else opens the file.
	err = conn.Raw(func(raw any) error {
		pointer, err := raw.(driver.Conn).Raw().FileControl("main", sqlite3.FCNTL_FILE_POINTER)
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
		f.note("integrity", fmt.Sprintf("not looked at: the file has %s, more than %s; run %s in a shell", size(info.Size()), size(limits.quickCheck), byHand))
		return true
	}
	checking, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	var found string
	err = db.QueryRowContext(checking, `PRAGMA quick_check(1)`).Scan(&found)
	switch {
	case err != nil && checking.Err() != nil:
		f.note("integrity", "not looked at to the end: it takes more than five seconds; run "+byHand+" in a shell")
	case err != nil:
		failToRead(f, "integrity", err)
		return false
	case found != "ok":
		f.fail("integrity", "the database is damaged: "+firstLine(found), "stop the replicas, keep a copy of all its files, and restore it from a backup")
		return false
	default:
		f.ok("integrity", "quick_check finds nothing")
	}
	return true
}

func failToRead(f *findings, check string, err error) {
	do := "do what it says, if it says something, and run this again; if it stays, see the app's log"
	switch {
	case errors.Is(err, sqlite3.NOTADB):
		do = "this is another kind of file, an encrypted database, or one whose beginning was overwritten: check the path, or restore it from a backup"
	case errors.Is(err, sqlite3.CORRUPT):
		do = "stop the replicas, keep a copy of all its files, and restore it from a backup"
	case errors.Is(err, sqlite3.BUSY), errors.Is(err, sqlite3.LOCKED):
		do = "another process keeps it locked: end it, or run this again"
	case errors.Is(err, sqlite3.READONLY_ROLLBACK):
		do = "a writer has died inside a transaction: the next start of the app rolls it back"
	case errors.Is(err, sqlite3.CANTOPEN), errors.Is(err, sqlite3.READONLY):
		do = "run it as the app's user: a database in WAL mode can be read only by who may write its -shm file"
	}
	f.fail(check, "it cannot be read: "+err.Error(), do)
}

func firstLine(s string) string {
	s, _, _ = strings.Cut(strings.TrimSpace(strings.TrimPrefix(s, "*** in database main ***")), "\n")
	return s
}

// judgeSQLite reads the rows and the lease file.
func judgeSQLite(ctx context.Context, f *findings, db *sql.DB, path string) {
	for try := 1; ; try++ {
		before, err := readFacts(ctx, db, sqliteDialect)
		if err != nil {
			failToRead(f, "tables", err)
			return
		}
		var part findings
		sign := checkLease(&part, before, path)
		after, err := readFacts(ctx, db, sqliteDialect)
		if err == nil && try < 3 && !sameHolder(before, after) {
			continue // the file and the row are of different leaders
		}
		judge(f, before, sign)
		f.adopt(&part)
		return
	}
}

func sameHolder(a, b facts) bool {
	switch {
	case (a.row == nil) != (b.row == nil), len(a.terms) != len(b.terms):
		return false
	case a.row != nil && a.row.token != b.row.token:
		return false
	}
	return len(a.terms) == 0 || a.terms[0].number == b.terms[0].number && a.terms[0].open() == b.terms[0].open()
}

// checkLease compares the lease file with the row: whether the holder lives,
// and whether its death could be proven.
func checkLease(f *findings, x facts, path string) schedlock.Sign {
	var token schedlock.Token
	var fileID string
	switch {
	case x.row != nil:
		token, _ = schedlock.ParseToken(x.row.token)
		fileID = x.row.fileID
	case len(x.terms) > 0:
		token, _ = schedlock.ParseToken(x.terms[0].token)
		fileID = x.terms[0].fileID
	}
	p, err := sqlite.ProbeLease(path, token)
	switch {
	case errors.Is(err, errors.ErrUnsupported):
		f.note("lease file", "deaths cannot be proven here, the TTL decides: "+err.Error())
		return schedlock.SignNone
	case errors.Is(err, fs.ErrNotExist) && x.row == nil:
		f.note("lease file", "there is none: the next start of a replica makes it")
		return schedlock.SignNone
	case errors.Is(err, fs.ErrNotExist) && fileID == "":
		f.note("lease file", "there is none: the holder could not make it, so its death cannot be proven and the TTL decides")
		return schedlock.SignNone
	case errors.Is(err, fs.ErrNotExist):
		f.warn("lease file", "there is none, though the lock is held: it was deleted, so the death of this holder cannot be proven and the TTL decides",
			"do not delete it while replicas run; the next leader makes another, so restart the leader when it suits")
		return schedlock.SignNone
	case err != nil:
		f.fail("lease file", err.Error(), "deaths cannot be proven until it can be read: check its owner and mode, or stop the replicas and remove it")
		return schedlock.SignNone
	}
	found := path + "-lease, id " + p.ID
	switch {
	case x.row == nil && (p.Held || p.Others):
		f.warn("lease file", found+": a process holds a byte of it, though there is no lock row", "a leader whose row was deleted, or whose jobs still run: nobody else leads before it has ended; look for it with fuser or lsof")
		return schedlock.SignAlive
	case x.row == nil:
		f.ok("lease file", found+": nobody holds it")
		return schedlock.SignNone
	case p.Held:
		f.ok("lease file", found+": the holder lives")
		return schedlock.SignAlive
	case p.Others:
		f.warn("lease file", found+": a process holds it for another token than the row's", "the row was edited, or the database replaced by a copy or a backup: its leader steps down at its next heartbeat; until then nobody else leads")
		return schedlock.SignNone
	case fileID == "":
		f.note("lease file", found+": the holder could not lock it, so its death cannot be proven and the TTL decides")
		return schedlock.SignNone
	case fileID != p.ID:
		f.warn("lease file", found+fmt.Sprintf(": the holder locked another one, id %s, so its death cannot be proven and the TTL decides", fileID),
			"the lease file was deleted, or the database was copied here: restart the leader when it suits; do not delete the file while replicas run")
		return schedlock.SignNone
	}
	f.note("lease file", found+": nobody holds the byte of the row's token, so that process has ended")
	return schedlock.SignDead
}
