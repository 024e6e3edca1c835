package main

import (
	"database/sql"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"example.com/schedlock/internal/missing"
	"example.com/schedlock/schedlock"
)

// exec itself keeps the output open, for the next time that it starts the command, as
// timeout(1) does.
func TestExecOfACommandThatClosesItsOutput(t *testing.T) {
	missing.Long(t, "starts processes")
	t.Parallel()
	dsn := filepath.Join(folder(t), "app.db")
	require.Equal(t, result{3, "bye\n", ""}, finish(t, execOf(t, dsn, "--", "sh", "-c",
		"echo bye; exec >&- 2>&-; sleep 0.1; exit 3")))
	r := finish(t, execOf(t, dsn, "--", "sh", "-c", "yes | head -1; exit 4"))
	require.Equal(t, result{4, "y\n", ""}, r)
}

// What the caller has opened by number is the command's: the processes of exec and the lease file
// are out of its way, also where the system allows few descriptors.
func TestExecHandsDownTheDescriptorsOfItsCaller(t *testing.T) {
	missing.Long(t, "starts processes")
	inBoth(t, func(t *testing.T, dsn string) {
		command := []string{"bash", "-c", `cat <&3; cat <&4; exec 3>/dev/null; cd /proc/$$/fd; ls`}
		run := func(limit int, cmd *exec.Cmd) []string {
			args := append([]string{"-c", fmt.Sprintf(`ulimit -n %d; exec "$0" "$@"`, limit), cmd.Path},
				cmd.Args[1:]...)
			limited := exec.Command("/bin/sh", args...)
			limited.Env, limited.Dir = cmd.Env, cmd.Dir
			for _, text := range []string{"third\n", "fourth\n"} {
				read, write, err := os.Pipe()
				require.NoError(t, err)
				defer read.Close()
				_, err = write.WriteString(text)
				require.NoError(t, err)
				require.NoError(t, write.Close())
				limited.ExtraFiles = append(limited.ExtraFiles, read)
			}
			r := finish(t, limited)
			require.Zero(t, r.code, r.err)
			return strings.Fields(r.out)
		}
		for _, limit := range []int{1024, 150} {
			direct := run(limit, exec.Command(command[0], command[1:]...))
			require.Subset(t, direct, []string{"third", "fourth", "0", "1", "2", "3", "4"})
			under := run(limit, execOf(t, dsn, append([]string{"--"}, command...)...))
			require.Subset(t, under, direct)
			more := slices.DeleteFunc(under, func(fd string) bool { return slices.Contains(direct, fd) })
			if strings.HasPrefix(dsn, "postgres") {
				require.Empty(t, more)
				continue
			}
			require.Len(t, more, 1, "the lease file")
			if limit > 200 {
				require.Regexp(t, "^20.$", more[0])
			}
		}
	})
}

// Everybody can see the arguments of a process, and the address may have a password. The command's
// own environment stays what the caller gave.
func TestTheProcessThatHoldsTheLockDoesNotShowTheAddress(t *testing.T) {
	missing.Long(t, "starts processes")
	t.Parallel()
	dsn := filepath.Join(folder(t), "app.db")
	for _, args := range [][]string{{"exec", "--db", dsn, "--name", "--db", "--"},
		{"--db=" + dsn, "exec", "--name=--db"}, {"--db", "other", "exec", "-v", "--db", dsn}} {
		cmd := process(t, append(args, "sh", "-c",
			`tr '\0' ' ' </proc/$PPID/cmdline; env | grep DATABASE_URL`, "--db", "x")...)
		another := filepath.Join(folder(t), "another.db")
		cmd.Env = append(cmd.Env, "PATH="+os.Getenv("PATH"), "SCHEDLOCK_DATABASE_URL=the caller's",
			innerVariable+"="+another)
		r := finish(t, cmd)
		require.Zero(t, r.code, r.err)
		require.NotContains(t, r.out, dsn)
		require.NotContains(t, r.out, "other")
		require.FileExists(t, dsn)
		require.NoFileExists(t, another, "the environment does not change the database")
		require.Regexp(t, `(?s)^schedlock: inner of .* exec .*sh -c .* --db x `+
			`SCHEDLOCK_DATABASE_URL=the caller's\n$`, r.out)
	}
}

