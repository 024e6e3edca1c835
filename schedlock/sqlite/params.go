package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"slices"
	"strings"

	"github.com/ncruces/go-sqlite3"
)

// checkNUL refuses what Go and SQLite would read in two ways.
func checkNUL(path, query string) error {
	if strings.Contains(path+query, "\x00") || strings.Contains(query, "%00") {
		return errors.New("the DSN has a NUL byte, at which SQLite would stop reading: remove it")
	}
	return nil
}

// maxPath leaves room for the longest suffix: our driver takes names of 1,024 bytes, and panics at
// others.
const maxPath = 1000

func checkLength(path string) error {
	if full, err := filepath.Abs(path); err == nil && len(full) > maxPath {
		return fmt.Errorf("its path has %d bytes, %d are allowed: choose a shorter one", len(full),
			maxPath)
	}
	return nil
}

// switches are parameters of a URI that must be off.
var switches = []struct{ name, rule string }{
	{"nolock", "replicas that do not lock each other out could all lead"},
	{"immutable", "SQLite then believes that nobody writes to the file, and the lock does"},
}

// off are SQLite's words for it.
var off = []string{"0", "off", "no", "false"}

// checkParams refuses the parameters with which the promise would not hold. The
// error names the one and what to do, and no other: a DSN may contain a key.
func checkParams(query url.Values) error {
	for _, s := range switches {
		for _, value := range query[s.name] {
			if !slices.Contains(off, strings.ToLower(value)) {
				return fmt.Errorf("the DSN's parameter %s=%s is refused: %s: remove it", s.name,
					value, s.rule)
			}
		}
	}
	for _, list := range query["_pragma"] {
		for pragma := range strings.SplitSeq(list, ";") { // each is handed to SQLite as it is
			if err := checkPragma(pragma); err != nil {
				return err
			}
		}
	}
	return nil
}

// checkPragma sees through the usual spellings; checkConnection sees what comes
// of the others.
func checkPragma(pragma string) error {
	bare := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r == '_' || r == '.' {
			return r
		}
		return -1
	}, strings.ToLower(pragma))
	bare = strings.TrimPrefix(strings.TrimPrefix(bare, "pragma"), "main.")
	value, found := strings.CutPrefix(bare, "locking_mode")
	if found && strings.Contains(value, "exclusive") {
		return fmt.Errorf("the DSN's parameter _pragma=%s is refused: "+
			"one connection would keep the file to itself, "+
			"and no other replica could read the lock: remove it", pragma)
	}
	value, found = strings.CutPrefix(bare, "journal_mode")
	if found && value != "" && value != "wal" {
		return fmt.Errorf("the DSN's parameter _pragma=%s is refused: "+
			"the journal mode must be WAL, or whoever reads keeps the leader from its heartbeats: "+
			"remove it, WAL is set without it", pragma)
	}
	return nil
}

// checkVFS refuses those of which it is not known that they lock the file that
// the path leads to.
func checkVFS(query url.Values) error {
	for _, name := range query["vfs"] {
		if name != "" && name != "os" {
			return fmt.Errorf("the DSN's parameter vfs=%s is refused: "+
				"replicas see each other only by the locks of the default one: remove it "+
				"(an app that encrypts its database passes its own *sql.DB to sqlite.Use)", name)
		}
	}
	return nil
}

// checkConnection asks the connection itself what checkParams asks of a DSN,
// however it came to be so. It reads no page, so it waits for nobody.
func (s *Store) checkConnection(ctx context.Context, conn *sql.Conn) error {
	if s.files.readOnly {
		return nil
	}
	var path string
	memory := false // which is exclusive anyway, and refused by findFile
	err := conn.Raw(func(raw any) error {
		c, ok := raw.(rawConn)
		if !ok {
			return nil // another driver: its pragmas are all that can be told
		}
		name := c.Raw().Filename("main")
		if path = name.String(); path == "" {
			memory = true
			return nil
		}
		query := name.URIParameters()
		query.Del("_pragma") // asked of the connection: Use lets the app choose its journal mode
		if err := checkParams(query); err != nil {
			return err
		}
		return checkFileOf(c.Raw())
	})
	if err != nil || memory {
		return ofFile(path, err)
	}
	var mode string
	if err := conn.QueryRowContext(ctx, `PRAGMA main.locking_mode`).Scan(&mode); err != nil {
		return err
	}
	if mode == "exclusive" {
		return ofFile(path,
			errors.New("the connection's locking_mode is exclusive: "+
				"it would keep the file to itself, and no other replica could read the lock: "+
				"remove the PRAGMA that sets it"))
	}
	return nil
}

// checkFileOf makes sure that the connection has a file of the operating system
// open, under whatever else its VFS does to it.
func checkFileOf(c *sqlite3.Conn) error {
	pointer, err := c.FileControl("main", sqlite3.FCNTL_FILE_POINTER)
	if err != nil {
		return nil // cannot be told
	}
	file := unwrap(pointer)
	if _, ok := file.(interface{ Fd() uintptr }); file != nil && !ok {
		return fmt.Errorf("its VFS keeps it in a %T, not in a file of the operating system: "+
			"replicas see each other only by the locks on one: use the default VFS", file)
	}
	return nil
}

// checkJournal refuses journal modes in which a transaction cannot be rolled
// back, here or after a crash.
func (s *Store) checkJournal(mode string) error {
	if s.files.readOnly {
		return nil
	}
	if mode == "off" || mode == "memory" {
		return fmt.Errorf("the journal mode is %q: "+
			"a claim that fails, or a crash, would leave half of it in the file: use WAL", mode)
	}
	return nil
}

func ofFile(path string, err error) error {
	if path == "" || err == nil {
		return err
	}
	return fmt.Errorf("database %s: %w", path, err)
}
