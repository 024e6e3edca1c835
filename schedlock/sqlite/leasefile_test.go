package sqlite

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"example.com/schedlock/schedlock"
)

// childModes are what the test binary does instead of tests when startChild
// runs it. A test file adds its own in an init function. The arguments are
// os.Args[1:], an os.Stdin at its end means that the parent is gone.
var childModes = map[string]func(){}

const childEnv = "SCHEDLOCK_SQLITE_TEST_CHILD"

func TestMain(m *testing.M) {
	if mode, ok := os.LookupEnv(childEnv); ok {
		run := childModes[mode]
		if run == nil {
			fmt.Fprintf(os.Stderr, "no child mode %q\n", mode)
			os.Exit(2)
		}
		run()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// A child is another process.
type child struct {
	t     testing.TB
	cmd   *exec.Cmd
	stdin io.WriteCloser
	lines chan string
}

// startChild runs the test binary in a child mode, and kills it when the test
// ends.
func startChild(t testing.TB, mode string, args ...string) *child {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := &child{t: t, cmd: exec.Command(exe, args...), lines: make(chan string)}
	c.cmd.Env = append(os.Environ(), childEnv+"="+mode)
	c.cmd.Stderr = os.Stderr
	if c.stdin, err = c.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	stdout, err := c.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	gone := make(chan struct{})
	go func() {
		defer close(c.lines)
		for r := bufio.NewScanner(stdout); r.Scan(); {
			select {
			case c.lines <- r.Text():
			case <-gone:
				return
			}
		}
	}()
	t.Cleanup(func() {
		close(gone)
		c.stdin.Close() // what the child itself has started ends with this
		c.cmd.Process.Kill()
		c.cmd.Wait()
	})
	return c
}

// line waits for the next line that the child prints.
func (c *child) line() string {
	c.t.Helper()
	select {
	case line, ok := <-c.lines:
		if !ok {
			c.t.Fatal("the child has ended")
		}
		return line
	case <-time.After(time.Minute):
		c.t.Fatal("the child says nothing")
	}
	return ""
}

// say sends the child a line.
func (c *child) say(line string) {
	c.t.Helper()
	if _, err := fmt.Fprintln(c.stdin, line); err != nil {
		c.t.Fatal(err)
	}
}

// tokenAt is a token with the given first 61 bits.
func tokenAt(bits uint64) (t schedlock.Token) {
	for i := range 8 {
		t[i] = byte(bits << 3 >> (56 - 8*i))
	}
	return t
}

const maxTokenBits = 1<<61 - 1

func TestEachTokenHasAByteOfItsOwn(t *testing.T) {
	for _, tc := range []struct {
		token schedlock.Token
		want  int64
	}{
		{tokenAt(0), 1 << 62},
		{tokenAt(1), 1<<62 + 1},
		{tokenAt(maxTokenBits), 1<<62 + 1<<61 - 1},
		{schedlock.Token{0: 0x80}, 1<<62 + 1<<60},
		{schedlock.Token{7: 0x07, 8: 0xff, 15: 0xff}, 1 << 62}, // only bits after the first 61
		{schedlock.Token{7: 0x08}, 1<<62 + 1},
	} {
		got := leaseOffset(tc.token)
		if got != tc.want {
			t.Errorf("token %v has the byte %#x, want %#x", tc.token, got, tc.want)
		}
		if got < leaseFirst || got >= leaseEnd || got > math.MaxInt64-1 {
			t.Errorf("token %v has the byte %#x, outside of the range", tc.token, got)
		}
	}
	seen := map[int64]schedlock.Token{}
	for range 10_000 {
		token := schedlock.NewToken()
		if other, ok := seen[leaseOffset(token)]; ok {
			t.Fatalf("%v and %v share a byte", token, other)
		}
		seen[leaseOffset(token)] = token
	}
}

func TestGapsCoverAllButTheTokens(t *testing.T) {
	for _, bits := range [][]uint64{
		{}, {0}, {maxTokenBits}, {0, maxTokenBits}, {5}, {5, 6}, {6, 5, 4}, {5, 5}, {0, 1, 7, maxTokenBits - 1, maxTokenBits},
	} {
		var tokens []schedlock.Token
		left := map[int64]bool{}
		for _, b := range bits {
			tokens = append(tokens, tokenAt(b))
			left[leaseFirst+int64(b)] = true
		}
		next := leaseFirst
		skip := func(to int64) {
			for ; next < to; next++ {
				if !left[next] {
					t.Fatalf("%v: byte %#x is in no gap", bits, next)
				}
				delete(left, next)
			}
		}
		for _, gap := range leaseGaps(tokens...) {
			if gap.start < next || gap.length <= 0 || gap.start+gap.length > leaseEnd || gap.start+gap.length < 0 {
				t.Fatalf("%v: gap %+v after %#x", bits, gap, next)
			}
			skip(gap.start)
			next += gap.length
			for at := range left {
				if at >= gap.start && at < next {
					t.Fatalf("%v: gap %+v has byte %#x of a token", bits, gap, at)
				}
			}
		}
		skip(leaseEnd)
		if len(left) > 0 {
			t.Errorf("%v: not left out: %v", bits, left)
		}
	}
}

func TestOnlyAFreeByteInTheHoldersOwnFileProvesDeath(t *testing.T) {
	for _, tc := range []struct {
		name  string
		state leaseState
		row   bool
		id    string
		want  schedlock.Sign
	}{
		{"nothing can be told", leaseState{}, true, "a", schedlock.SignNone},
		{"nothing can be told, NULL", leaseState{}, true, "", schedlock.SignNone},
		{"nothing can be told, no row", leaseState{}, false, "", schedlock.SignNone},
		{"free", leaseState{id: "a"}, true, "a", schedlock.SignDead},
		{"free, another file", leaseState{id: "b"}, true, "a", schedlock.SignNone},
		{"free, the holder wrote NULL", leaseState{id: "a"}, true, "", schedlock.SignNone},
		{"held", leaseState{id: "a", held: true}, true, "a", schedlock.SignAlive},
		{"held, another held too", leaseState{id: "a", held: true, others: true}, true, "a", schedlock.SignAlive},
		{"free, another held", leaseState{id: "a", others: true}, true, "a", schedlock.SignNone},
		{"no row, free", leaseState{id: "a"}, false, "a", schedlock.SignDead},
		{"no row, free, another file", leaseState{id: "b"}, false, "a", schedlock.SignNone},
		{"no row, held", leaseState{id: "a", held: true}, false, "a", schedlock.SignAlive},
		{"no row, another held", leaseState{id: "a", others: true}, false, "a", schedlock.SignAlive},
		{"a new database, another held", leaseState{id: "a", others: true}, false, "", schedlock.SignAlive},
		{"a new database", leaseState{id: "a"}, false, "", schedlock.SignNone},
	} {
		if got := tc.state.sign(tc.row, tc.id); got != tc.want {
			t.Errorf("%s: %v, want %v", tc.name, got, tc.want)
		}
	}
}

func TestWithoutLinuxThereIsNoLeaseFile(t *testing.T) {
	if runtime.GOOS == "linux" {
		t.Skip("this is Linux")
	}
	path := filepath.Join(t.TempDir(), "app.db")
	if _, err := openLeaseFile(path); !errors.Is(err, errors.ErrUnsupported) || !strings.Contains(err.Error(), path+"-lease") {
		t.Errorf("openLeaseFile: %v, want an error that wraps ErrUnsupported and names the file", err)
	}
}
