package main

import (
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/missing"
)

var execOutput = flag.Int("exec.output", 16,
	"how many MiB a command of TestExecPassesOnMuch writes")

func TestExecPassesOnMuch(t *testing.T) {
	t.Parallel()
	size := *execOutput << 20
	cmd := execOf(t, filepath.Join(folder(t), "app.db"), "--", "sh", "-c",
		fmt.Sprintf("head -c %d /dev/zero", size))
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	got, want := sha256.New(), sha256.New()
	n, err := io.Copy(got, out)
	require.NoError(t, err)
	require.NoError(t, cmd.Wait())
	require.EqualValues(t, size, n)
	_, err = io.CopyN(want, zeros{}, n)
	require.NoError(t, err)
	require.Equal(t, hex.EncodeToString(want.Sum(nil)), hex.EncodeToString(got.Sum(nil)))
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// exec itself keeps the output open, for the next time that it starts the command, as
// timeout(1) does.
func TestExecOfACommandThatClosesItsOutput(t *testing.T) {
	t.Parallel()
	dsn := filepath.Join(folder(t), "app.db")
	require.Equal(t, result{3, "bye\n", ""}, finish(t, execOf(t, dsn, "--", "sh", "-c",
		"echo bye; exec >&- 2>&-; sleep 0.1; exit 3")))
	r := finish(t, execOf(t, dsn, "--", "sh", "-c", "yes | head -1; exit 4"))
	require.Equal(t, result{4, "y\n", ""}, r)
}

// A shell with job control stops exec, and lets it go on in front or behind.
func TestExecUnderJobControl(t *testing.T) {
	t.Parallel()
	shell, err := exec.LookPath("bash")
	if err != nil {
		missing.Skip(t, "bash, on the PATH")
	}
	dsn := filepath.Join(folder(t), "app.db")
	// Not in sh: while dash starts a program it can't be stopped (vfork), but that program can be.
	// Without the trap bash goes on if its child has just ended by itself when Ctrl-C comes.
	tool := execOf(t, dsn, "--", shell, "-c", `'trap "trap - INT; kill -INT $$" INT; `+
		`echo started; while :; do echo tick; sleep 0.05; done'`)
	cmd := exec.Command(shell, "--norc", "--noprofile", "-i")
	cmd.Dir, cmd.Env = tool.Dir, append(tool.Env, "PS1=ready> ", "TERM=dumb", "HOME=/nonexistent")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	w := onTerminal(t, cmd)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("it has shown: %s", w.text())
		}
	})
	say := func(text string) {
		_, err := w.master.WriteString(text)
		require.NoError(t, err)
	}
	count := func(word string) int { return strings.Count(w.text(), word) }
	sees := func(what, word string, than int) {
		t.Helper()
		eventually(t, what, func() bool { return count(word) > than })
	}
	const prompt, tick = "ready> ", "tick\r\n"
	sees("the shell is ready", prompt, 0)
	say(strings.Join(tool.Args, " ") + "\n")
	sees("the command runs", tick, 2)

	prompts := count(prompt)
	say("\x1a")
	sees("the shell has the terminal again", prompt, prompts)
	require.Contains(t, w.text(), "Stopped")
	require.Equal(t, exitDone, call(t, "status", "--db", dsn).code, "the lock stays held")
	ticks := count(tick)
	say("fg\n")
	sees("it goes on", tick, ticks+2)

	prompts = count(prompt)
	say("\x1a")
	sees("the shell has the terminal again", prompt, prompts)
	say("bg\n")
	ticks = count(tick)
	sees("it goes on behind", tick, ticks+2)
	say("echo in''front\n")
	sees("the shell answers meanwhile", "infront", 0)
	say("fg\n")
	ticks = count(tick)
	sees("it goes on in front", tick, ticks+2)
	prompts = count(prompt)
	say("\x03")
	sees("Ctrl-C has ended it", prompt, prompts)
	say("echo code=$?\n")
	sees("the shell tells the exit code", "code=", 1)
	eventually(t, "the shell tells the exit code", func() bool {
		return strings.Contains(w.text(), "code=130")
	})
	require.Equal(t, exitNothing, call(t, "status", "--db", dsn).code, "it is given back")

	say(strings.Join(execOf(t, dsn, "--", "cat").Args, " ") + "\n")
	eventually(t, "the command reads from the terminal", func() bool {
		return call(t, "status", "--db", dsn).code == exitDone
	})
	say("a line\n")
	sees("it was read", "a line\r\n", 1) // the echo, and what cat says
	prompts = count(prompt)
	say("\x04")
	sees("cat has ended", prompt, prompts)
}

// pythonOfTheDocs is the program in docs/other-languages.md that has this word.
func pythonOfTheDocs(t *testing.T, word string) string {
	t.Helper()
	page, err := os.ReadFile("../../docs/other-languages.md")
	require.NoError(t, err)
	for _, m := range regexp.MustCompile("(?s)```python\n(.*?)```").FindAllStringSubmatch(string(page),
		-1) {
		if strings.Contains(m[1], word) {
			return m[1]
		}
	}
	require.FailNow(t, "no program with "+word)
	return ""
}

