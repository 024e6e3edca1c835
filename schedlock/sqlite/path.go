package sqlite

import (
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"
)

// dataSource is a DSN taken apart: the file, and the driver's parameters with
// ours added.
type dataSource struct {
	path   string
	dsn    string // opens what is there: no connection of a pool makes a deleted file anew
	create string // makes the file, too
	wal    bool   // the journal mode is left to us
	vfs    string // "": the default
}

// ourPragmas are set on every connection, in this order; one that the caller's
// DSN sets itself is left to the caller.
var ourPragmas = []struct{ name, value string }{
	{"busy_timeout", busyTimeoutMillis},
	{"journal_mode", "wal"},
	{"synchronous", "full"},
}

// CheckDSN returns the error that Open would return for a dsn that cannot name
// a database file, without touching any.
func CheckDSN(dsn string) error {
	_, err := parseDSN(dsn)
	return err
}

// parseDSN accepts a path, or a file: URI with parameters.
func parseDSN(dsn string) (dataSource, error) {
	path, rawQuery := dsn, ""
	if rest, ok := strings.CutPrefix(dsn, "file:"); ok {
		rest, _, _ = strings.Cut(rest, "#")
		path, rawQuery, _ = strings.Cut(rest, "?")
		if after, ok := strings.CutPrefix(path, "//"); ok {
			host, abs, _ := strings.Cut(after, "/")
			if host != "" && host != "localhost" {
				return dataSource{}, fmt.Errorf("DSN %q: a file URI has no host, found %q; write file:/path or file:path", dsn, host)
			}
			path = "/" + abs
		}
		unescaped, err := url.PathUnescape(path)
		if err != nil {
			return dataSource{}, fmt.Errorf("DSN %q: %w", dsn, err)
		}
		path = unescaped
	} else if strings.Contains(dsn, "://") {
		return dataSource{}, fmt.Errorf("DSN %q is not a path or a file: URI", dsn)
	}
	query, err := url.ParseQuery(rawQuery)
	if err != nil {
		return dataSource{}, fmt.Errorf("DSN %q: %w", dsn, err)
	}
	if path == "" || path == ":memory:" || query.Get("mode") == "memory" || query.Get("vfs") == "memdb" {
		return dataSource{}, fmt.Errorf("DSN %q names no file: a database in memory cannot be shared, so it can lock nothing", dsn)
	}
	set := query["_pragma"]
	var pragmas []string
	for _, p := range ourPragmas {
		if !setsPragma(set, p.name) {
			pragmas = append(pragmas, p.name+"("+p.value+")")
		}
	}
	query["_pragma"] = append(pragmas, set...)
	if !query.Has("_txlock") {
		query.Set("_txlock", "immediate")
	}
	for strings.HasPrefix(path, "//") { // in a URI that would begin a host
		path = path[1:]
	}
	uri := url.URL{Path: path} // escapes what a URI cannot have
	src := dataSource{path: path, wal: !setsPragma(set, "journal_mode"), vfs: query.Get("vfs")}
	src.create = "file:" + uri.EscapedPath() + "?" + query.Encode()
	if !query.Has("mode") {
		query.Set("mode", "rw")
	}
	src.dsn = "file:" + uri.EscapedPath() + "?" + query.Encode()
	return src, nil
}

func setsPragma(set []string, name string) bool {
	for _, p := range set {
		p = strings.ToLower(strings.TrimSpace(p))
		if rest, ok := strings.CutPrefix(p, name); ok && (rest == "" || strings.ContainsAny(rest[:1], "(= ")) {
			return true
		}
	}
	return false
}

// prepareFile makes the parent folder and says in plain words what would be
// wrong with the file, which SQLite reports as "unable to open database file".
// It never opens the file itself: closing a descriptor of it would drop the
// locks that another SQLite in this process holds on it.
func prepareFile(path string) error {
	if err := checkFile(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("database %s: make its folder: %w", path, err)
	}
	if err := writable(dir); err != nil {
		return fmt.Errorf("database %s does not exist, and its folder cannot be written: %w", path, err)
	}
	return nil
}

// checkFile returns an error that wraps fs.ErrNotExist if there is no file, and
// names what is wrong with what else is there.
func checkFile(path string) error {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return fmt.Errorf("database %s: %w", path, err)
	case info.IsDir():
		return fmt.Errorf("database %s is a directory, not a file", path)
	case !info.Mode().IsRegular():
		return fmt.Errorf("database %s is not a regular file but %v", path, info.Mode().Type())
	}
	if err := readable(path); err != nil {
		return fmt.Errorf("database %s cannot be read: %w", path, err)
	}
	return nil
}

// fileID tells one file from another that took its path.
type fileID struct {
	dev, ino uint64
}

// A FileChangedError says that the path no longer leads to the file that was
// opened: it was deleted, or another was put in its place. In WAL mode SQLite
// goes on working on the old file without a word, while new processes open the
// new one.
type FileChangedError struct {
	Path string
	Err  error // why the path leads nowhere; nil: it leads to another file
}

func (e *FileChangedError) Error() string {
	if e.Err != nil {
		return fmt.Sprintf("database file %s is no longer there (%v): put it back and restart, nothing was created in its place", e.Path, e.Err)
	}
	return fmt.Sprintf("database file %s was replaced by another file: restart to use the new one", e.Path)
}

// Unwrap returns why the path leads nowhere.
func (e *FileChangedError) Unwrap() error { return e.Err }
