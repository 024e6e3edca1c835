//go:build linux

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"example.com/schedlock/internal/bench/host"
	"example.com/schedlock/internal/clock"
)

// A replica says READY, then acquires and says HELD and a time. It answers these lines, and ends
// with its standard input. Times are nanoseconds of CLOCK_BOOTTIME, which all processes share.
//
//	release   RELEASING time, and RELEASED once that is done
//	acquire   HELD time, once that is done
//	cpu       CPU seconds, of the processor so far
//	series N  SERIES and JSON: N times each operation. Before it, the replica has released.
//
// It says ERROR and why if something fails.

// series are the times of the operations, in nanoseconds. What is missing is null.
type series struct {
	Acquire, Release, Renew []int64
	Check                   float64
}

func serveReplica(args []string) {
	name, lock, id := args[0], args[1], args[2]
	ctx := context.Background()
	mine := contestants[slices.IndexFunc(contestants, func(c contestant) bool {
		return c.name == name
	})]
	r, err := mine.open(ctx, environmentOfParent(), lock, id)
	if err != nil {
		fmt.Println("ERROR", err)
		os.Exit(1)
	}
	acquire := func() {
		if err := r.acquire(ctx); err != nil {
			fmt.Println("ERROR", err)
			return
		}
		fmt.Println("HELD", int64(clock.System.Boot()))
	}
	fmt.Println("READY")
	if !mine.perTick {
		go acquire()
	}
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		word, number, _ := strings.Cut(lines.Text(), " ")
		switch word {
		case "release":
			fmt.Println("RELEASING", int64(clock.System.Boot()))
			if err := r.release(ctx); err != nil {
				fmt.Println("ERROR", err)
				continue
			}
			fmt.Println("RELEASED", int64(clock.System.Boot()))
		case "acquire":
			go acquire()
		case "cpu":
			var used syscall.Rusage
			_ = syscall.Getrusage(syscall.RUSAGE_SELF, &used) // it can't fail
			fmt.Printf("CPU %.6f\n", float64(used.Utime.Nano()+used.Stime.Nano())/1e9)
		case "series":
			n, _ := strconv.Atoi(number) // this program wrote it
			s, err := timed(ctx, r, n)
			if err != nil {
				fmt.Println("ERROR", err)
				continue
			}
			text, _ := json.Marshal(s)
			fmt.Println("SERIES", string(text))
		}
	}
	os.Exit(0)
}

// timed calls each operation n times. The first ten are not counted.
func timed(ctx context.Context, r replica, n int) (s series, err error) {
	const warm = 10
	for i := range n + warm {
		t0 := time.Now()
		if err := r.acquire(ctx); err != nil {
			return s, err
		}
		acquired := time.Since(t0)
		time.Sleep(3 * time.Millisecond) // what some peers send after it is not the release's
		t0 = time.Now()
		if err := r.release(ctx); err != nil {
			return s, err
		}
		if released := time.Since(t0); i >= warm {
			s.Acquire = append(s.Acquire, int64(acquired))
			s.Release = append(s.Release, int64(released))
		}
		time.Sleep(time.Millisecond)
	}
	if err := r.acquire(ctx); err != nil {
		return s, err
	}
	time.Sleep(20 * time.Millisecond)
	if r, ok := r.(renewer); ok {
		for range n {
			t0 := time.Now()
			if err := r.renew(ctx); err != nil {
				return s, err
			}
			s.Renew = append(s.Renew, int64(time.Since(t0)))
		}
	}
	if r, ok := r.(checker); ok {
		leads := r.check()
		result := testing.Benchmark(func(t *testing.B) {
			for t.Loop() {
				if !leads() {
					t.Fatal("the holder does not lead")
				}
			}
		})
		s.Check = float64(result.T.Nanoseconds()) / float64(max(1, result.N))
	}
	return s, r.release(ctx)
}

// A child is the parent's side of a replica.
type child struct{ *host.Child }

func startChild(c contestant, env environment, lock, id string) (child, error) {
	cmd := self("replica", c.name, lock, id)
	if c.command != nil {
		cmd = c.command(env, lock)
	}
	cmd.Env = append(os.Environ(), environmentName+"="+env.String())
	k, err := host.StartChild(cmd)
	return child{k}, err
}

// self is this program as a server or a replica.
func self(args ...string) *exec.Cmd {
	exe, err := os.Executable()
	if err != nil {
		panic(err)
	}
	return exec.Command(exe, args...)
}

func (k child) say(line string) { fmt.Fprintln(k.In, line) }

// expect waits for a line that begins with word, and returns the rest.
func (k child) expect(word string, patience time.Duration) (string, error) {
	t := time.NewTimer(patience)
	defer t.Stop()
	for {
		select {
		case line, ok := <-k.Lines:
			if !ok {
				return "", fmt.Errorf("a replica ended before it said %s", word)
			}
			first, rest, _ := strings.Cut(line, " ")
			if first == word {
				return rest, nil
			}
			if first == "ERROR" {
				return "", errors.New(rest)
			}
		case <-t.C:
			return "", fmt.Errorf("no %s within %v: %w", word, patience, errPatience)
		}
	}
}

var errPatience = errors.New("too slow")

// at waits like expect, for a time.
func (k child) at(word string, patience time.Duration) (int64, error) {
	text, err := k.expect(word, patience)
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(text, 10, 64)
}

// kill is kill -9.
func (k child) kill() {
	k.Signal(syscall.SIGKILL)
	k.Join()
}
