// Package datasource tells what kind of database a text names, without the driver of
// any, and shows of it only what cannot be a password.
//
// Nothing here removes passwords from a text: where one begins and ends cannot be
// told once the text is wrong. What is shown is put together from parts that were
// understood, and of what was not, nothing is shown.
package datasource

import (
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"strings"
)

// Kind is the kind of a database.
type Kind int

const (
	Unknown    Kind = iota
	File            // of SQLite: a path, or a file: URI
	PostgreSQL      // a postgres:// or postgresql:// URL, or keyword=value pairs as libpq has them
	MySQL           // a mysql:// URL, or its driver's user:password@tcp(host:port)/database
)

var (
	scheme = regexp.MustCompile(`^\s*["']?([A-Za-z][A-Za-z0-9+.-]*)://`)
	// servers are names that begin the address of a server, also a misspelled one.
	servers = regexp.MustCompile(`(?i)^\s*["']?(postgres(ql)?|pgsql|pg|mysql|mariadb|` +
		`sqlserver|mssql|oracle|odbc|jdbc|redis|mongodb)(:|//)`)
	// login is user:password@host, or what is left of it.
	login = regexp.MustCompile(`:[\s\S]*@|@[\s\S]*[:/]`)
	// pairs begin with a keyword.
	pairs = regexp.MustCompile(`^\s*["']?\w+\s*=`)
	// keyword is one of libpq's that tell a server or a login; so does any that is
	// like "password".
	keyword = regexp.MustCompile(`(^|[\s;,&?"'])` +
		`(host|hostaddr|port|dbname|database|user|password|username|uid|service|` +
		`servicefile|passfile|sslmode|sslpassword|target_session_attrs|application_name|` +
		`connect_timeout)\s*=`)
	anyCase = regexp.MustCompile(`(?i)` + keyword.String())
	secret  = regexp.MustCompile(`(?i)(pass\w*|p\w{0,3}[sw]\w*d\w*)\s*=`)
	drive   = regexp.MustCompile(`^[A-Za-z]:[\\/]`)
	// dsn is the form of the Go driver for MySQL: what stands before the address is a login.
	dsn = regexp.MustCompile(`(^|@)(tcp|unix)\([^()@]*\)/[^/]*$`)
	// protocol is a part of it.
	protocol = regexp.MustCompile(`(?i)(tcp|unix)\(`)
)

// Of returns the kind of what text names. The error is for what names neither a
// file nor a database of a known kind, and for what can only be meant as the address of
// a server, so that nobody makes a file of that name, with a password in it.
func Of(text string) (Kind, error) {
	switch {
	case strings.HasPrefix(text, "postgres://"), strings.HasPrefix(text, "postgresql://"):
		return PostgreSQL, nil
	case strings.HasPrefix(text, "mysql://"):
		return MySQL, nil
	}
	path, isURI := strings.CutPrefix(text, "file:")
	if isURI {
		if !plain(path) && login.MatchString(path) { // with a ? or # in the password
			return Unknown, errServer
		}
		path, _, _ = strings.Cut(path, "#")
		path, _, _ = strings.Cut(path, "?")
		if unescaped, err := url.PathUnescape(path); err == nil {
			path = unescaped
		}
		if rest, found := strings.CutPrefix(path, "//"); found && !strings.HasPrefix(rest, "/") {
			path = rest // a host, where there should be none
			if strings.Contains(path, ":") {
				return Unknown, errServer
			}
		}
	}
	if found := scheme.FindStringSubmatch(path); found != nil {
		return Unknown, schemeError(found[1])
	}
	switch {
	case strings.Contains(path, "://"):
		return Unknown, errServer
	case plain(path):
		return File, nil
	case !isURI && pairs.MatchString(path) && keyword.MatchString(path):
		return PostgreSQL, nil
	case !isURI && dsn.MatchString(path):
		return MySQL, nil
	case pairs.MatchString(path), anyCase.MatchString(path), secret.MatchString(path),
		servers.MatchString(path), login.MatchString(path), protocol.MatchString(path):
		return Unknown, errServer
	}
	return File, nil
}

