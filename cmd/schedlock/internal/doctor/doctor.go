// Package doctor looks for what is wrong with the database of a scheduler
// lock, for an operator at night. It says what it found and what to do; it
// repairs nothing.
//
// It makes no file, and writes to none but one: SQLite keeps its readers' marks
// in the -shm file, which is memory that processes share, and rebuilds that file
// if all of them have died. The database, its -wal and its lease file stay as
// they are, byte for byte. On a server every statement is a SELECT, or on MariaDB an
// EXPLAIN.
//
// Examine looks at the set-up first (the file, its folder and file system; or
// the connection, the server and its settings), then at what the rows say.
// All databases share the second part, see judge.
package doctor

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"example.com/schedlock/internal/datasource"
)

// Level says how much a finding matters.
type Level string

// The levels, in the order in which they grow.
const (
	OK      Level = "ok"
	Note    Level = "note"    // good to know, nothing to do
	Warning Level = "warning" // works now, or in part: look at it
	Error   Level = "error"   // does not work, or could let two replicas lead
)

var levels = []Level{OK, Note, Warning, Error}

// Finding is the result of one check.
type Finding struct {
	Check string `json:"check"` // short name: "path", "permissions", "journal mode", …
	Level Level  `json:"level"`
	Found string `json:"found"` // what was found, in words, with the value
	Do    string `json:"do"`    // what to do about it; "" for ok and mere notes
}

// Report is what Examine found, in the order in which it looked.
type Report struct {
	Database string    `json:"database"` // never with a password
	Findings []Finding `json:"findings"`
}

// Worst returns the highest level of all findings, OK if there are none.
func (r Report) Worst() Level {
	worst := 0
	for _, f := range r.Findings {
		worst = max(worst, slices.Index(levels, f.Level))
	}
	return levels[worst]
}

// ToDo returns the report without the findings that need nothing done.
func (r Report) ToDo() Report {
	todo := Report{Database: r.Database, Findings: []Finding{}}
	for _, f := range r.Findings {
		if f.Level == Warning || f.Level == Error {
			todo.Findings = append(todo.Findings, f)
		}
	}
	return todo
}

// farewell is how long after the end of its context Examine waits for the
// check that is under way.
const farewell = 500 * time.Millisecond

// Examine looks at the database that dsn names: a postgres:// or postgresql://
// URL or libpq's key=value pairs, a mysql:// URL or what its driver has for it, else a
// path or a file: URI of a SQLite file. schema is that of the app on PostgreSQL; "" is the
// first of the search_path.
//
// Everything that goes wrong is a finding. It returns soon after ctx ends, with
// what was found until then; a call into a file system that hangs is left behind.
func Examine(ctx context.Context, dsn, schema string) Report {
	limits := usual
	limits.schema = schema
	return examine(ctx, dsn, limits)
}

// bounds are what some checks compare with; tests have smaller ones.
type bounds struct {
	longTransaction time.Duration // keeps the tables of PostgreSQL from vacuum
	longLock        time.Duration // on the tables of the lock; a transaction on MariaDB
	longWrite       time.Duration // holding SQLite's write lock
	largeWAL        int64         // bytes
	quickCheck      int64         // bytes: a larger file is not checked for integrity
	freeConnections int
	statement       time.Duration // that one on a server may take
	schema          string        // see Examine
}

var usual = bounds{
	longTransaction: 10 * time.Minute,
	longLock:        10 * time.Second,
	longWrite:       time.Second,
	largeWAL:        64 << 20,
	quickCheck:      64 << 20,
	freeConnections: 5,
	statement:       3 * time.Second,
}

func examine(ctx context.Context, dsn string, limits bounds) Report {
	var f findings
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() {
			if p := recover(); p != nil {
				f.fail("doctor", fmt.Sprintf("a check has failed unexpectedly: %v", p),
					"report this as a fault of this program; the findings above stand")
			}
		}()
		switch kind, err := datasource.Of(dsn); {
		case err != nil:
			f.name(datasource.Shown(dsn))
			f.fail("database", err.Error(),
				"give a path, a file: URI, a postgres:// URL or a mysql:// URL")
		case kind == datasource.PostgreSQL:
			examinePostgres(ctx, &f, dsn, limits)
		case kind == datasource.MySQL:
			examineMySQL(ctx, &f, dsn, limits)
		default:
			examineSQLite(ctx, &f, dsn, limits)
		}
	}()
	select {
	case <-done:
	case <-ctx.Done():
		select {
		case <-done:
		case <-time.After(farewell):
		}
	}
	if ctx.Err() != nil { // also if the checks noticed it first, and ended
		f.warn("doctor", "the time for this examination ran out: some checks are missing",
			"run it again with more time; if it hangs again, the file system or the server hangs")
	}
	return f.report()
}

// findings is a report that is being written. It may be read meanwhile.
type findings struct {
	mu  sync.Mutex
	all Report
}

func (f *findings) add(level Level, check, found, do string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.all.Findings = append(f.all.Findings, Finding{Check: check,
		Level: level, Found: found, Do: do})
}

func (f *findings) ok(check, found string)       { f.add(OK, check, found, "") }
func (f *findings) note(check, found string)     { f.add(Note, check, found, "") }
func (f *findings) warn(check, found, do string) { f.add(Warning, check, found, do) }
func (f *findings) fail(check, found, do string) { f.add(Error, check, found, do) }

// fine is ok, unless the check has found something to do.
func (f *findings) fine(check, found string) {
	if !slices.ContainsFunc(f.report().ToDo().Findings, func(todo Finding) bool {
		return todo.Check == check
	}) {
		f.ok(check, found)
	}
}

// name sets what the report calls the database.
func (f *findings) name(database string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.all.Database = database
}

// adopt adds what a part of the examination found that may have been repeated.
func (f *findings) adopt(part *findings) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.all.Findings = append(f.all.Findings, part.all.Findings...)
}

func (f *findings) report() Report {
	f.mu.Lock()
	defer f.mu.Unlock()
	return Report{Database: f.all.Database, Findings: append([]Finding{}, f.all.Findings...)}
}
