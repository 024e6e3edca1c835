package app

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"example.com/schedlock/internal/flags"
	"example.com/schedlock/internal/hosts"
	"example.com/schedlock/internal/message"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/startup"
	"example.com/schedlock/tasks"
)

const (
	modeStandby = "standby"
	modeStrict  = "strict"
)

// A Config is what the environment and the flags say; see LoadConfig.
type Config struct {
	addr            string
	hosts           hosts.List
	databaseURL     string
	lockDatabaseURL string
	mode            string // modeStandby or modeStrict
	timing          driver.Timing
	workers         int
	tick            time.Duration
	jobDuration     time.Duration
	tickCatchUp     tasks.CatchUp
	tickOverlap     tasks.Overlap
	tickAttempts    int
	tickAtMostOnce  bool
	tickTimeout     time.Duration
	tickFail        int
	control         bool
	presence        bool
	drain           time.Duration
	blocklists      string
	logFormat       string
}

// errVersion is the answer to --version, as pflag.ErrHelp is to -h.
var errVersion = errors.New("the version is asked for")

const envPrefix = "DEMOAPP_"

// variable is the environment variable of a flag: lock-ttl is
// DEMOAPP_LOCK_TTL.
func variable(flagName string) string {
	return envPrefix + strings.ToUpper(strings.ReplaceAll(flagName, "-", "_"))
}

// LoadConfig reads the environment, then the flags, which override it. The
// error names every value that is wrong, its variable, and the rule, on one
// line.
func LoadConfig(args []string, getenv func(string) (string, bool),
	usage io.Writer) (Config, error) {
	c := Config{timing: driver.Timing{TTL: 60 * time.Second, HeartbeatInterval: 10 * time.Second}}
	var names, catchUp, overlap string
	fs := pflag.NewFlagSet("demoapp", pflag.ContinueOnError)
	fs.StringVar(&c.addr, "addr", "127.0.0.1:8080", "listen address")
	fs.StringVar(&names, "hosts", "",
		"host names that it answers besides the loopback ones and its listen address, "+
			"separated by commas; * is any")
	fs.StringVar(&c.databaseURL, "database-url", "file:demoapp.db",
		"the app's database: a file: URI, a postgres:// URL or a mysql:// URL")
	fs.StringVar(&c.lockDatabaseURL, "lock-database-url", "",
		"a database of its own for the lock (default: the app's)")
	fs.StringVar(&c.mode, "mode", modeStandby,
		"standby, or strict: refuse to start while another replica holds the lock")
	fs.DurationVar(&c.timing.TTL, "lock-ttl", c.timing.TTL, "TTL of the lock")
	fs.DurationVar(&c.timing.HeartbeatInterval, "lock-heartbeat", c.timing.HeartbeatInterval,
		"heartbeat interval of the lock")
	fs.IntVar(&c.workers, "workers", 0,
		"number of workers; in strict mode more than 1 is refused (0: not said)")
	fs.DurationVar(&c.tick, "tick", time.Second, "interval of the tick job")
	fs.DurationVar(&c.jobDuration, "job-duration", 0, "how long a run of the tick job takes")
	fs.StringVar(&catchUp, "tick-catchup", "latest",
		"what happens with ticks that were missed: "+
			"latest, skip, or the number of the newest ones that are run")
	fs.StringVar(&overlap, "tick-overlap", "skip",
		"what happens with a tick that is due while the run before has not ended: "+
			"skip, queue or allow")
	fs.IntVar(&c.tickAttempts, "tick-attempts", 1, "how often a tick that fails is started in all")
	fs.BoolVar(&c.tickAtMostOnce, "tick-at-most-once", false,
		"never start a tick a second time, also if its leader dies")
	fs.DurationVar(&c.tickTimeout, "tick-timeout", 0,
		"how long a run of the tick job may take (0: any time)")
	fs.IntVar(&c.tickFail, "tick-fail", 0,
		"how many attempts of each tick fail, for trying out retries")
	fs.BoolVar(&c.control, "control", false,
		"let everybody who can reach the address run, pause and resume jobs")
	fs.BoolVar(&c.presence, "presence", false,
		"tell of this replica in the lock's database, so that the page counts the standbys")
	fs.DurationVar(&c.drain, "drain", 20*time.Second, "how long a shutdown waits for running jobs")
	fs.StringVar(&c.blocklists, "blocklists", "./blocklists",
		"folder of block lists; if it does not exist, the built-in samples are used")
	fs.StringVar(&c.logFormat, "log", "text", "log format: text or json")

	var errs []error
	fs.VisitAll(func(f *pflag.Flag) {
		f.Usage += " [" + variable(f.Name) + "]"
		value, ok := getenv(variable(f.Name))
		if !ok || value == "" {
			return
		}
		if fs.Set(f.Name, value) != nil {
			errs = append(errs, fmt.Errorf("%s=%s is not %s",
				variable(f.Name), message.Shown(value), flags.Wanted(f)))
			_ = fs.Set(f.Name, f.DefValue) // so that nothing else is said of it
		}
	})
	asked := fs.Bool("version", false, "say the version, and do nothing else") // has no variable
	// of --help; an error is returned without it
	fs.SetOutput(usage)
	if err := fs.Parse(args); errors.Is(err, pflag.ErrHelp) {
		return c, err
	} else if err != nil {
		return c, errors.New(flags.Explain(err,
			append(args, c.databaseURL, c.lockDatabaseURL)...))
	}
	if *asked {
		return c, errVersion
	}
	if rest := fs.Args(); len(rest) > 0 {
		shown := message.Argument(rest[0], append(rest, c.databaseURL, c.lockDatabaseURL)...)
		errs = append(errs, fmt.Errorf("unexpected argument %s", shown))
	}
	if c.lockDatabaseURL == "" {
		c.lockDatabaseURL = c.databaseURL
	}
	c.timing.RenewDeadline = (c.timing.TTL * 3 / 4).Truncate(time.Millisecond)
	errs = append(errs, c.setHosts(names))
	errs = append(errs, c.setPolicies(catchUp, overlap)...)
	errs = append(errs, c.check()...)
	if err := errors.Join(errs...); err != nil {
		return c, errors.New(strings.ReplaceAll(err.Error(), "\n", "; "))
	}
	return c, nil
}

