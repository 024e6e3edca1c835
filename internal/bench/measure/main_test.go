//go:build linux

package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/missing"
	"example.com/schedlock/internal/pgtest"
)

// The replicas are this binary, started again.
func TestMain(m *testing.M) {
	serveReplica()
	os.Exit(pgtest.Run(m))
}

func TestAPageOfAFewRounds(t *testing.T) {
	missing.OnlyFull(t, "measures, builds programs, and fills a database")
	file := filepath.Join(t.TempDir(), "benchmarks.md")
	temp := t.TempDir()
	t.Setenv("TMPDIR", temp)
	require.NoError(t, os.WriteFile(file, []byte("# Old\n\n## Beside the peers\n\nkept\n"), 0o600))
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	require.NoError(t, run(ctx,
		[]string{"-quick", "-only", "start,change,crowd,idle,growth", "-o", file}, t.Output()))
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
		"| SQLite, hand-over | 2 | ", "| MariaDB, take-over without signs of death, TTL 4s | 2 | ",
		"| MariaDB | ", "| PostgreSQL, 2 | ", "| GetLockInfo | ", "## Beside the peers\n\nkept\n",
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
		r := newReport()
		r.Benchmarks["IsLeader"] = map[string][]float64{"op-ns": {ns}, "limit-ns": {40},
			"allocs/op": {0}}
		return r.page()
	}
	require.Contains(t, of(45),
		"| “am I leader?” | ≤ 60 ns | 45 ns (`time.Now()` alone 40 ns) | 0.75 | met |")
	page := of(90)
	require.Contains(t, page,
		"| “am I leader?” | ≤ 60 ns | 90 ns (`time.Now()` alone 40 ns) | 1.5 | **missed** |")
	require.Contains(t, page, "1 met, 1 missed")
	require.Contains(t, page, "- *“am I leader?”*: not explained yet.\n")
}

// A reason that no target has is never shown.
func TestEachReasonIsOfATarget(t *testing.T) {
	names := map[string]bool{}
	for _, row := range newReport().Targets().Rows {
		names[row[0]] = true
	}
	for what := range reasons {
		require.True(t, names[what], what)
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
	require.Equal(t, 1.3, b.median("Acquire/sqlite", "x-limit"))
	require.Equal(t, "1.2–1.4", b.spread("Acquire/sqlite"))
	require.Equal(t, 48.5, b.median("IsLeader", "ns/op"))
	require.Zero(t, b.median("Release/sqlite", "x-limit"))
	require.Equal(t, "0", b.number("IsLeader", "allocs/op"))
	require.Empty(t, b.number("Release/sqlite", "allocs-op"))
}

func TestASample(t *testing.T) {
	var took []time.Duration
	for i := range 100 {
		took = append(took, time.Duration(100-i)*time.Millisecond)
	}
	s := newSample(took)
	require.Equal(t, "50 ms (100 ms)", s.String())
	require.Equal(t, 99*time.Millisecond, s.p99())
	require.Empty(t, sample(nil).String())
}
