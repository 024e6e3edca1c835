package startup_test

import (
	"fmt"
	"log"
	"log/slog"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/sqlite"
	"example.com/schedlock/startup"
)

// setEnv sets what is given as name, value, …, and nothing else.
func setEnv(t *testing.T, env ...string) {
	t.Helper()
	for _, name := range []string{"SCHEDLOCK_TTL", "SCHEDLOCK_HEARTBEAT", "SCHEDLOCK_MODE"} {
		t.Setenv(name, "") // as if it were not set
	}
	for i := 0; i < len(env); i += 2 {
		t.Setenv(env[i], env[i+1])
	}
}

func TestTheEnvironmentOverridesWhatTheCodeSays(t *testing.T) {
	code := startup.Config{Lock: []schedlock.Option{schedlock.WithTTL(2 * time.Minute)},
		Strict: true}
	for name, tc := range map[string]struct {
		env            []string
		cfg            startup.Config
		ttl, heartbeat time.Duration
		strict         bool
	}{
		"nothing is set": {nil, code, 2 * time.Minute, 10 * time.Second, true},
		"nothing is said at all": {nil, startup.Config{}, time.Minute, 10 * time.Second,
			false},
		"TTL alone is enough": {[]string{"SCHEDLOCK_TTL", "15s"}, code, 15 * time.Second,
			2500 * time.Millisecond, true},
		"heartbeat": {[]string{"SCHEDLOCK_HEARTBEAT", "5s"}, code, 2 * time.Minute,
			5 * time.Second, true},
		"a heartbeat of the code": {[]string{"SCHEDLOCK_HEARTBEAT", "30s"}, code, 2 * time.Minute,
			30 * time.Second, true},
		"standby": {[]string{"SCHEDLOCK_MODE", "standby"}, code, 2 * time.Minute,
			10 * time.Second, false},
		"all": {[]string{"SCHEDLOCK_TTL", "1m30s", "SCHEDLOCK_HEARTBEAT", "3s", "SCHEDLOCK_MODE",
			"strict"}, startup.Config{},
			90 * time.Second, 3 * time.Second, true},
	} {
		t.Run(name, func(t *testing.T) {
			setEnv(t, tc.env...)
			tc.cfg.Open, tc.cfg.Log = newDatabase(&diary{}).open, silence
			before := len(tc.cfg.Lock)
			cfg, err := startup.ConfigFromEnv(tc.cfg)
			require.NoError(t, err)
			assert.Len(t, tc.cfg.Lock, before)
			app := newApp(t, cfg)
			require.NoError(t, app.Start(t.Context()))
			defer app.Stop(t.Context())
			assert.Equal(t, tc.ttl, app.Lock().Timing().TTL)
			assert.Equal(t, tc.heartbeat, app.Lock().Timing().HeartbeatInterval)
			assert.Equal(t, tc.strict, cfg.Strict)
		})
	}
}

func TestAWrongVariableIsNamedWithItsValueAndTheRule(t *testing.T) {
	for name, tc := range map[string]struct {
		env  []string
		want []string
	}{
		"no duration": {[]string{"SCHEDLOCK_TTL", "60"},
			[]string{`SCHEDLOCK_TTL="60" is not a duration such as 60s or 1m30s`}},
		"no mode": {[]string{"SCHEDLOCK_MODE", "loose"},
			[]string{`SCHEDLOCK_MODE="loose" is neither "standby" nor "strict"`}},
		"too long": {[]string{"SCHEDLOCK_TTL", "25h"},
			[]string{"SCHEDLOCK_TTL=25h0m0s: ", "TTL 25h0m0s is above 24h0m0s"}},
		"zero": {[]string{"SCHEDLOCK_HEARTBEAT", "0s"},
			[]string{"SCHEDLOCK_HEARTBEAT=0s: ", "heartbeat interval 0s is not above 0"}},
		"too few heartbeats": {[]string{"SCHEDLOCK_TTL", "10s", "SCHEDLOCK_HEARTBEAT", "5s"},
			[]string{"SCHEDLOCK_TTL=10s, SCHEDLOCK_HEARTBEAT=5s: ",
				"renew deadline 7.5s is below 3 × heartbeat interval = 15s"}},
		"all at once": {[]string{"SCHEDLOCK_TTL", "sixty", "SCHEDLOCK_HEARTBEAT", "10 s",
			"SCHEDLOCK_MODE", "Strict"},
			[]string{`SCHEDLOCK_TTL="sixty"`, `SCHEDLOCK_HEARTBEAT="10 s"`,
				`SCHEDLOCK_MODE="Strict"`}},
	} {
		t.Run(name, func(t *testing.T) {
			setEnv(t, tc.env...)
			_, err := startup.ConfigFromEnv(startup.Config{})
			for _, want := range tc.want {
				require.ErrorContains(t, err, want)
			}
		})
	}
	setEnv(t, "SCHEDLOCK_MODE", "postgres://app:geheim@db/app")
	_, err := startup.ConfigFromEnv(startup.Config{})
	require.ErrorContains(t, err, "SCHEDLOCK_MODE=")
	require.NotContains(t, err.Error(), "geheim")
}

// What the code itself has wrong is said by NewApp, not blamed on a variable.
func TestAMistakeInTheCodeIsNotBlamedOnTheEnvironment(t *testing.T) {
	setEnv(t, "SCHEDLOCK_TTL", "30s")
	cfg, err := startup.ConfigFromEnv(startup.Config{
		Lock: []schedlock.Option{schedlock.WithOwner(driver.Owner{})}})
	require.NoError(t, err)
	_, err = startup.NewApp(cfg)
	require.ErrorContains(t, err, "pid 0 is not above 0")
}

// An operator sets the TTL and the mode without a build.
func ExampleConfigFromEnv() {
	ctx, dsn, remove := exampleSetUp() // an app writes "file:app.db"
	defer remove()
	os.Setenv("SCHEDLOCK_TTL", "15s") // in a shell: SCHEDLOCK_TTL=15s SCHEDLOCK_MODE=strict ./app
	os.Setenv("SCHEDLOCK_MODE", "strict")
	defer os.Unsetenv("SCHEDLOCK_TTL")
	defer os.Unsetenv("SCHEDLOCK_MODE")

	cfg, err := startup.ConfigFromEnv(startup.Config{
		Open: sqlite.Opener(dsn),
		Log:  slog.New(slog.DiscardHandler),
	})
	if err != nil {
		log.Panic(err)
	}
	app, err := startup.NewApp(cfg)
	if err != nil {
		log.Panic(err)
	}
	if err := app.Start(ctx); err != nil {
		log.Panic(err)
	}
	defer app.Stop(ctx)
	timing := app.Lock().Timing()
	fmt.Println(cfg.Strict, timing.TTL, timing.HeartbeatInterval)

	os.Setenv("SCHEDLOCK_TTL", "15")
	_, err = startup.ConfigFromEnv(startup.Config{})
	fmt.Println(err)
	// Output:
	// true 15s 2.5s
	// SCHEDLOCK_TTL="15" is not a duration such as 60s or 1m30s
}
