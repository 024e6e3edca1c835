//go:build unix

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/missing"
)

func TestStrictModeRefusesToStartWhileAnotherReplicaLeads(t *testing.T) {
	onEachDatabase(t, func(t *testing.T, newFleet maker) {
		f := newFleet(t, "MODE=strict", "LOCK_HEARTBEAT=300ms")
		leader, term := f.startLeader()
		pid := leader.pid()
		host, err := os.Hostname()
		require.NoError(t, err)

		requireWithin(t, 2*time.Second, func() time.Duration {
			second := f.launch()
			require.Equal(t, 3, second.wait())
			took := time.Since(second.begun)
			lines := second.log.with("demoapp: ")
			require.Len(t, lines, 1, "what an operator reads:\n%s", second.log.String())
			for what, words := range map[string]string{
				"who":            fmt.Sprintf("pid %d on host %q (term %d)", pid, host, term),
				"for how long":   `, for (\d+m)?\d+(\.\d+)?m?s;`,
				"last heartbeat": `last heartbeat was \d+(\.\d+)?m?s ago`,
				"what to do": `stop that process.*` +
					`wait until the TTL has passed and start again`,
			} {
				if what == "who" {
					words = regexp.QuoteMeta(words)
				}
				require.Regexp(t, words, lines[0], what)
			}
			require.NotContains(t, second.log.String(), "serving", "it never came to serve")
			return took
		})
		require.True(t, leader.lock().Self.Leader)

		leader.stop()
		third, next := f.startLeader() // now it is free
		require.Greater(t, next, term)
		third.stop()
		f.requireNoRow()
	})
}

func TestWrongConfigurationIsRefusedInOneLine(t *testing.T) {
	missing.Long(t, "starts many processes")
	t.Parallel()
	for _, tc := range []struct {
		env   string
		words []string // value and rule
	}{
		{"ADDR=nonsense", []string{`"nonsense"`, "not host:port"}},
		{"ADDR=:70000", []string{`"70000"`, "0 to 65535"}},
		{"DATABASE_URL=mysql://u:sec/ret@h/db", []string{`"mysql://…"`, "%2F"}},
		{"DATABASE_URL=postgres://u:secret@h:port/db", []string{`"postgres://…"`,
			"is not postgres://user:password@host:port/database", "invalid port"}},
		{"DATABASE_URL=postgresql://u:sec/ret#secret@h/db",
			[]string{`"postgresql://…"`, "%XX", "%2F"}},
		{"LOCK_DATABASE_URL=postgres://u:secret@h/db?sslmode=sometimes",
			[]string{`"postgres://…"`, "sslmode"}},
		{"LOCK_DATABASE_URL=postgres://h/db?password=secret&pool_max_conns=few",
			[]string{"pool_max_conns"}},
		{"DATABASE_URL=postgres://u:secret", []string{`"postgres://…"`, "invalid port"}},
		{"ADDR=postgres://u:secret@h/db", []string{`"…"`, "not host:port"}},
		{"TICK=postgres://u:secret@h/db", []string{"not shown", "not a duration"}},
		{"HOSTS=http://app.example", []string{`"…"`, "write host names"}},
		{"HOSTS=a..b", []string{`"a..b"`, "write host names"}},
		{"DATABASE_URL=:memory:", []string{`":memory:"`, "in memory"}},
		{"DATABASE_URL=file://host/x.db", []string{`"file://host/x.db"`, "has no host"}},
		{"LOCK_DATABASE_URL=redis://u:secret@h/0", []string{"redis://",
			"only file: URIs, postgres:// URLs and mysql:// URLs are supported"}},
		{"MODE=solo", []string{`"solo"`, `neither "standby" nor "strict"`}},
		{"LOCK_TTL=sixty", []string{`"sixty"`, "not a duration such as"}},
		{"LOCK_TTL=60", []string{`"60"`, "not a duration such as"}},
		{"LOCK_TTL=10s", []string{"10s", "not above the heartbeat interval"}},
		{"LOCK_TTL=25h", []string{"25h", "above 24h"}},
		{"LOCK_HEARTBEAT=-1s", []string{"-1s", "below 10ms"}},
		{"LOCK_HEARTBEAT=30s", []string{"30s",
			"renew deadline 45s is below 3 × heartbeat interval"}},
		{"WORKERS=four", []string{`"four"`, "not a whole number"}},
		{"WORKERS=-1", []string{"-1", "below 0"}},
		{"WORKERS=4 MODE=strict", []string{"4", "more than one worker in strict mode",
			"DEMOAPP_MODE=standby"}},
		{"TICK=1ms", []string{"1ms", "at least 100ms"}},
		{"TICK=1.0000001s", []string{"1.0000001s", "whole number of microseconds"}},
		{"JOB_DURATION=-1s", []string{"-1s", "below 0"}},
		{"TICK_CATCHUP=some", []string{`"some"`,
			`neither "latest" nor "skip" nor a number from 1 to 1000`}},
		{"TICK_CATCHUP=0", []string{`"0"`, "a number from 1 to 1000"}},
		{"TICK_CATCHUP=1001", []string{`"1001"`, "a number from 1 to 1000"}},
		{"TICK_OVERLAP=never", []string{`"never"`, `neither "skip" nor "queue" nor "allow"`}},
		{"TICK_ATTEMPTS=few", []string{`"few"`, "not a whole number"}},
		{"TICK_ATTEMPTS=0", []string{"0", "not a number from 1 to 1000"}},
		{"TICK_ATTEMPTS=1001", []string{"1001", "not a number from 1 to 1000"}},
		{"TICK_ATTEMPTS=2 TICK_AT_MOST_ONCE=true", []string{"2",
			"DEMOAPP_TICK_AT_MOST_ONCE=true", "never repeated"}},
		{"TICK_AT_MOST_ONCE=maybe", []string{`"maybe"`, "not true or false"}},
		{"TICK_TIMEOUT=-1s", []string{"-1s", "below 0"}},
		{"TICK_TIMEOUT=long", []string{`"long"`, "not a duration such as"}},
		{"TICK_FAIL=-1", []string{"-1", "below 0"}},
		{"CONTROL=perhaps", []string{`"perhaps"`, "not true or false"}},
		{"DRAIN=0s", []string{"0s", "not above 0"}},
		{"BLOCKLISTS=./file", []string{`"./file"`, "not a folder"}},
		{"LOG=xml", []string{`"xml"`, `neither "text" nor "json"`}},
	} {
		t.Run(strings.ReplaceAll(tc.env, "/", "."), func(t *testing.T) {
			t.Parallel()
			f := newShortFleet(t)
			require.NoError(t, os.WriteFile(filepath.Join(f.dir, "file"), nil, 0o600))
			r := f.launch(strings.Fields(tc.env)...)
			require.Equal(t, 2, r.wait())
			name, _, _ := strings.Cut(tc.env, "=")
			requireOneLine(t, r, append(tc.words, envPrefix+name+"=")...)
			require.NotContains(t, r.log.String(), "secret")
			require.Equal(t, []string{"file"}, f.files(), "the database is not even created")
		})
	}
}

