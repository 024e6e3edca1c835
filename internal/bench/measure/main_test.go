//go:build linux

package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/missing"
)

// The replicas are this binary, started again.
func TestMain(m *testing.M) {
	serveReplica()
	os.Exit(m.Run())
}

func TestAPageOfAFewRounds(t *testing.T) {
	missing.OnlyFull(t, "measures, builds programs, and fills a database")
	file := filepath.Join(t.TempDir(), "benchmarks.md")
	temp := t.TempDir()
	t.Setenv("TMPDIR", temp)
	require.NoError(t, os.WriteFile(file, []byte("# Old\n\n## Beside the peers\n\nkept\n"), 0o600))
	ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
	defer cancel()
	require.NoError(t, run(ctx,
		[]string{"-quick", "-only", "start,change,crowd,growth", "-o", file}, t.Output()))
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	page := string(text)
	for _, must := range []string{
		"# Benchmarks\n", "| processor | ", "| commit | ", "## How noisy the machine was",
		"| before | ", "| start | ",
		"## The targets",
		"| hand-over, SQLite: release sent → the next leader may start runs, p50 | ≤ 1.2 ms | ",
		"| “am I leader?” | ≤ 60 ns |  |  | not measured |",
		"| take-over after `kill -9`, SQLite, TTL 60 s, max | ≤ 250 ms | ",
		"SQLite, hand-over, release sent → its first run has begun, 2 rounds:\n\n```\n", " #",
		"| SQLite, 3 replicas | 2 | ", "| GetLockInfo | ", "## Beside the peers\n\nkept\n",
	} {
		require.Contains(t, page, must)
	}
	require.NotContains(t, page, "%!")
	require.NotContains(t, page, temp)
	for line := range strings.Lines(page) {
		if strings.HasPrefix(line, "| hand-over, SQLite") {
			require.NotContains(t, line, "not measured")
		}
	}
	left, err := os.ReadDir(temp)
	require.NoError(t, err)
	require.Empty(t, left, "what was made must be deleted")
}

func TestTheSectionAboutMariaDB(t *testing.T) {
	missing.OnlyFull(t, "measures; by default the next test writes the section")
	t.Setenv("TMPDIR", t.TempDir())
	file := filepath.Join(t.TempDir(), "benchmarks.md")
	const old = "# Old\n\nstays\n\n## MariaDB\n\ngoes\n\n## Beside the peers\n\nstays, too\n"
	require.NoError(t, os.WriteFile(file, []byte(old), 0o600))
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	require.NoError(t, run(ctx, []string{"-quick", "-only", "mariadb", "-o", file}, t.Output()))
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	page := string(text)
	require.True(t, strings.HasPrefix(page, "# Old\n\nstays\n\n## MariaDB\n\n"), page)
	require.True(t, strings.HasSuffix(page, "\n\n## Beside the peers\n\nstays, too\n"), page)
	for _, must := range []string{"| MariaDB | 1", "| Acquire | ", "| Release, with a binlog | ",
		"| hand-over: release sent → the next leader may start runs | 2 | ", "| 1 standby | ",
		"| a leader with WithSessionSign | 3s | "} {
		require.Contains(t, page, must)
	}
	require.NotContains(t, page, "goes")
	require.NotContains(t, page, "%!")
}

func TestTheSectionAboutMariaDBIsWrittenAlone(t *testing.T) {
	const old = "# Old\n\nstays\n\n## MariaDB\n\nMariaDB of old\n\n" +
		"## Beside the peers\n\nstays, too\n"
	alone := &report{MariaDB: &mariaDB{Alone: true, Version: "10.11"},
		Benchmarks: benchmarks{"Heartbeat/mysql": {"op-ns": {400}, "limit-ns": {200},
			"x-limit": {2}}}}
	page := alone.over(old)
	require.True(t, strings.HasPrefix(page, "# Old\n\nstays\n\n## MariaDB\n\nThe server"), page)
	require.True(t, strings.HasSuffix(page, "\n\n## Beside the peers\n\nstays, too\n"), page)
	require.Contains(t, page,
		"| Heartbeat | 400 ns | 200 ns | 2 | 2–2 | ≤ 1.2 × one UPDATE | **missed** | 0 |")
	for line := range strings.Lines(page) {
		if !strings.HasPrefix(line, "|") {
			require.LessOrEqual(t, utf8.RuneCountInString(strings.TrimSpace(line)), columns, line)
		}
	}

	other := (&report{}).over(old)
	require.Contains(t, other,
		"\n\n## MariaDB\n\nMariaDB of old\n\n## Beside the peers\n\nstays, too\n")
	require.Contains(t, other, "## The targets")
	require.Contains(t, (&report{MariaDB: &mariaDB{Version: "10.11"}}).over(old), "## The targets")
}

