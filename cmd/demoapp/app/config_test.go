package app

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock"
	"example.com/schedlock/tasks"
)

// load reads a configuration from NAME=value.
func load(t *testing.T, env ...string) Config {
	t.Helper()
	cfg, err := LoadConfig(nil, func(name string) (string, bool) {
		for _, v := range env {
			if value, ok := strings.CutPrefix(v, strings.TrimPrefix(name, envPrefix)+"="); ok {
				return value, true
			}
		}
		return "", false
	}, io.Discard)
	require.NoError(t, err)
	return cfg
}

func TestHostsAreAddedByTheirVariableAndTheListenAddress(t *testing.T) {
	t.Parallel()
	some := "HOSTS=app.example, Other.Example:443 ,192.0.2.7"
	for _, tc := range []struct {
		env, host string
		want      bool
	}{
		{some, "app.example", true},
		{some, "other.example", true},
		{some, "192.0.2.7:80", true},
		{some, "localhost", true},
		{some, "evil.example", false},
		{"HOSTS=*", "evil.example", true},
		{"ADDR=named.example:0", "named.example", true}, // is answered by that name
		{"ADDR=127.0.0.1:0", "named.example", false},
	} {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.Host = tc.host
		require.Equal(t, tc.want, load(t, tc.env).hosts.Allows(r), "%+v", tc)
	}
}

func TestALockWhoseRowIsLockedSaysByWhom(t *testing.T) {
	t.Parallel()
	require.Contains(t, encoded(t, newLockJSON(&schedlock.LockInfo{Blocker: "backend 7"})),
		`"blocked_by":"backend 7"`)
}

func TestJobsTakeTheirPoliciesFromTheConfiguration(t *testing.T) {
	t.Parallel()
	jobs := func(env ...string) (tick, imports tasks.Job) {
		all := (&app{cfg: load(t, env...)}).jobs()
		require.Equal(t, []string{"tick", "import", "expire"},
			[]string{all[0].Name, all[1].Name, all[2].Name})
		all[0].Do, all[1].Do = nil, nil
		return all[0], all[1]
	}
	tick, imports := jobs()
	require.Equal(t, tasks.Job{Name: "tick", Spec: tasks.Every(time.Second),
		Retry: tasks.Retry{Attempts: 1}}, tick)
	require.Equal(t, tasks.Job{Name: "import", Spec: tasks.Every(importInterval), AtOnce: true,
		CatchUp: tasks.Latest, Overlap: tasks.OverlapSkip,
		Retry: tasks.Retry{Attempts: 3, Backoff: 5 * time.Second}, Timeout: 5 * time.Minute},
		imports)
	tick, _ = jobs("TICK_CATCHUP=7", "TICK_OVERLAP=queue", "TICK_ATTEMPTS=4", "TICK_TIMEOUT=3s")
	require.Equal(t, tasks.Job{Name: "tick", Spec: tasks.Every(time.Second), CatchUp: tasks.All(7),
		Overlap: tasks.OverlapQueue,
		Retry:   tasks.Retry{Attempts: 4}, Timeout: 3 * time.Second}, tick)
	tick, _ = jobs("TICK_CATCHUP=skip", "TICK_OVERLAP=allow", "TICK_AT_MOST_ONCE=true")
	require.Equal(t, tasks.Job{Name: "tick", Spec: tasks.Every(time.Second), CatchUp: tasks.Skip,
		Overlap: tasks.OverlapAllow,
		Retry:   tasks.Retry{Attempts: 1}, AtMostOnce: true}, tick)
	tick, _ = jobs("TICK_CATCHUP=latest", "TICK_OVERLAP=skip")
	require.Equal(t, []any{tasks.Latest, tasks.OverlapSkip}, []any{tick.CatchUp, tick.Overlap})
}

func TestALimitIsAtMost100000(t *testing.T) {
	t.Parallel()
	for _, limit := range []string{"100000", "100001", "99999999999999999999"} {
		n, err := parseLimit(limit)
		require.NoError(t, err)
		require.Equal(t, 100_000, n, "limit=%s", limit)
	}
}

func TestAWaitIsAtMost30s(t *testing.T) {
	t.Parallel()
	wait, err := parseWait("1h")
	require.NoError(t, err)
	require.Equal(t, 30*time.Second, wait)
}

// docs/databases.md asks for it: a COMMIT that is cut off ends before the lease does.
func TestMariaDBIsAwaitedNoLongerThanTheRenewDeadline(t *testing.T) {
	t.Parallel()
	cfg, err := mariaConfig("mysql://app@db/app", 45*time.Second)
	require.NoError(t, err)
	require.Equal(t, 45*time.Second, cfg.ReadTimeout)
	cfg, err = mariaConfig("mysql://app@db/app?readTimeout=3s", 45*time.Second)
	require.NoError(t, err)
	require.Equal(t, 3*time.Second, cfg.ReadTimeout, "the URL has its own")
}