func TestWrongFlagIsRefusedInOneLine(t *testing.T) {
	t.Parallel()
	for _, arg := range []string{"--lock-ttl=sixty", "--nonsense"} {
		f := newShortFleet(t)
		r := f.prepareWith([]string{arg})
		r.begin()
		require.Equal(t, 2, r.wait())
		name, _, _ := strings.Cut(arg, "=")
		requireOneLine(t, r, name)
		require.Empty(t, f.files())
	}
}

// requireOneLine checks that all the replica said is one line with the words.
func requireOneLine(t *testing.T, r *replica, words ...string) {
	t.Helper()
	said := r.log.String()
	require.Equal(t, 1, strings.Count(said, "\n"), "%s", said)
	for _, w := range words {
		require.Contains(t, said, w)
	}
}

func TestRefusedReplicasDoNotDisturbTheLeader(t *testing.T) {
	t.Parallel()
	f := newFleet(t, "LOCK_HEARTBEAT=2s") // so long may one take
	leader, term := f.startLeader()
	before := leader.heartbeats()
	var losers sync.WaitGroup
	for range sized(4, 9, 9) {
		losers.Go(func() {
			for range 2 {
				r := f.launch("MODE=strict")
				<-r.exited
				assert.Equal(t, 3, r.cmd.ProcessState.ExitCode())
			}
		})
	}
	losers.Wait()
	leader.awaitHeartbeats(2)
	t.Logf("%d heartbeats", leader.heartbeats()-before)
	require.Zero(t, leader.failedHeartbeats())
	require.Equal(t, term, leader.lock().Self.Term)
	require.Len(t, leader.terms(), 1)
}