func TestAnInterruptLeavesNothingBehind(t *testing.T) {
	missing.Long(t, "measures for a while")
	temp := t.TempDir()
	t.Setenv("TMPDIR", temp)
	file := filepath.Join(t.TempDir(), "benchmarks.md")
	// Wherever it is by then: this part takes a minute.
	ctx, cancel := context.WithTimeout(t.Context(), 700*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, run(ctx, []string{"-only", "change", "-o", file}, t.Output()),
		context.DeadlineExceeded)
	require.NoFileExists(t, file)
	left, err := os.ReadDir(temp)
	require.NoError(t, err)
	require.Empty(t, left)
}

func TestAMissedTargetIsSaidToBe(t *testing.T) {
	of := func(ns float64) string {
		r := &report{Benchmarks: benchmarks{"IsLeader": {"ns/op": {ns}, "allocs/op": {0}}}}
		return r.page()
	}
	require.Contains(t, of(45), "| “am I leader?” | ≤ 60 ns | 45 ns (one goroutine) | 0.75 | met |")
	page := of(90)
	require.Contains(t, page,
		"| “am I leader?” | ≤ 60 ns | 90 ns (one goroutine) | 1.5 | **missed** |")
	require.Contains(t, page, "1 met, 1 missed")
	require.Contains(t, page, "- *“am I leader?”*: ")
}

func TestProseIsWrapped(t *testing.T) {
	for line := range strings.Lines((&report{}).page()) {
		if !strings.HasPrefix(line, "|") {
			require.LessOrEqual(t, utf8.RuneCountInString(strings.TrimSpace(line)), columns, line)
		}
	}
}

func TestAPartThatIsNone(t *testing.T) {
	err := run(t.Context(), []string{"-only", "start,speed"}, t.Output())
	require.ErrorContains(t, err, `"speed" is no part`)
	require.ErrorContains(t, err, "start, change, crowd")
}

func TestResultsOfGoTest(t *testing.T) {
	b := benchmarks{}
	b.parse(`goos: linux
BenchmarkAcquire/sqlite-2         	     100	  12 allocs-op	 500000 limit-ns	         0 ns/op	 600000 op-ns	         1.2 x-limit
BenchmarkAcquire/sqlite-2         	     100	  12 allocs-op	 500000 limit-ns	         0 ns/op	 700000 op-ns	         1.4 x-limit
BenchmarkAcquire/sqlite-2         	     100	  12 allocs-op	 500000 limit-ns	         0 ns/op	 650000 op-ns	         1.3 x-limit
BenchmarkIsLeader 	24000000	        48.5 ns/op	       0 B/op	       0 allocs/op
PASS
`)
	x, ok := b.median("Acquire/sqlite", "x-limit")
	require.True(t, ok)
	require.Equal(t, 1.3, x)
	from, to := b.spread("Acquire/sqlite")
	require.Equal(t, []float64{1.2, 1.4}, []float64{from, to})
	ns, ok := b.median("IsLeader", "ns/op")
	require.True(t, ok)
	require.Equal(t, 48.5, ns)
	_, ok = b.median("Release/sqlite", "x-limit")
	require.False(t, ok)
}

func TestASample(t *testing.T) {
	var took []time.Duration
	for i := range 100 {
		took = append(took, time.Duration(100-i)*time.Millisecond)
	}
	s := newSample(took)
	require.Equal(t, []string{"100", "50 ms", "99 ms", "100 ms"}, s.cells())
	require.Equal(t, "    1 ms – 2 ms        1 #\n"+
		"    2 ms – 5 ms        3 #\n"+
		"    5 ms – 10 ms       5 ##\n"+
		"   10 ms – 20 ms      10 ####\n"+
		"   20 ms – 50 ms      30 ############\n"+
		"   50 ms – 100 ms     50 ####################\n"+
		"  100 ms – 200 ms      1 #\n", s.histogram())
	require.Equal(t, time.Duration(0), sample(nil).p99())
	require.Equal(t, "7 ms", show(newSample([]time.Duration{7 * time.Millisecond}).max()))
}

func TestNumbersAreShort(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0", 999: "999 ns", 1234 * time.Nanosecond: "1.23 µs",
		99_960 * time.Nanosecond: "100 µs", -5 * time.Millisecond: "-5 ms",
		61 * time.Second: "61 s",
	} {
		require.Equal(t, want, show(d))
	}
	for n, want := range map[float64]string{0: "0 B", 512: "512 B", 2048: "2 KiB",
		3.5 * (1 << 20): "3.5 MiB"} {
		require.Equal(t, want, bytes(n))
	}
	require.Equal(t, "1,000,000", thousands(1_000_000))
}
