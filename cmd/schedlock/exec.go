package main

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"slices"
	"time"

	"example.com/schedlock/cmd/schedlock/internal/guard"
	"example.com/schedlock/internal/names"
	"example.com/schedlock/internal/rules"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/named"
)

const execHelp = `  --name NAME       hold this named lock instead of the scheduler's
  --ttl 60s         the lock's TTL: how long others wait after a crash that
                    nothing proves
  --grace 10s       from SIGTERM to SIGKILL when the command has to stop; it
                    must fit between the renew deadline (3/4 of the TTL) and the
                    TTL, less 250 ms
  --restart WHEN    if the command ends by itself: never (default), on-failure,
                    or always. Another machine may have the lock in between
  --no-wait         if another holds the lock, exit with 75 at once
  --timeout 30s     or unless it was had within that time (default: wait for
                    ever)
  --once-per D      with --name: run at most once in D, on whichever machine
                    comes first; a run that fails counts, a command that cannot
                    be started does not
  --at-most D       with --once-per: after how long others take over from a
                    machine that died (default and minimum: D of --once-per);
                    the command has 3/4 of it
  --skip-ok         exit with 0 instead of 75, if another has the lock
  --pid-namespace   in a PID namespace of its own, so that nothing outlives exec
                    even if both of its processes are killed. The command has
                    other pids there, cannot signal processes outside, and sudo
                    fails unless exec runs as root
  -v, --verbose     log also who leads

It waits until it has the lock, runs the command, and gives the lock back when
the command and all that it has started have ended. It stops the command if the
lock is lost, if an operator hands it over (schedlock release), or on SIGTERM,
SIGINT, SIGHUP or SIGQUIT. Other signals are passed on. After a loss it waits
for the lock again.

The command's environment has SCHEDLOCK_NAME, SCHEDLOCK_KIND, SCHEDLOCK_TERM,
which is the fencing token, SCHEDLOCK_TOKEN and SCHEDLOCK_HOLDER. It migrates
the database, as an app does.

Examples:
  schedlock exec --db app.db -- python scheduler.py
  schedlock exec --db app.db --name nightly --once-per 23h -- ./backup.sh
`

// exitTemporary says that another holds the lock: EX_TEMPFAIL of sysexits.h.
const exitTemporary = 75

const (
	restartNever     = "never"
	restartOnFailure = "on-failure"
	restartAlways    = "always"
)

// An execution is one call of exec.
type execution struct {
	tool    *tool
	name    string // "": the scheduler's lock
	ttl     time.Duration
	grace   time.Duration
	restart string
	noWait  bool
	within  time.Duration // 0: for ever
	oncePer time.Duration
	atMost  time.Duration
	skipOK  bool
	verbose bool

	pidNamespace bool
	owner        driver.Owner // what the lock's row shows
}

func runCommand(t *tool, flags *flag.FlagSet) func(context.Context) (int, error) {
	x := &execution{tool: t}
	t.remedies = "give --name, or --schema on PostgreSQL, or another --db"
	flags.StringVar(&x.name, "name", "", "")
	flags.DurationVar(&x.ttl, "ttl", 0, "")
	flags.DurationVar(&x.grace, "grace", 0, "")
	flags.StringVar(&x.restart, "restart", restartNever, "")
	flags.BoolVar(&x.noWait, "no-wait", false, "")
	flags.DurationVar(&x.oncePer, "once-per", 0, "")
	flags.DurationVar(&x.atMost, "at-most", 0, "")
	flags.BoolVar(&x.skipOK, "skip-ok", false, "")
	flags.BoolVar(&x.pidNamespace, "pid-namespace", false, "")
	flags.BoolVar(&x.verbose, "verbose", false, "")
	flags.BoolVar(&x.verbose, "v", false, "")
	return func(ctx context.Context) (int, error) {
		if t.timeoutGiven || given(flags, "timeout") {
			x.within = t.timeout
		}
		if err := x.check(flags); err != nil {
			return 0, wrong("%v", err)
		}
		return x.run(ctx)
	}
}

