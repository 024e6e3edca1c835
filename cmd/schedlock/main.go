// Command schedlock shows who holds the scheduler lock of a fleet, and lets an
// operator act: revoke it, pause and resume jobs, ask for a run, bring the
// tables up to date.
//
//	schedlock [flags] command [flags] [arguments]
//
// The commands, their flags and the exit codes are what "schedlock help" prints, and
// "schedlock help COMMAND".
//
// # Exit codes
//
// A command cannot tell if the database does not answer, or its tables are missing or
// need newer code. "Free" and "could not read" are never the same answer.
//
// status exits with 2 if the holder has shown no heartbeat within its TTL by
// the database's clock, is proven dead, or if there is no lock row while the
// newest term has no end: that is not a free lock, nobody may take it before
// that term's TTL has passed.
//
// # What is read, and what is written
//
// status, watch, history, runs, jobs, audit, replicas, doctor and migrate --dry-run make
// nothing and change nothing, neither a row nor a file beside a SQLite database. They
// work on a database that is in use, on one that is read-only, and on a hot
// standby of PostgreSQL.
//
// # JSON
//
// With --json a command writes one object or list to standard output, watch one
// object a line. The names of fields do not change; new ones may be added.
// The verdict of status is held, free, stale, dead, or unfinished (no row, but
// not free). Times are RFC 3339 in UTC with six fractional digits, null where there is
// none; durations are seconds. An error is {"error":"…"} in one line of standard output,
// and its message stands on standard error too.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"example.com/schedlock/cmd/schedlock/internal/guard"
	"example.com/schedlock/internal/message"
)

const (
	exitDone    = 0
	exitNothing = 1 // free, nothing to do, failed, warnings
	exitStale   = 2
	exitUnknown = 4  // cannot tell
	exitUsage   = 64 // called wrongly, as in sysexits.h
)

const (
	defaultTimeout = 5 * time.Second
	migrateTimeout = time.Minute // of the command migrate, which may change large tables
)

// databaseVariable stands in for --db.
const databaseVariable = "SCHEDLOCK_DATABASE_URL"

// innerVariable is the database of a process that guard.Outer has started. The other
// variable stays what the caller gave, for the command that it guards.
const innerVariable = "SCHEDLOCK_INNER_DATABASE_URL"

func main() {
	t := &tool{lookup: os.LookupEnv, in: os.Stdin, out: os.Stdout, errOut: os.Stderr,
		inner: guard.IsInner(os.Args)}
	t.untilSignal = func() (context.Context, context.CancelFunc) {
		return signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	}
	os.Exit(t.run(context.Background(), os.Args[1:]))
}

// A tool is one call of the program.
type tool struct {
	lookup func(string) (string, bool) // the environment
	in     io.Reader
	out    io.Writer
	errOut io.Writer
	lost   *lostOutput // what out has become
	flush  func()      // waits for errOut; nil: it has nothing left to write
	colour bool

	dsn     string
	inside  string // the schema of PostgreSQL; "": the first of the search_path
	form    string // of the output
	json    bool
	wide    bool // tables with all columns, uncut
	local   bool // times of this machine's zone
	timeout time.Duration
	noColor bool
	args    []string // of the command
	argv    []string // all of the program
	code    int      // its exit code, if there is no error
	inner   bool     // this is the process that guard.Outer has started
	// untilSignal makes the context of a command that a signal ends; nil: no signal does.
	untilSignal func() (context.Context, context.CancelFunc)

	remedies string // what keeps it apart from another app; "": it takes no lock

	reader keptReader
	schema int64 // version of the tables, as of the last look
}

// A usageError is an error in how the program was called.
type usageError struct {
	command string // behind "schedlock"; "": none, or not a known one
	message string
}

func wrong(format string, args ...any) error {
	return &usageError{message: fmt.Sprintf(format, args...)}
}

func (e *usageError) Error() string {
	return fmt.Sprintf("%s (see: schedlock help%s)", e.message,
		strings.TrimRight(" "+e.command, " "))
}

