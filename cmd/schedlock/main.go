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
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

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
	json    bool
	wide    bool // tables with all columns, uncut
	local   bool // times of this machine's zone
	timeout time.Duration
	noColor bool
	args    []string // of the command
	argv    []string // all of the program
	inner   bool     // this is the process that guard.Outer has started
	// untilSignal makes the context of a command that a signal ends; nil: no signal does.
	untilSignal func() (context.Context, context.CancelFunc)

	remedies     string // what keeps it apart from another app; "": it takes no lock
	timeoutGiven bool   // in front of the command

	reader keptReader
	schema int64 // version of the tables, as of the last look
}

// A command declares its flags and returns what to do once they are parsed,
// which returns the exit code, or an error.
type command struct {
	name    string
	args    string // as help shows them
	maxArgs int    // anyProgram: they are a program and its own arguments
	summary string
	help    string
	setUp   func(*tool, *flag.FlagSet) func(context.Context) (int, error)
}

const anyProgram = -1

var commands []command

func init() { // help refers to the table
	commands = []command{
		{"status", "", 0, "who leads, since when, and whether it lives", statusHelp, status},
		{"watch", "", 0, "one line for every change, until Ctrl-C", watchHelp, watch},
		{"history", "", 0, "the latest terms, and how they ended", historyHelp, history},
		{"runs", "", 0, "the latest runs", runsHelp, runs},
		{"jobs", "", 0, "the jobs: next tick, last success, failures, pauses", jobsHelp, jobs},
		{"audit", "[JOB]", 1, "who has ordered what, and why", auditHelp, audit},
		{"replicas", "", 0, "the replicas that tell of themselves", replicasHelp, replicas},
		{"release", "", 0, "tell the leader to leave, so that another replica leads", releaseHelp,
			release},
		{"pause", "JOB|--all", 1, "keep a job, or every job, from starting", pauseHelp, pause},
		{"resume", "JOB|--all", 1, "end the pause of a job, or of the whole scheduler", resumeHelp,
			resume},
		{"run", "JOB", 1, "ask the leader to run a job now", runHelp, runJob},
		{"reset-cursor", "JOB", 1, "let a job whose cursor is wrong go on from now", resetHelp,
			resetCursor},
		{"locks", "[release KIND NAME]", 3, "who holds which named lock, and an order to leave",
			locksHelp, locks},
		{"queue", "[count|list|requeue|prune]", 1000, "the tasks of queues", queueHelp, queues},
		{"exec", "-- COMMAND", anyProgram, "run a command while this machine holds the lock",
			execHelp, runCommand},
		{"fence", "", 0, "the SQL that guards a transaction of such a command", fenceHelp, fence},
		{"lead", "", 0, "a sidecar: campaign for the lock, tell over HTTP who leads", leadHelp,
			sidecars},
		{"migrate", "", 0, "bring the tables up to date", migrateHelp, migrate},
		{"doctor", "", 0, "look for what is wrong with the set-up", doctorHelp, examine},
		{"completion", "bash|zsh|fish", 1000, "a script that completes commands and flags",
			completionHelp, completion},
		{"man", "", 0, "the manual page", manHelp, man},
		{"version", "", 0, "of this program, and of the tables it knows", "", version},
		{"help", "[COMMAND]", 1, "help for a command", "", nil},
	}
}

// withoutDatabase are the commands that need none.
var withoutDatabase = []string{"completion", "man", "version"}

func findCommand(name string) *command {
	for i := range commands {
		if commands[i].name == name {
			return &commands[i]
		}
	}
	return nil
}

