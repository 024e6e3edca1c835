package sqlite

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"example.com/schedlock/internal/datasource"
	"example.com/schedlock/internal/filesystem"
)

// dataSource is a DSN taken apart: the file, and the driver's parameters with
// ours added.
type dataSource struct {
	path   string
	dsn    string // opens what is there: no connection of a pool makes a deleted file anew
	create string // makes the file, too
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
	shown := datasource.Shown(dsn) // what it has else may be a password
	if kind, err := datasource.Of(dsn); err != nil {
		return dataSource{}, fmt.Errorf("DSN %q is not a path or a file: URI: %w", shown, err)
	} else if kind == datasource.MySQL {
		return dataSource{}, fmt.Errorf("DSN %q is not a path or a file: URI: "+
			"it is for package mysql", shown)
	} else if kind != datasource.File {
		return dataSource{}, fmt.Errorf("DSN %q is not a path or a file: URI: "+
			"it is for package postgres", shown)
	}
	path, rawQuery, err := datasource.SplitFile(dsn)
	if err != nil {
		return dataSource{}, fmt.Errorf("DSN %q: %w", shown, err)
	}
	query, err := url.ParseQuery(rawQuery)
	if err != nil {
		return dataSource{}, fmt.Errorf("DSN %q: %w", shown, err)
	}
	if path == "" || path == ":memory:" || slices.Contains(query["mode"], "memory") ||
		slices.Contains(query["vfs"], "memdb") {
		return dataSource{}, fmt.Errorf("DSN %q names no file: "+
			"a database in memory cannot be shared, so it can lock nothing", shown)
	}
	err = cmp.Or(checkNUL(path, rawQuery), checkLength(path), checkParams(query), checkVFS(query))
	if err != nil {
		return dataSource{}, fmt.Errorf("database %s: %w", path, err)
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
	src := dataSource{path: path, create: fileURI(path) + "?" + query.Encode()}
	if !query.Has("mode") || query.Get("mode") == "rwc" {
		query.Set("mode", "rw")
	}
	src.dsn = fileURI(path) + "?" + query.Encode()
	return src, nil
}

func setsPragma(set []string, name string) bool {
	for _, p := range set {
		p = strings.ToLower(strings.TrimSpace(p))
		if rest, ok := strings.CutPrefix(p, name); ok && rest != "" &&
			strings.ContainsAny(rest[:1], "(= ") {
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
	if err := makeFolder(dir); err != nil {
		return fmt.Errorf("database %s: make its folder: %w", path, err)
	}
	if err := writable(dir); err != nil {
		return fmt.Errorf("database %s does not exist, and its folder cannot be written: %w",
			path, err)
	}
	return nil
}

// makeFolder is os.MkdirAll that makes the names of what it makes durable.
func makeFolder(dir string) error {
	var made []string // whose folders are to be synced, the innermost first
	for at := dir; ; at = filepath.Dir(at) {
		if _, err := os.Stat(at); !errors.Is(err, fs.ErrNotExist) || at == filepath.Dir(at) {
			break
		}
		made = append(made, at)
	}
	err := os.MkdirAll(dir, 0o755)
	for _, at := range made {
		if err == nil {
			err = syncFolder(filepath.Dir(at))
		}
	}
	return err
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
		return fmt.Errorf("database %s is not a regular file but %s", path,
			filesystem.Special(info.Mode()))
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

// A FileChangedError says that a path does not lead any more to the file that
// was opened: it was deleted, or another was put in its place. SQLite goes on
// working on the old file without a word, while new processes open the new one.
type FileChangedError struct {
	Path   string // of the file: the database, or the -wal, -shm or lease file beside it
	Beside string // the path of the database, if Path is that of a file beside it; else ""
	Given  string // the path that the app gave, if that is what leads elsewhere now; else ""
	Now    string // where Given leads now
	Err    error  // why the path leads nowhere; nil: it leads to another file

	do string // what is done about a file beside it
}

func (e *FileChangedError) Error() string {
	switch {
	case e.Beside != "":
		return e.besideText()
	case e.Given != "" && e.Err != nil:
		return fmt.Sprintf("database file %s was opened as %s, which leads nowhere now (%v): "+
			"make it lead there again, or restart", e.Path, e.Given, e.Err)
	case e.Given != "":
		return fmt.Sprintf("database file %s was opened as %s, which leads to %s now: "+
			"restart to use that one", e.Path, e.Given, e.Now)
	case e.Err != nil:
		return fmt.Sprintf("database file %s is no longer there (%v): "+
			"put it back and restart, nothing was created in its place", e.Path, e.Err)
	}
	return fmt.Sprintf("database file %s was replaced by another file: restart to use the new one",
		e.Path)
}

func (e *FileChangedError) besideText() string {
	how := "was replaced by another file"
	if e.Err != nil {
		how = "was removed"
	}
	return fmt.Sprintf("file %s %s while database %s was in use: %s", e.Path, how, e.Beside, e.do)
}

// Unwrap returns why the path leads nowhere.
func (e *FileChangedError) Unwrap() error { return e.Err }

// resolve returns the path as it was given, absolute, and what it leads to. The
// file exists.
func resolve(given string) (abs, resolved string, err error) {
	if abs, err = filepath.Abs(given); err == nil {
		resolved, err = filepath.EvalSymlinks(abs)
	}
	if err != nil {
		return "", "", fmt.Errorf("database %s: %w", given, err)
	}
	return abs, resolved, nil
}

// at returns the DSN for the same file by another path.
func (src dataSource) at(path string) string {
	_, query, _ := strings.Cut(src.dsn, "?")
	return fileURI(path) + "?" + query
}

// fileURI returns the URI of a path. It escapes what SQLite would take for
// something else.
func fileURI(path string) string {
	return "file:" + (&url.URL{Path: path}).EscapedPath()
}
