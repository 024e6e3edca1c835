package startup

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"example.com/schedlock/internal/message"
	"example.com/schedlock/schedlock"
)

// The variables of ConfigFromEnv.
const (
	envTTL       = "SCHEDLOCK_TTL"
	envHeartbeat = "SCHEDLOCK_HEARTBEAT"
	envMode      = "SCHEDLOCK_MODE"
)

// ConfigFromEnv returns cfg with what the environment says, which overrides what
// cfg says:
//
//	SCHEDLOCK_TTL        a duration such as 60s: schedlock.WithTTL
//	SCHEDLOCK_HEARTBEAT  a duration such as 10s: schedlock.WithHeartbeatInterval
//	SCHEDLOCK_MODE       strict, or standby: Config.Strict
//
// SCHEDLOCK_TTL alone is enough: the heartbeat interval follows it. A variable
// that is empty counts as not set. The error names each variable that is wrong,
// its value, and the rule. What else is wrong with cfg is said by NewApp.
func ConfigFromEnv(cfg Config) (Config, error) {
	var errs []error
	var given []string // the periods, as errors name them
	lock := cfg.Lock[:len(cfg.Lock):len(cfg.Lock)]
	for _, period := range []struct {
		name   string
		option func(time.Duration) schedlock.Option
	}{{envTTL, schedlock.WithTTL}, {envHeartbeat, schedlock.WithHeartbeatInterval}} {
		value := os.Getenv(period.name)
		if value == "" {
			continue
		}
		d, err := time.ParseDuration(value)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s=%s is not a duration such as 60s or 1m30s",
				period.name, message.Shown(value)))
			continue
		}
		given = append(given, fmt.Sprintf("%s=%v", period.name, d))
		lock = append(lock, period.option(d))
	}
	if len(errs) == 0 && len(given) > 0 {
		// Else that is what is wrong.
		if _, err := schedlock.New(noStore{}, cfg.Lock...); err == nil {
			if _, err := schedlock.New(noStore{}, lock...); err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", strings.Join(given, ", "), err))
			}
		}
	}
	switch value := os.Getenv(envMode); value {
	case "":
	case "standby":
		cfg.Strict = false
	case "strict":
		cfg.Strict = true
	default:
		errs = append(errs, fmt.Errorf(`%s=%s is neither "standby" nor "strict"`, envMode,
			message.Shown(value)))
	}
	cfg.Lock = lock
	return cfg, errors.Join(errs...)
}