// A usageError is an error in how the program was called.
type usageError struct {
	command string // "": not known, or not yet
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
	code, err := t.do(ctx, args)
	t.reader.close()
	if err == nil && t.lost.err != nil { // a disk that is full, for example
		err = fmt.Errorf("what it found could not be written: %w", t.lost.err)
	}
	if err == nil {
		return code
	}
	text := plain(message.OneLine(t.ownRemedies(err.Error())))
	fmt.Fprintln(t.errOut, "schedlock:", text)
	if t.json {
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

func (t *tool) do(ctx context.Context, args []string) (int, error) {
	global := t.flagSet("")
	asked := global.Bool("version", false, "")
	if err := global.Parse(args); err != nil {
		return t.flagError(nil, global, args, err)
	}
	args = global.Args()
	if *asked {
		args = append([]string{"version"}, args...)
	}
	if len(args) == 0 {
		t.usage(t.errOut)
		return exitUsage, wrong("there is no command")
	}
	cmd := findCommand(args[0])
	switch {
	case cmd == nil:
		t.json = t.json || asksForJSON(args)
		return 0, t.unknown(args[0])
	case cmd.name == "help":
		return t.help(args[1:])
	}
	if cmd.name == "migrate" && !given(global, "timeout") {
		t.timeout = migrateTimeout
	}
	t.timeoutGiven = given(global, "timeout")
	code, err := t.perform(ctx, cmd, args[1:])
	if usage, ok := errors.AsType[*usageError](err); ok {
		usage.command = cmd.name
	}
	return code, err
}

// perform parses what stands behind the name of a command, and does it.
func (t *tool) perform(ctx context.Context, cmd *command, args []string) (int, error) {
	flags := t.flagSet(cmd.name)
	action := cmd.setUp(t, flags)
	parse := t.parse
	if cmd.maxArgs == anyProgram {
		parse = t.parseUpToArguments
	}
	if err := parse(flags, args); err != nil {
		return t.flagError(cmd, flags, args, err)
	}
	switch {
	case cmd.maxArgs == anyProgram:
	case len(t.args) > cmd.maxArgs:
		return 0, wrong("%s does not take %s", cmd.name, t.shown(t.args[cmd.maxArgs]))
	case cmd.name != "completion" && slices.ContainsFunc(t.args, isAddress):
		return 0, wrong("an argument looks like the address of a database: give that with --db")
	}
	if t.timeout <= 0 {
		return 0, wrong("--timeout %v is not above 0", t.timeout)
	}
	if n := flags.Lookup("n"); n != nil && n.Value.(flag.Getter).Get().(int) < 1 {
		return 0, wrong("-n %v is not above 0", n.Value)
	}
	if t.inner {
		t.dsn, _ = t.lookup(innerVariable)
	}
	if t.dsn == "" {
		t.dsn, _ = t.lookup(databaseVariable)
	}
	if !slices.Contains(withoutDatabase, cmd.name) {
		if t.dsn == "" {
			return 0, wrong("the database is not named: give --db or set %s", databaseVariable)
		}
		if strings.TrimSpace(t.dsn) == "" {
			return 0, wrong("--db %q is blank", t.dsn)
		}
		if err := checkDSN(t.dsn); err != nil {
			return 0, wrong("--db: %v", err)
		}
		if err := t.checkInside(); err != nil {
			return 0, wrong("%v", err)
		}
	}
	t.colour = t.wantsColour()
	// What guards a program catches signals itself. None may be caught before it does
	// that: it would be lost.
	if guards := cmd.maxArgs == anyProgram && !t.inner; t.untilSignal != nil && !guards {
		var stop context.CancelFunc
		ctx, stop = t.untilSignal()
		defer stop()
	}
	return action(ctx)
}

// flagSet has the flags of every command. Those that were parsed before keep
// their values.
func (t *tool) flagSet(name string) *flag.FlagSet {
	flags := flag.NewFlagSet(name, flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.Usage = func() {}
	flags.StringVar(&t.dsn, "db", t.dsn, "")
	flags.StringVar(&t.inside, "schema", t.inside, "")
	flags.BoolVar(&t.json, "json", t.json, "")
	flags.Func("o", "", func(form string) error {
		if form != "json" && form != "wide" {
			return errors.New("it is none of json and wide")
		}
		t.json, t.wide = t.json || form == "json", t.wide || form == "wide"
		return nil
	})
	flags.BoolVar(&t.local, "local", t.local, "")
	flags.DurationVar(&t.timeout, "timeout", t.timeout, "")
	flags.BoolVar(&t.noColor, "no-color", t.noColor, "")
	return flags
}

// given says whether a flag was set.
func given(flags *flag.FlagSet, name string) (was bool) {
	flags.Visit(func(f *flag.Flag) { was = was || f.Name == name })
	return was
}

// checkPart returns an error if a flag was given that another part of the command reads:
// parts says which. It would change nothing.
func checkPart(flags *flag.FlagSet, part string, parts map[string]string) (err error) {
	flags.Visit(func(f *flag.Flag) {
		if of := parts[f.Name]; of != "" && of != part {
			err = wrong("%s is a flag of %s %s", spelled(f.Name), flags.Name(), of)
		}
	})
	return err
}

// spelled is a flag as help shows it.
func spelled(name string) string {
	if len(name) == 1 {
		return "-" + name
	}
	return "--" + name
}

// parse lets flags stand behind arguments too; after "--" there are only
// arguments.
func (t *tool) parse(flags *flag.FlagSet, args []string) error {
	for {
		if err := flags.Parse(args); err != nil {
			return err
		}
		rest := flags.Args()
		if parsed := len(args) - len(rest); len(rest) == 0 || parsed > 0 && args[parsed-1] == "--" {
			t.args = append(t.args, rest...)
			return nil
		}
		t.args = append(t.args, rest[0])
		args = rest[1:]
	}
}

// parseUpToArguments is parse for a command whose arguments have flags of their own.
func (t *tool) parseUpToArguments(flags *flag.FlagSet, args []string) error {
	err := flags.Parse(args)
	t.args = flags.Args()
	return err
}

// flagError answers what was parsed before a command, nil, or behind it.
func (t *tool) flagError(cmd *command, flags *flag.FlagSet, args []string,
	err error) (int, error) {
	if errors.Is(err, flag.ErrHelp) {
		return t.helpFor(cmd)
	}
	t.json = t.json || asksForJSON(args)
	text := message.FlagError(flags, err, append(args, t.dsn)...)
	return 0, wrong("%s%s", text, meantFlag(text, flags))
}

// shown is an argument that is too much, unless it may be a part of the DSN.
func (t *tool) shown(arg string) string {
	return message.Argument(arg, append(t.args, t.dsn)...)
}

// asksForJSON finds --json, and -o json, behind a mistake, too.
func asksForJSON(args []string) bool {
	for i, arg := range args {
		switch name := strings.TrimPrefix(arg, "-"); name {
		case "-json", "json", "o=json", "-o=json":
			return name != arg
		case "o", "-o":
			if i+1 < len(args) && args[i+1] == "json" {
				return true
			}
		}
	}
	return false
}
