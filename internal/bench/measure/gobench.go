//go:build linux

package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"example.com/schedlock/internal/bench/page"
)

// benchmarks are the results of go test -bench: by name, without the number of
// processors at its end, and by unit; one value per run.
type benchmarks map[string]map[string][]float64

// A benchRun is a call of go test.
type benchRun struct {
	pattern, pkg string
	args         []string
}

var benchRuns = []benchRun{
	{"^BenchmarkIsLeader", "./schedlock", []string{"-count=5", "-benchtime=0.5s"}},
	{"^Benchmark(Acquire|Heartbeat|Release|GetLockInfo)$", "./internal/bench/measure",
		[]string{"-count=3", "-benchtime=0.5s"}},
	{"^Benchmark(Run|RunParallel)$", "./internal/bench/measure", []string{"-count=1"}},
	{"^BenchmarkQueue(|Million|Workers)$", "./internal/bench/measure",
		[]string{"-count=1", "-benchtime=0.3s"}},
	{"^BenchmarkThousandJobs$", "./internal/bench/measure", []string{"-count=1", "-benchtime=1x"}},
}

func (m *measurer) benchmarks(ctx context.Context) error {
	for _, r := range benchRuns {
		args := append([]string{"test", "-run=^$", "-bench=" + r.pattern, "-timeout=15m"},
			r.args...)
		if m.quick {
			args = append(args, "-count=1", "-benchtime=2x")
		}
		out, err := m.goTest(ctx, append(args, r.pkg))
		m.report.Benchmarks.parse(out)
		if err != nil {
			return err
		}
	}
	return nil
}

// goTest runs it in a process group of its own, and lets it end in order when
// ctx does.
func (m *measurer) goTest(ctx context.Context, args []string) (string, error) {
	var out, errs bytes.Buffer
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = m.root
	cmd.Env = append(os.Environ(), "TMPDIR="+m.dir) // is deleted, however they end
	cmd.Stdout, cmd.Stderr = &out, &errs
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGINT) }
	cmd.WaitDelay = 10 * time.Second
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("go %s: %w: %.2000s%s", strings.Join(args, " "), err,
			out.String(), errs.String())
	}
	return out.String(), nil
}

// parse reads the format of the testing package: a name, the number of
// iterations, and pairs of a value and its unit.
func (b benchmarks) parse(text string) {
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		if len(words) < 4 || len(words)%2 != 0 || !strings.HasPrefix(words[0], "Benchmark") {
			continue
		}
		name := strings.TrimPrefix(words[0], "Benchmark")
		if i := strings.LastIndexByte(name, '-'); i > 0 {
			if _, err := strconv.Atoi(name[i+1:]); err == nil {
				name = name[:i]
			}
		}
		if b[name] == nil {
			b[name] = map[string][]float64{}
		}
		for i := 2; i < len(words); i += 2 {
			if v, err := strconv.ParseFloat(words[i], 64); err == nil {
				b[name][words[i+1]] = append(b[name][words[i+1]], v)
			}
		}
	}
}

// median returns the middle one of the runs of a benchmark; 0 if there was none.
func (b benchmarks) median(name, unit string) float64 {
	values := slices.Clone(b[name][unit])
	if len(values) == 0 {
		return 0
	}
	slices.Sort(values)
	return values[len(values)/2]
}

// spread is the smallest and the largest ratio to the limit.
func (b benchmarks) spread(name string) string {
	values := b[name]["x-limit"]
	if len(values) == 0 {
		return ""
	}
	return page.Number(slices.Min(values)) + "–" + page.Number(slices.Max(values))
}

// benchName is the name of a benchmark on a database.
func benchName(op, db string) string {
	return op + map[string]string{dbSQLite: "/sqlite", dbPostgres: "/postgres",
		dbMariaDB: "/mysql"}[db]
}
