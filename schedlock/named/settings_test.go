package named_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/driver/namedlock"
	"example.com/schedlock/schedlock/memory"
	"example.com/schedlock/schedlock/named"
)

// env is an environment.
func env(vars ...string) func(string) (string, bool) {
	return func(name string) (string, bool) {
		for _, v := range vars {
			if value, ok := strings.CutPrefix(v, name+"="); ok {
				return value, true
			}
		}
		return "", false
	}
}

// elected is what the row of an election says that is made with these.
func elected(t *testing.T, name string, opts ...named.Option) named.Info {
	t.Helper()
	e, err := named.NewElection(memory.New().Named(), name,
		append([]named.Option{silent}, opts...)...)
	require.NoError(t, err)
	_, err = e.WaitForLeader(ctx)
	require.NoError(t, err)
	info, err := e.Leader(ctx)
	require.NoError(t, err)
	require.NoError(t, e.Resign(ctx))
	return *info
}

func TestSettingsFromTheEnvironment(t *testing.T) {
	t.Parallel()
	vars := env("APP_TTL=2m", "APP_MAX_PAUSE=2s", "APP_HOSTNAME=web-1", "APP_PID=7",
		"APP_NAME=chief", "OTHER_TTL=1ns")
	from := named.FromEnv("APP_", vars)
	info := elected(t, "", from)
	assert.Equal(t, named.Key{Kind: named.KindElection, Name: "chief"}, info.Key)
	assert.Equal(t, driver.Owner{PID: 7, Hostname: "web-1"}, info.Owner)
	assert.Greater(t, info.Left, time.Minute)
	assert.LessOrEqual(t, info.Left, 2*time.Minute)

	// Explicit ones win, whatever their order.
	ttl, owner := named.WithTTL(time.Hour), named.WithOwner(driver.Owner{PID: 8, Hostname: "h"})
	for _, opts := range [][]named.Option{{from, ttl, owner}, {ttl, owner, from}} {
		info := elected(t, "office", opts...)
		assert.Equal(t, "office", info.Name)
		assert.Equal(t, driver.Owner{PID: 8, Hostname: "h"}, info.Owner)
		assert.Greater(t, info.Left, 59*time.Minute)
	}

	// An empty one is none.
	info = elected(t, "office", named.FromEnv("APP_", env("APP_TTL=", "APP_PID=")))
	assert.LessOrEqual(t, info.Left, namedlock.DefaultTTL)
}

func TestSettingsFromTheProcess(t *testing.T) {
	t.Setenv("SCHEDLOCK_NAMED_TEST_NAME", "chief")
	assert.Equal(t, "chief", elected(t, "", named.FromEnv("SCHEDLOCK_NAMED_TEST_", nil)).Name)
}

func TestWrongSettingsAreNamed(t *testing.T) {
	t.Parallel()
	owner := func(host string) named.Option {
		return named.WithOwner(driver.Owner{PID: 7, Hostname: host})
	}
	for name, tc := range map[string]struct {
		opts []named.Option
		says []string
	}{
		"no durations": {[]named.Option{named.FromEnv("APP_",
			env("APP_TTL=5x", "APP_MAX_PAUSE=soon", "APP_PID=one"))}, []string{
			`APP_TTL="5x" is not a duration such as 30s or 1m30s`,
			`APP_MAX_PAUSE="soon" is not a duration`, `APP_PID="one" is not a whole number`}},
		"out of bounds": {[]named.Option{named.FromEnv("APP_",
			env("APP_TTL=25h", "APP_MAX_PAUSE=1ms", "APP_PID=0"))}, []string{
			`APP_TTL="25h": TTL 25h0m0s is above 24h0m0s`,
			`APP_MAX_PAUSE="1ms": pause 1ms is below 50ms`, `APP_PID="0": pid 0 is not above 0`}},
		"options": {[]named.Option{named.WithTTL(time.Millisecond), named.WithMaxPause(0),
			named.WithOwner(driver.Owner{})}, []string{
			"option WithTTL: TTL 1ms is below 40ms", "option WithMaxPause: pause 0s is below 50ms",
			"option WithOwner: pid 0 is not above 0", "option WithOwner: hostname is empty"}},
		"a hostname with NUL": {[]named.Option{owner("a\x00b")}, []string{
			`option WithOwner: hostname "a\x00b" is not UTF-8, or contains NUL`}},
		"a hostname that is not UTF-8": {[]named.Option{named.FromEnv("APP_",
			env("APP_HOSTNAME=a\xff"))}, []string{
			`APP_HOSTNAME="a\xff": hostname "a\xff" is not UTF-8`}},
		"a long hostname": {[]named.Option{owner(strings.Repeat("x", 201))}, []string{
			"option WithOwner: hostname has 201 bytes, 200 are allowed"}},
		"no whole milliseconds": {[]named.Option{named.WithTTL(time.Second + 1)},
			[]string{"option WithTTL: TTL 1.000000001s is not a whole number of milliseconds"}},
		"nothing": {[]named.Option{named.WithLogger(nil), named.FromEnv("", nil)},
			[]string{"option WithLogger: the logger is nil",
				"option FromEnv: the prefix is empty"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := named.New(memory.New().Named(), tc.opts...)
			_, electionErr := named.NewElection(memory.New().Named(), "office", tc.opts...)
			for _, says := range tc.says {
				require.ErrorContains(t, err, says)
				require.ErrorContains(t, electionErr, says)
			}
		})
	}
	_, err := named.New(nil)
	require.EqualError(t, err, "named locks: store is nil")
	_, err = named.NewElection(nil, "")
	require.EqualError(t, err, "election: store is nil\nthe name of a lock is empty")
	_, err = named.NewElection(memory.New().Named(), "",
		named.FromEnv("APP_", env("APP_NAME="+strings.Repeat("x", 201))))
	require.ErrorContains(t, err, `APP_NAME="xxx`)
	require.ErrorContains(t, err, "201 bytes, 200 are allowed")

	// What an option gives is not looked up, so it cannot be wrong.
	_, err = named.New(memory.New().Named(), named.FromEnv("APP_", env("APP_TTL=5x")),
		named.WithTTL(time.Second))
	require.NoError(t, err)
}
