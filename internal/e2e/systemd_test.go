//go:build linux

package e2e

import (
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/cmd/demoapp/app"
	"example.com/schedlock/internal/missing"
)

const unitPath = "../../docs/systemd/demoapp@.service"

// A unitFile is what a unit says: its values by section/key, in their order.
type unitFile map[string][]string

func readUnit(t *testing.T) unitFile {
	t.Helper()
	file, err := os.ReadFile(unitPath)
	require.NoError(t, err)
	u, section := unitFile{}, ""
	for line := range strings.Lines(string(file)) {
		line = strings.TrimSpace(line)
		switch {
		case line == "" || line[0] == '#':
		case line[0] == '[':
			section = strings.Trim(line, "[]")
		default:
			key, value, ok := strings.Cut(line, "=")
			require.True(t, ok, line)
			u[section+"/"+key] = append(u[section+"/"+key], value)
		}
	}
	return u
}

// one is the value of a key that stands there once.
func (u unitFile) one(t *testing.T, key string) string {
	t.Helper()
	require.Len(t, u[key], 1, key)
	return u[key][0]
}

func (u unitFile) seconds(t *testing.T, key string) time.Duration {
	t.Helper()
	n, err := strconv.Atoi(u.one(t, key))
	require.NoError(t, err, key)
	return time.Duration(n) * time.Second
}

// environment is that of an instance whose state lies below a folder.
func (u unitFile) environment(t *testing.T, instance, state string) map[string]string {
	t.Helper()
	env := map[string]string{}
	for _, v := range u["Service/Environment"] {
		name, value, ok := strings.Cut(expand(v, instance, state), "=")
		require.True(t, ok, v)
		require.NotContains(t, value, "%", "a specifier that this test does not know")
		env[name] = value
	}
	return env
}

// expand replaces the specifiers that the unit uses.
func expand(s, instance, state string) string {
	return strings.NewReplacer("%i", instance, "%S", state).Replace(s)
}

func TestSystemdUnitFitsTheApp(t *testing.T) {
	t.Parallel()
	u := readUnit(t)
	var urls []string
	for _, instance := range []string{"1", "2"} {
		env := u.environment(t, instance, "/var/lib")
		require.Equal(t, "127.0.0.1:808"+instance, env["DEMOAPP_ADDR"])
		require.NotContains(t, env, "DEMOAPP_MODE", "one of the two must wait")
		require.Greater(t, u.seconds(t, "Service/TimeoutStopSec"), stopBudget(t, env))
		urls = append(urls, env["DEMOAPP_DATABASE_URL"])
	}
	require.Equal(t, "SIGTERM", u.one(t, "Service/KillSignal"))
	require.Greater(t, u.seconds(t, "Service/TimeoutStartSec"), time.Minute,
		"the two stages before HTTP: the lock's database, and the bans")

	// Both have one database, in the folder that systemd makes for them.
	folder := "/var/lib/" + u.one(t, "Service/StateDirectory")
	require.Equal(t, folder, expand(u.one(t, "Service/WorkingDirectory"), "1", "/var/lib"))
	require.Equal(t, urls[0], urls[1])
	require.Equal(t, folder, filepath.Dir(strings.TrimPrefix(urls[0], "file:")))
	require.Equal(t, "0700", u.one(t, "Service/StateDirectoryMode"))
	require.Equal(t, "demoapp", u.one(t, "Service/User"))
	require.NotContains(t, u, "Service/DynamicUser")

	// A start that fails is said, a bad configuration is not tried again, and
	// anything else is, without end.
	program := u.one(t, "Service/ExecStart")
	require.Equal(t, "exec", u.one(t, "Service/Type"),
		"until then MAINPID is another user's, which kill -0 may not ask")
	require.Contains(t, u.one(t, "Service/ExecStartPost"), program+" healthcheck ")
	require.Equal(t, "always", u.one(t, "Service/Restart"))
	require.Equal(t, "0", u.one(t, "Unit/StartLimitIntervalSec"))
	require.Equal(t, strconv.Itoa(app.Main([]string{"--lock-ttl=1ms"}, io.Discard)),
		u.one(t, "Service/RestartPreventExitStatus"))

	for key, want := range map[string]string{
		"NoNewPrivileges": "yes", "CapabilityBoundingSet": "", "ProtectSystem": "strict",
		"ProtectHome": "yes", "PrivateTmp": "yes",
		"RestrictAddressFamilies": "AF_INET AF_INET6 AF_UNIX", "MemoryDenyWriteExecute": "yes",
		"SystemCallFilter": "@system-service",
	} {
		require.Equal(t, want, u.one(t, "Service/"+key), key)
	}
}

