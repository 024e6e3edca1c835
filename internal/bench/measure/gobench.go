//go:build linux

package main

import (
	stdbytes "bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
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
	{"^Benchmark(Acquire|Heartbeat|Release|GetLockInfo)$/^(sqlite|postgres|pgbouncer)",
		"./internal/bench", []string{"-count=3", "-benchtime=0.5s"}},
	{"^Benchmark(Run|RunParallel)$", "./internal/bench", []string{"-count=1"}},
	{"^BenchmarkQueue(|Million|Workers)$", "./internal/bench",
		[]string{"-count=1", "-benchtime=0.3s"}},
	{"^BenchmarkThousandJobs$", "./internal/bench", []string{"-count=1", "-benchtime=1x"}},
}

func (m *measurer) benchmarks(ctx context.Context) error { return m.bench(ctx, benchRuns) }

func (m *measurer) bench(ctx context.Context, runs []benchRun) error {
	for _, r := range runs {
		args := append([]string{"test", "-run=^$", "-bench=" + r.pattern, "-timeout=5m"}, r.args...)
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
	var out, errs stdbytes.Buffer
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

// median returns the middle one of the runs of a benchmark.
func (b benchmarks) median(name, unit string) (v float64, ok bool) {
	values := slices.Clone(b[name][unit])
	if len(values) == 0 {
		return 0, false
	}
	slices.Sort(values)
	return values[len(values)/2], true
}

// spread returns the smallest and the largest ratio to the limit.
func (b benchmarks) spread(name string) (from, to float64) {
	if values := b[name]["x-limit"]; len(values) > 0 {
		return slices.Min(values), slices.Max(values)
	}
	return 0, 0
}