// setHosts reads the names that are answered: those that are given, and the
// listen address.
func (c *Config) setHosts(names string) (err error) {
	var list []string
	if names != "" {
		list = strings.Split(names, ",")
	}
	if c.hosts, err = hosts.New(list...); err != nil {
		return wrong("hosts",
			"%q: write host names or addresses, separated by commas, or * for any", names)
	}
	if host, _, err := net.SplitHostPort(c.addr); err == nil && host != "" {
		if with, err := hosts.New(append(list, host)...); err == nil {
			c.hosts = with
		}
	}
	return nil
}

// The numbers that package tasks allows.
const (
	maxCatchUp  = 1000
	maxAttempts = 1000
)

var overlaps = map[string]tasks.Overlap{"skip": tasks.OverlapSkip, "queue": tasks.OverlapQueue,
	"allow": tasks.OverlapAllow}

// setPolicies reads the policies of the tick job that are words.
func (c *Config) setPolicies(catchUp, overlap string) (errs []error) {
	switch n, err := strconv.Atoi(catchUp); {
	case catchUp == "latest":
		c.tickCatchUp = tasks.Latest
	case catchUp == "skip":
		c.tickCatchUp = tasks.Skip
	case err == nil && 1 <= n && n <= maxCatchUp:
		c.tickCatchUp = tasks.All(n)
	default:
		errs = append(errs, wrong("tick-catchup",
			"%q is neither %q nor %q nor a number from 1 to %d", catchUp, "latest", "skip",
			maxCatchUp))
	}
	var ok bool
	if c.tickOverlap, ok = overlaps[overlap]; !ok {
		errs = append(errs, wrong("tick-overlap", "%q is neither %q nor %q nor %q",
			overlap, "skip", "queue", "allow"))
	}
	return errs
}

// wrong is the error of a flag whose value breaks a rule. It does not show the URL
// of a database, which was given for another flag.
func wrong(name, format string, args ...any) error {
	for i, arg := range args {
		if value, ok := arg.(string); ok && !message.Harmless(value) {
			args[i] = "…"
		}
	}
	return fmt.Errorf(variable(name)+"="+format, args...)
}

func (c Config) check() (errs []error) {
	bad := func(name, format string, args ...any) {
		errs = append(errs, wrong(name, format, args...))
	}
	if _, port, err := net.SplitHostPort(c.addr); err != nil {
		why := "it cannot be taken apart"
		if parts, ok := errors.AsType[*net.AddrError](err); ok {
			why = parts.Err
		}
		bad("addr", "%q is not host:port: %s", c.addr, why)
	} else if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		if !message.Harmless(c.addr) {
			port = "…"
		}
		bad("addr", "%q: port %q is not a number from 0 to 65535", c.addr, port)
	}
	urls := []struct{ name, url string }{{"database-url", c.databaseURL},
		{"lock-database-url", c.lockDatabaseURL}}
	if c.lockDatabaseURL == c.databaseURL {
		urls = urls[:1]
	}
	for _, db := range urls {
		if err := checkURL(db.url); err != nil {
			bad(db.name, "%w", err)
		}
	}
	switch {
	case c.mode != modeStandby && c.mode != modeStrict:
		bad("mode", "%q is neither %q nor %q", c.mode, modeStandby, modeStrict)
	case c.mode == modeStrict && c.workers > 1:
		bad("workers", "%d: %w: run one worker, or set %s=%s", c.workers, startup.ErrTooManyWorkers,
			variable("mode"), modeStandby)
	}
	if c.workers < 0 {
		bad("workers", "%d is below 0", c.workers)
	}
	if err := c.timing.Validate(); err != nil {
		bad("lock-ttl", "%v, %s=%v: %w", c.timing.TTL, variable("lock-heartbeat"),
			c.timing.HeartbeatInterval, err)
	}
	if err := tasks.Every(c.tick).ForJob("tick").Validate(); err != nil {
		bad("tick", "%v: %w", c.tick, err)
	}
	if c.jobDuration < 0 {
		bad("job-duration", "%v is below 0", c.jobDuration)
	}
	if c.tickAttempts < 1 || c.tickAttempts > maxAttempts {
		bad("tick-attempts", "%d is not a number from 1 to %d", c.tickAttempts, maxAttempts)
	} else if c.tickAttempts > 1 && c.tickAtMostOnce {
		bad("tick-attempts", "%d, but %s=true: an attempt is never repeated then", c.tickAttempts,
			variable("tick-at-most-once"))
	}
	if c.tickTimeout < 0 {
		bad("tick-timeout", "%v is below 0", c.tickTimeout)
	}
	if c.tickFail < 0 {
		bad("tick-fail", "%d is below 0", c.tickFail)
	}
	if c.drain <= 0 {
		bad("drain", "%v is not above 0", c.drain)
	}
	if info, err := os.Stat(c.blocklists); err == nil && !info.IsDir() {
		bad("blocklists", "%q is not a folder", c.blocklists)
	}
	if c.logFormat != "text" && c.logFormat != "json" {
		bad("log", "%q is neither %q nor %q", c.logFormat, "text", "json")
	}
	return errs
}
