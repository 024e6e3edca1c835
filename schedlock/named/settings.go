package named

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"time"

	"example.com/schedlock/internal/bounded"
	"example.com/schedlock/internal/names"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/driver/namedlock"
)

// Defaults and bounds.
const (
	defaultMaxPause = time.Second

	// maxTimeout bounds OncePer.
	maxTimeout = 366 * 24 * time.Hour

	minTTL   = 40 * time.Millisecond
	minPause = 50 * time.Millisecond
)

// An Option sets something on New or NewElection.
type Option func(*settings) error

// settings are what New and NewElection need. A setting that no option has
// given is looked up in the environment, if FromEnv says so.
type settings struct {
	name     setting[string] // of an election
	ttl      setting[time.Duration]
	maxPause setting[time.Duration]
	hostname setting[string]
	pid      setting[int]
	log      *slog.Logger
	prefix   string
	lookup   func(string) (string, bool) // nil: not from the environment
}

// A setting is a value, and for errors where it was given: "" if nowhere.
type setting[T any] struct {
	value T
	from  string
}

// WithTTL sets the TTL of locks and elections; default 30 s, 40 ms to 24 h, in
// whole milliseconds: nobody waits longer than a day for a dead holder. Holders
// trust a lock for ¾ TTL after the last time they took or extended it.
func WithTTL(d time.Duration) Option {
	return func(s *settings) error {
		s.ttl = setting[time.Duration]{d, "option WithTTL"}
		return nil
	}
}

// WithMaxPause sets how long one who waits for a lock pauses at the most
// between two looks; default 1 s, at least 50 ms. The first pause is at most
// 50 ms. Each is shortened by up to a half, at random.
func WithMaxPause(d time.Duration) Option {
	return func(s *settings) error {
		s.maxPause = setting[time.Duration]{d, "option WithMaxPause"}
		return nil
	}
}

// WithOwner sets the pid and the hostname that rows show; default this
// process's. The pid must be above 0. The hostname has 1 to 200 bytes of UTF-8 without
// control characters.
func WithOwner(o driver.Owner) Option {
	return func(s *settings) error {
		s.pid, s.hostname = setting[int]{o.PID, "option WithOwner"}, setting[string]{o.Hostname,
			"option WithOwner"}
		return nil
	}
}

// WithLogger sets the logger; default slog.Default(). Use
// slog.New(slog.DiscardHandler) for silence.
func WithLogger(log *slog.Logger) Option {
	return func(s *settings) error {
		if log == nil {
			return errors.New("option WithLogger: the logger is nil")
		}
		s.log = log
		return nil
	}
}

// FromEnv takes what no other option gives, whatever their order, from
// variables whose names begin with prefix: for "APP_LEADER_"
//
//	APP_LEADER_TTL        a duration such as 30s: WithTTL
//	APP_LEADER_MAX_PAUSE  a duration: WithMaxPause
//	APP_LEADER_HOSTNAME   the hostname that rows show (HOSTNAME of WithOwner)
//	APP_LEADER_PID        the pid that rows show
//	APP_LEADER_NAME       the name of an election, where NewElection is given ""
//
// A variable that is empty counts as not set. lookup is os.LookupEnv; nil means
// that. The errors of New and NewElection name each variable whose value is
// wrong, and the value.
func FromEnv(prefix string, lookup func(string) (string, bool)) Option {
	return func(s *settings) error {
		if prefix == "" {
			return errors.New("option FromEnv: the prefix is empty")
		}
		if lookup == nil {
			lookup = os.LookupEnv
		}
		s.prefix, s.lookup = prefix, lookup
		return nil
	}
}

// newSettings applies options, the environment and the defaults, in this order
// of precedence, and names everything that is wrong.
func newSettings(opts []Option) (*settings, error) {
	s := &settings{log: slog.Default()}
	var errs []error
	for _, opt := range opts {
		errs = append(errs, opt(s))
	}
	s.log = bounded.Log(s.log)
	if s.lookup != nil {
		errs = append(errs,
			fromEnv(s, "TTL", &s.ttl, duration),
			fromEnv(s, "MAX_PAUSE", &s.maxPause, duration),
			fromEnv(s, "HOSTNAME", &s.hostname, text),
			fromEnv(s, "PID", &s.pid, wholeNumber),
			fromEnv(s, "NAME", &s.name, text))
	}
	if s.ttl.from != "" {
		errs = append(errs, prefixed(s.ttl.from, checkTTL("TTL", s.ttl.value, namedlock.MaxTTL)))
	} else {
		s.ttl.value = namedlock.DefaultTTL
	}
	if s.maxPause.from == "" {
		s.maxPause.value = defaultMaxPause
	} else if s.maxPause.value < minPause {
		errs = append(errs, fmt.Errorf("%s: pause %v is below %v",
			s.maxPause.from, s.maxPause.value, minPause))
	}
	if s.pid.from == "" {
		s.pid.value = os.Getpid()
	} else if s.pid.value <= 0 {
		errs = append(errs, fmt.Errorf("%s: pid %d is not above 0", s.pid.from, s.pid.value))
	}
	switch {
	case s.hostname.from == "":
		host, _ := os.Hostname()
		s.hostname.value = cmp.Or(host, "unknown")
	case s.hostname.value == "":
		errs = append(errs, fmt.Errorf("%s: hostname is empty", s.hostname.from))
	default:
		errs = append(errs,
			prefixed(s.hostname.from, names.Check("hostname", s.hostname.value)))
	}
	return s, errors.Join(errs...)
}

// fromEnv reads one setting that no option has given.
func fromEnv[T any](s *settings, name string, dest *setting[T],
	parse func(string) (T, string)) error {
	name = s.prefix + name
	value, ok := s.lookup(name)
	if dest.from != "" || !ok || value == "" {
		return nil
	}
	parsed, wanted := parse(value)
	if wanted != "" {
		return fmt.Errorf("%s=%q is not %s", name, value, wanted)
	}
	*dest = setting[T]{parsed, name + "=" + strconv.Quote(value)}
	return nil
}

// Each parser returns what was wanted instead, "" if the value is right.

func text(value string) (string, string) { return value, "" }

func duration(value string) (time.Duration, string) {
	d, err := time.ParseDuration(value)
	if err != nil {
		return 0, "a duration such as 30s or 1m30s"
	}
	return d, ""
}

func wholeNumber(value string) (int, string) {
	n, err := strconv.Atoi(value)
	if err != nil {
		return 0, "a whole number"
	}
	return n, ""
}

func checkTTL(what string, d, most time.Duration) error {
	switch {
	case d < minTTL:
		return fmt.Errorf("%s %v is below %v", what, d, minTTL)
	case d > most:
		return fmt.Errorf("%s %v is above %v", what, d, most)
	case d%time.Millisecond != 0:
		return fmt.Errorf("%s %v is not a whole number of milliseconds", what, d)
	}
	return nil
}

func prefixed(prefix string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", prefix, err)
}

func (s *settings) owner() driver.Owner {
	return driver.Owner{PID: s.pid.value, Hostname: s.hostname.value}
}