// systemd says what it does not understand, and ignores it.
func TestSystemdUnderstandsTheUnits(t *testing.T) {
	t.Parallel()
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		missing.Skip(t, "the program systemd-analyze (the unit was read by another test)")
	}
	exe, err := os.Executable()
	require.NoError(t, err)
	units, err := filepath.Glob(filepath.Join(filepath.Dir(unitPath), "*.service"))
	require.NoError(t, err)
	require.NotEmpty(t, units)
	for _, unit := range units {
		file, err := os.ReadFile(unit)
		require.NoError(t, err)
		copied := filepath.Join(t.TempDir(), filepath.Base(unit))
		program := regexp.MustCompile(`/usr/local/bin/\w+`)
		require.NoError(t, os.WriteFile(copied, program.ReplaceAll(file, []byte(exe)), 0o600))
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		out, err := exec.CommandContext(ctx, analyze, "verify", "--man=no",
			strings.Replace(copied, "@", "@1", 1)).CombinedOutput()
		require.NoError(t, err, "%s", out)
		require.Empty(t, string(out))
	}
}

// nobody is the user that instances get if the tests run as root.
const nobody = 65534

// userOf prepares a state folder and says who may use it: nobody instead of
// root, unless nobody cannot come there.
func userOf(t *testing.T, state string) *syscall.Credential {
	t.Helper()
	if os.Getuid() != 0 {
		return nil
	}
	user := &syscall.Credential{Uid: nobody, Gid: nobody}
	require.NoError(t, os.Chown(state, nobody, nobody))
	// t.TempDir is below a folder of mode 0700
	require.NoError(t, os.Chmod(filepath.Join(state, "../.."), 0o711))
	probe := exec.Command("/bin/sh", "-c", "exec touch probe")
	probe.Dir, probe.SysProcAttr = state, &syscall.SysProcAttr{Credential: user}
	if out, err := probe.CombinedOutput(); err != nil {
		t.Logf("the instances run as root, as user %d cannot write to %s: %v %s", nobody, state,
			err, out)
		require.NoError(t, os.Chown(state, 0, 0))
		return nil
	}
	require.NoError(t, os.Remove(filepath.Join(state, "probe")))
	return user
}

// startInstance starts what systemd would: with the unit's environment, umask
// and working directory. Only the port is another, since those of the unit may
// be taken.
func (f *fleet) startInstance(u unitFile, instance string, user *syscall.Credential) *replica {
	f.t.Helper()
	env := u.environment(f.t, instance, f.dir)
	env["DEMOAPP_ADDR"] = regexp.MustCompile(`\d+$`).ReplaceAllString(env["DEMOAPP_ADDR"], "0")
	exe, err := os.Open("/proc/self/exe")
	require.NoError(f.t, err)
	defer exe.Close()
	// By the descriptor, as the program may lie where another user may not go.
	cmd := exec.Command("/bin/sh", "-c", "umask "+u.one(f.t,
		"Service/UMask")+" && exec /proc/self/fd/3")
	cmd.ExtraFiles = []*os.File{exe}
	cmd.Dir = expand(u.one(f.t, "Service/WorkingDirectory"), instance, f.dir)
	for name, value := range env {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: user}
	r := f.hold(cmd)
	r.begin()
	r.awaitServing()
	return r
}

func TestSystemdInstancesReplaceEachOther(t *testing.T) {
	t.Parallel()
	u := readUnit(t)
	f := newFleet(t)
	state := filepath.Join(f.dir, u.one(t, "Service/StateDirectory"))
	require.NoError(t, os.Mkdir(state, 0o700))
	user := userOf(t, state)
	first := f.startInstance(u, "1", user)
	term := first.awaitLeading()
	second := f.startInstance(u, "2", user)
	require.False(t, second.lock().Self.Leader)

	// A crash, after which systemd starts it again.
	killed := time.Now()
	first.kill()
	next := second.awaitLeading()
	require.Greater(t, next, term)
	terms := second.terms()
	require.Equal(t, "proven dead", terms[1].EndReason)
	assert.Less(t, terms[0].AcquiredAt.Sub(killed), soon(time.Second), "far below the TTL of 60 s")
	first = f.startInstance(u, "1", user)

	// A rolling restart of both.
	first.stop()
	first = f.startInstance(u, "1", user)
	require.Equal(t, next, second.lock().Self.Term)
	second.stop()
	require.Greater(t, first.awaitLeading(), next)
	require.Equal(t, "released", first.terms()[1].EndReason)
	second = f.startInstance(u, "2", user)
	require.False(t, second.lock().Self.Leader)

	// All files are of the one user, and nobody else's to read.
	entries, err := os.ReadDir(state)
	require.NoError(t, err)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
		info, err := e.Info()
		require.NoError(t, err)
		require.Zero(t, info.Mode().Perm()&0o077, e.Name())
		if user != nil {
			require.Equal(t, user.Uid, info.Sys().(*syscall.Stat_t).Uid, e.Name())
		}
	}
	require.Subset(t, names, []string{"demoapp.db", "demoapp.db-wal", "demoapp.db-lease"})
	for _, r := range []*replica{first, second} {
		r.stop()
		require.Empty(t, r.errorLines())
	}
}