// pythonWith is a Python that has this module.
func pythonWith(t *testing.T, module string) string {
	t.Helper()
	for _, python := range []string{"python3", "/usr/bin/python3"} {
		if exec.Command(python, "-c", "import "+module).Run() == nil {
			return python
		}
	}
	missing.Skip(t, "python3 with %s", module)
	return ""
}

// The examples of a fence write under exec, and not once their term is over.
func TestTheFencedPythonOfTheDocs(t *testing.T) {
	inBoth(t, func(t *testing.T, dsn string) {
		driver, module := "sqlite3", "sqlite3"
		if strings.HasPrefix(dsn, "postgres") {
			driver, module = "pgx", "psycopg"
		}
		python := pythonWith(t, module)
		db, err := sql.Open(driver, dsn)
		require.NoError(t, err)
		defer db.Close()
		_, err = db.Exec("CREATE TABLE imports (name TEXT)")
		require.NoError(t, err)
		imports := func() (n int) {
			require.NoError(t, db.QueryRow("SELECT count(*) FROM imports").Scan(&n))
			return n
		}
		dir := folder(t)
		script := filepath.Join(dir, "scheduler.py")
		program := strings.ReplaceAll(pythonOfTheDocs(t, module+".connect"), `"app.db"`,
			`os.environ["DATABASE_URL"]`)
		require.NoError(t, os.WriteFile(script, []byte(program), 0o600))
		tool := process(t)
		require.NoError(t, os.Symlink(tool.Path, filepath.Join(dir, "schedlock")))
		run := func(before string) result {
			cmd := execOf(t, dsn, "--", "sh", "-c", before+"exec "+python+" "+script)
			cmd.Env = append(cmd.Env, "PATH="+dir+":"+os.Getenv("PATH"), "DATABASE_URL="+dsn)
			return finish(t, cmd)
		}
		require.Equal(t, result{}, run(""))
		require.Equal(t, 1, imports())
		r := run("SCHEDLOCK_TERM=1; export SCHEDLOCK_TERM; ")
		require.Equal(t, 1, r.code)
		require.Contains(t, r.err, "another process holds the lock")
		require.Equal(t, 1, imports())
	})
}

func TestThePythonOfTheDocsThatAsks(t *testing.T) {
	t.Parallel()
	missing.Long(t, "takes seconds")
	python := pythonWith(t, "json")
	dsn := filepath.Join(folder(t), "app.db")
	ask := func(addr string) string {
		out, err := exec.Command(python, "-c", strings.ReplaceAll(pythonOfTheDocs(t, "leads_until"),
			"127.0.0.1:7070", addr)+"\nprint(leads_until() > time.monotonic())").CombinedOutput()
		require.NoError(t, err, string(out))
		return strings.TrimSpace(string(out))
	}
	a := startLead(t, dsn, "127.0.0.1:0")
	a.awaitLead()
	require.Equal(t, "True", ask(a.addr))
	require.Equal(t, "False", ask(startLead(t, dsn, "127.0.0.1:0").addr))
	a.kill()
	require.Equal(t, "False", ask(a.addr))
}

// What the unit and the manifest in docs start is called rightly.
func TestTheExamplesForSupervisorsAreCalledRightly(t *testing.T) {
	t.Parallel()
	unit, err := os.ReadFile("../../docs/systemd/scheduler.service")
	require.NoError(t, err)
	line := regexp.MustCompile(`(?m)^ExecStart=/usr/local/bin/schedlock (.*) -- .*$`)
	args := strings.Fields(string(line.FindSubmatch(unit)[1]))
	dsn := filepath.Join(folder(t), "app.db")
	cmd := process(t, append(args, "--", "true")...)
	cmd.Env = append(cmd.Env, "SCHEDLOCK_DATABASE_URL="+dsn, "PATH="+os.Getenv("PATH"))
	require.Zero(t, finish(t, cmd).code)

	manifest, err := os.ReadFile("../../docs/kubernetes-sidecar.yaml")
	require.NoError(t, err)
	var words []string
	list := regexp.MustCompile(`(?m)^ +args: (\[.*\])$`).FindSubmatch(manifest)[1]
	require.NoError(t, json.Unmarshal(list, &words))
	r := call(t, append(words, "--db", dsn, "--ttl", "1ms")...)
	require.Equal(t, exitUsage, r.code)
	require.Contains(t, r.err, "--ttl 1ms", "nothing else is wrong with it")
}

// What exec costs over the command, on a database that has its tables: the difference
// of the two.
func BenchmarkExec(b *testing.B) {
	dsn := filepath.Join(folder(b), "app.db")
	require.NoError(b, execOf(b, dsn, "true").Run())
	b.Run("true", func(b *testing.B) {
		for b.Loop() {
			require.NoError(b, exec.Command("true").Run())
		}
	})
	b.Run("exec true", func(b *testing.B) {
		for b.Loop() {
			require.NoError(b, execOf(b, dsn, "true").Run())
		}
	})
}