// run is main, returning the exit code. It is the one place where errors are
// shown.
func (t *tool) run(ctx context.Context, args []string) int {
	defer func() {
		if t.flush != nil {
			t.flush()
		}
	}()
	t.argv, t.timeout = args, defaultTimeout
	t.lost = &lostOutput{to: t.out}
	t.out = t.lost
	root := t.root()
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	t.reader.close()
	if t.lost.err != nil && (err == nil || errors.Is(err, t.lost.err)) { // a full disk, for example
		err = fmt.Errorf("what it found could not be written: %w", t.lost.err)
	}
	if err == nil {
		return t.code
	}
	text := plain(message.OneLine(t.ownRemedies(err.Error())))
	fmt.Fprintln(t.errOut, "schedlock:", text)
	if t.json || t.form == "json" {
		t.encodeWith("", errorJSON{text}) // in one line, as watch writes everything
	}
	var usage *usageError
	if errors.As(err, &usage) {
		return exitUsage
	}
	if failed := new(codeError); errors.As(err, &failed) {
		return failed.code
	}
	return exitUnknown
}

// A codeError has an exit code of its own.
type codeError struct {
	code int
	err  error
}

func (e *codeError) Error() string { return e.err.Error() }
func (e *codeError) Unwrap() error { return e.err }

// perform does what a command is for, once its flags are parsed.
func (t *tool) perform(ctx context.Context, cmd *cobra.Command, c *command, action action) error {
	t.json, t.wide = t.json || t.form == "json", t.form == "wide"
	name, flags := commandOf(cmd), cmd.Flags()
	switch {
	case c.args != anyProgram && len(t.args) > c.args:
		return wrong("%s does not take %s%s", name, t.shown(t.args[c.args]), parts(cmd))
	case c.args != anyProgram && slices.ContainsFunc(t.args, isAddress):
		return wrong("an argument looks like the address of a database: give that with --db")
	case !slices.Contains(outputs, t.form):
		return wrong("-o %s is none of %s", message.Shown(t.form),
			strings.Join(outputs[1:], " and "))
	case name == "migrate" && !flags.Changed("timeout"):
		t.timeout = migrateTimeout
	case t.timeout <= 0:
		return wrong("--timeout %v is not above 0", t.timeout)
	}
	if n, err := flags.GetInt("limit"); err == nil && n < 1 {
		return wrong("-n %v is not above 0", n)
	}
	if t.inner {
		t.dsn, _ = t.lookup(innerVariable)
	}
	if t.dsn == "" {
		t.dsn, _ = t.lookup(databaseVariable)
	}
	if err := t.checkDatabase(); err != nil && !c.withoutDatabase {
		return err
	}
	t.colour = t.wantsColour()
	// What guards a program catches signals itself. None may be caught before it does
	// that: it would be lost, and one that the caller wants ignored would not stay so.
	if t.untilSignal != nil && c.args != anyProgram {
		var stop context.CancelFunc
		ctx, stop = t.untilSignal()
		defer stop()
	}
	var err error
	t.code, err = action(ctx)
	return err
}

func (t *tool) checkDatabase() error {
	if t.dsn == "" {
		return wrong("the database is not named: give --db or set %s", databaseVariable)
	}
	if strings.TrimSpace(t.dsn) == "" {
		return wrong("--db %q is blank", t.dsn)
	}
	if err := checkDSN(t.dsn); err != nil {
		return wrong("--db: %v", err)
	}
	if err := t.checkInside(); err != nil {
		return wrong("%v", err)
	}
	return nil
}

// shown is an argument that is too much, unless it may be a part of the DSN.
func (t *tool) shown(arg string) string {
	return message.Argument(arg, append(t.args, t.dsn)...)
}

// asksForJSON finds --json, and -o json, behind a mistake, too.
func asksForJSON(args []string) bool {
	for i, arg := range args {
		switch arg {
		case "--json", "-ojson", "-o=json", "--output=json":
			return true
		case "-o", "--output":
			if i+1 < len(args) && args[i+1] == "json" {
				return true
			}
		}
	}
	return false
}