// The commands advise what they can do themselves.
func TestTheLockOfAnotherAppIsRefusedWithFlags(t *testing.T) {
	missing.Long(t, "starts processes")
	t.Parallel()
	dsn := migrated(t, folder(t))
	store := openAs(t, dsn)
	defer store.Close()
	lease := acquired(t, store, schedlock.WithApp("billing"))
	defer func() { require.NoError(t, lease.Release(bg)) }()
	for remedies, cmd := range map[string]*exec.Cmd{
		"give --name, or --schema on PostgreSQL, or another --db": execOf(t, dsn, "true"),
		"lock of its own: give --schema on PostgreSQL, or another --db": process(t, "lead", "--db",
			dsn, "--listen", "127.0.0.1:0"),
	} {
		r := finish(t, cmd)
		require.NotZero(t, r.code)
		require.Contains(t, r.err, `another app, "billing", leads with this lock`)
		require.Contains(t, r.err, remedies)
		require.NotContains(t, r.err, "WithSchema")
	}
}

// A shell with job control stops exec, and lets it go on in front or behind.
func TestExecUnderJobControl(t *testing.T) {
	missing.Long(t, "starts processes")
	t.Parallel()
	dsn := filepath.Join(folder(t), "app.db")
	s := startShell(t)
	// Not in sh: while dash starts a program it can't be stopped (vfork), but that program can be.
	// Without the trap bash goes on if its child has just ended by itself when Ctrl-C comes.
	s.enter(strings.Join(execOf(t, dsn, "--", "bash", "-c",
		`'trap "trap - INT; kill -INT $$" INT; while :; do echo tick; sleep 0.05; done'`).Args,
		" ") + "\n")
	stop := func() {
		t.Helper()
		s.await("tick\r\n")
		s.enter("\x1a")
		s.await("Stopped")
		s.await(prompt)
	}
	stop()
	require.Equal(t, exitDone, call(t, "status", "--db", dsn).code, "the lock stays held")
	s.enter("fg\n")
	stop()
	s.enter("bg\n")
	s.await("tick\r\n")
	s.enter("echo in''front\n")
	s.await("infront")
	s.enter("fg\n")
	eventually(t, "the shell has given the terminal away", func() bool {
		front, err := unix.IoctlGetInt(int(s.master.Fd()), unix.TIOCGPGRP)
		return err == nil && front != s.cmd.Process.Pid
	})
	s.enter("\x03")
	s.await(prompt)
	s.enter("echo code=$?\n")
	s.await("code=130")
	require.Equal(t, exitNothing, call(t, "status", "--db", dsn).code, "it is given back")
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
	missing.Long(t, "runs Python")
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
			`os.environ["SCHEDLOCK_DATABASE_URL"]`)
		require.NoError(t, os.WriteFile(script, []byte(program), 0o600))
		tool := process(t)
		require.NoError(t, os.Symlink(tool.Path, filepath.Join(dir, "schedlock")))
		run := func(before string) result {
			cmd := execOf(t, dsn, "--", "sh", "-c", before+"exec "+python+" "+script)
			cmd.Env = append(cmd.Env, "PATH="+dir+":"+os.Getenv("PATH"), databaseVariable+"="+dsn)
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
	a := startLead(t, dsn, "127.0.0.1:0")
	a.awaitLead()
	b := startLead(t, dsn, "127.0.0.1:0")
	nobody, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, nobody.Close())
	var program string
	for _, addr := range []string{a.addr, b.addr, nobody.Addr().String()} {
		program += strings.ReplaceAll(pythonOfTheDocs(t, "leads_until"), "127.0.0.1:7070", addr) +
			"\nprint(leads_until() > time.monotonic())\n"
	}
	out, err := exec.Command(python, "-c", program).CombinedOutput()
	require.NoError(t, err, string(out))
	require.Equal(t, "True\nFalse\nFalse\n", string(out))
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
	require.Contains(t, expect(t, exitUsage, append(words, "--db", dsn, "--ttl", "1ms")...),
		"--ttl 1ms", "nothing else is wrong with it")
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