// check returns what is wrong with the call, and fills in what follows from other
// flags.
func (x *execution) check(flags *flag.FlagSet) error {
	if len(x.tool.args) == 0 {
		return fmt.Errorf("the command is missing: schedlock exec [flags] -- COMMAND")
	}
	if !slices.Contains([]string{restartNever, restartOnFailure, restartAlways}, x.restart) {
		return fmt.Errorf("--restart %q is neither %s, %s nor %s", x.restart, restartNever,
			restartOnFailure, restartAlways)
	}
	if given(flags, "name") {
		if x.name == "" {
			return fmt.Errorf("--name is empty")
		}
		if err := names.Check("--name", x.name); err != nil {
			return err
		}
	}
	switch {
	case x.tool.json:
		return fmt.Errorf("--json: exec answers nothing, its output is that of the command")
	case x.noWait && x.within > 0:
		return fmt.Errorf("--no-wait and --timeout %v exclude each other", x.within)
	case x.skipOK && !x.noWait && x.within == 0 && x.oncePer == 0:
		return fmt.Errorf("--skip-ok needs --no-wait, --timeout or --once-per: " +
			"without them exec waits for ever")
	case given(flags, "once-per"):
		return x.checkTask(flags)
	case given(flags, "at-most"):
		return fmt.Errorf("--at-most %v needs --once-per", x.atMost)
	}
	return x.checkTimes(flags)
}

// checkTask is check for --once-per.
func (x *execution) checkTask(flags *flag.FlagSet) error {
	switch {
	case x.name == "":
		return fmt.Errorf("--once-per %v needs --name", x.oncePer)
	case x.within > 0:
		return fmt.Errorf("--once-per %v and --timeout %v exclude each other: it never waits",
			x.oncePer, x.within)
	case given(flags, "ttl"):
		return fmt.Errorf("--once-per %v and --ttl %v exclude each other: see --at-most",
			x.oncePer, x.ttl)
	case x.restart != restartNever:
		return fmt.Errorf("--once-per %v and --restart %s exclude each other: it runs once",
			x.oncePer, x.restart)
	}
	x.atMost = cmp.Or(x.atMost, x.oncePer)
	if err := named.CheckTask(x.oncePer, x.atMost); err != nil {
		return fmt.Errorf("--once-per %v, --at-most %v: %w", x.oncePer, x.atMost, err)
	}
	x.ttl = x.atMost
	return x.checkTimes(flags)
}

// checkTimes makes sure that the command has ended before another may run it.
func (x *execution) checkTimes(flags *flag.FlagSet) error {
	asked := given(flags, "ttl")
	if !asked {
		x.ttl = cmp.Or(x.ttl, rules.DefaultTTL)
	}
	trusted := x.trusted()
	room := x.ttl - trusted - guard.Slack
	switch {
	case asked && x.ttl <= 0:
		return fmt.Errorf("--ttl %v is not above 0", x.ttl)
	case asked && x.ttl > driver.MaxTTL:
		return fmt.Errorf("--ttl %v is above %v", x.ttl, driver.MaxTTL)
	case room <= 0:
		return fmt.Errorf("TTL %v is too short: between the renew deadline of %v and the TTL "+
			"there is no time to stop a command, which takes more than %v", x.ttl, trusted,
			guard.Slack)
	case !given(flags, "grace"):
		x.grace = min(10*time.Second, room)
	case x.grace < 0:
		return fmt.Errorf("--grace %v is below 0", x.grace)
	case x.grace > room:
		return fmt.Errorf("--grace %v does not fit: the lock is trusted for %v, and another may "+
			"have it after %v; less %v to kill what is left, at most %v remain", x.grace, trusted,
			x.ttl, guard.Slack, room)
	}
	return nil
}

// trusted is how long the holder trusts the lock: ¾ TTL for each kind.
func (x *execution) trusted() time.Duration {
	return (x.ttl * 3 / 4).Truncate(time.Millisecond)
}
