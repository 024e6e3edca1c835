package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/pflag"

	"example.com/schedlock/cmd/schedlock/internal/guard"
	"example.com/schedlock/internal/names"
	"example.com/schedlock/internal/rules"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/named"
)

const execHelp = `It waits until it has the lock, at most for --timeout if that is given, runs the
command, and gives the lock back when the command and all that it has started
have ended. It stops the command if the lock is lost, if an operator hands it
over (schedlock release), or on SIGTERM, SIGINT, SIGHUP or SIGQUIT. Other
signals are passed on. After a loss it waits for the lock again.

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
	flags   *pflag.FlagSet
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

func runCommand(t *tool, flags *pflag.FlagSet) func(context.Context) (int, error) {
	x := &execution{tool: t, flags: flags}
	flags.StringVar(&x.name, "name", "", "hold the named lock `NAME` instead of the scheduler's")
	flags.DurationVar(&x.ttl, "ttl", rules.DefaultTTL,
		"the lock's TTL: how long others wait after a crash that nothing proves")
	flags.DurationVar(&x.grace, "grace", 10*time.Second, "from SIGTERM to SIGKILL when the "+
		"command has to stop; it must fit between the renew deadline (3/4 of the TTL) and the "+
		"TTL, less 250 ms")
	choice(flags, &x.restart, "restart", restartNever, "if the command ends by itself; another "+
		"machine may have the lock in between", restartNever, restartOnFailure, restartAlways)
	flags.BoolVar(&x.noWait, "no-wait", false, "if another holds the lock, exit with 75 at once")
	flags.DurationVar(&x.oncePer, "once-per", 0, "with --name: run at most once in `D`, on "+
		"whichever machine comes first; a run that fails counts, a command that cannot be "+
		"started does not")
	flags.DurationVar(&x.atMost, "at-most", 0, "with --once-per: after how long others take over "+
		"from a machine that died (default and minimum: `D` of --once-per); the command has 3/4 "+
		"of it")
	flags.BoolVar(&x.skipOK, "skip-ok", false, "exit with 0 instead of 75, if another has the lock")
	flags.BoolVar(&x.pidNamespace, "pid-namespace", false, "in a PID namespace of its own, so "+
		"that nothing outlives exec even if both of its processes are killed. The command has "+
		"other pids there, cannot signal processes outside, and sudo fails unless exec runs as "+
		"root")
	flags.BoolVarP(&x.verbose, "verbose", "v", false, "log also who leads")
	return func(ctx context.Context) (int, error) {
		t.remedies = "give --name, or --schema on PostgreSQL, or another --db"
		if flags.Changed("timeout") {
			x.within = t.timeout
		}
		if err := x.check(); err != nil {
			return 0, wrong("%v", err)
		}
		return x.run(ctx)
	}
}

// check returns what is wrong with the call, and fills in what follows from other
// flags.
func (x *execution) check() error {
	if len(x.tool.args) == 0 {
		return fmt.Errorf("the command is missing: schedlock exec [flags] -- COMMAND")
	}
	if !slices.Contains([]string{restartNever, restartOnFailure, restartAlways}, x.restart) {
		return fmt.Errorf("--restart %q is neither %s, %s nor %s", x.restart, restartNever,
			restartOnFailure, restartAlways)
	}
	if x.flags.Changed("name") {
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
	case x.flags.Changed("once-per"):
		return x.checkTask()
	case x.flags.Changed("at-most"):
		return fmt.Errorf("--at-most %v needs --once-per", x.atMost)
	}
	return x.checkTimes()
}

// checkTask is check for --once-per.
func (x *execution) checkTask() error {
	switch {
	case x.name == "":
		return fmt.Errorf("--once-per %v needs --name", x.oncePer)
	case x.within > 0:
		return fmt.Errorf("--once-per %v and --timeout %v exclude each other: it never waits",
			x.oncePer, x.within)
	case x.flags.Changed("ttl"):
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
	return x.checkTimes()
}

// checkTimes makes sure that the command has ended before another may run it.
func (x *execution) checkTimes() error {
	asked := x.flags.Changed("ttl")
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
	case !x.flags.Changed("grace"):
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