// plain reports whether the text can be nothing but a path.
func plain(path string) bool {
	return strings.HasPrefix(path, "/") && !strings.HasPrefix(path, "//") ||
		strings.HasPrefix(path, "./") || strings.HasPrefix(path, "../") || drive.MatchString(path)
}

var errServer = errors.New("it looks like the address of a server, " +
	"but is neither a postgres:// or mysql:// URL, nor host=… dbname=… pairs, " +
	"nor user:…@tcp(host:port)/database; " +
	"for a file of that name write ./ in front of it")

func schemeError(name string) error {
	switch name = knownScheme(name); name {
	case "postgres", "postgresql", "mysql":
		return fmt.Errorf("write %s:// in small letters, without anything before it", name)
	case "mariadb":
		return errors.New("write mysql:// for MariaDB, too")
	case "file":
		return errors.New("write file: once")
	case "sqlite", "sqlite3":
		return errors.New("write file:app.db, or only the path")
	}
	return fmt.Errorf("%s:// is unknown: only file: URIs, postgres:// URLs and mysql:// URLs "+
		"are supported", name)
}

// knownScheme is the scheme as it may be shown. Before the :// of an address that
// has lost its beginning stands what was in its middle.
func knownScheme(name string) string {
	name = strings.ToLower(name)
	switch name {
	case "postgres", "postgresql", "mysql", "mariadb", "file", "sqlite", "sqlite3", "redis",
		"rediss", "mongodb",
		"sqlserver", "mssql", "oracle", "jdbc", "odbc", "http", "https", "libsql", "cockroachdb":
		return name
	}
	return "…"
}

// SplitFile returns the path of a [File], unescaped and not resolved, and the
// parameters of its URI, which stay escaped.
func SplitFile(dsn string) (path, query string, err error) {
	path = dsn
	if rest, ok := strings.CutPrefix(dsn, "file:"); ok {
		rest, _, _ = strings.Cut(rest, "#")
		path, query, _ = strings.Cut(rest, "?")
		if after, ok := strings.CutPrefix(path, "//"); ok {
			host, abs, _ := strings.Cut(after, "/")
			if host != "" && host != "localhost" {
				return "", "", fmt.Errorf("a file URI has no host, found %q; "+
					"write file:/path or file:path", host)
			}
			path = "/" + abs
		}
		if path, err = url.PathUnescape(path); err != nil {
			return "", "", err
		}
	}
	for strings.HasPrefix(path, "//") { // in a URI that would begin a host
		path = path[1:]
	}
	return path, query, nil
}

// Shown is text as it may be shown: the path of a file, without parameters; of
// everything else only the scheme. The address of a server that could be parsed has
// more to show, see packages pgdsn and mydsn.
func Shown(text string) string {
	kind, _ := Of(text)
	if kind == File {
		if strings.HasPrefix(text, "file:") {
			path, _, _ := strings.Cut(text, "#")
			if path, _, parameters := strings.Cut(path, "?"); parameters {
				return path + "?…"
			}
			return path
		}
		return text
	}
	if found := scheme.FindStringSubmatch(text); found != nil {
		return knownScheme(found[1]) + "://…"
	}
	if strings.HasPrefix(text, "file:") {
		return "file:…"
	}
	switch kind {
	case PostgreSQL:
		return "a PostgreSQL database"
	case MySQL:
		return "a MariaDB database"
	}
	return "…"
}

// Refused wraps what a server says of a parameter of the address that it does not take, without
// showing it: behind a password that ends too early the parameter is a part of that. The code is
// the server's.
func Refused(err error, code string) error { return &refusedError{err, code} }

type refusedError struct {
	error
	code string
}

func (e *refusedError) Error() string {
	return "the server refuses a parameter of the address (" + e.code +
		"), which is not shown, as it may be a part of the password"
}

func (e *refusedError) Unwrap() error { return e.error }
