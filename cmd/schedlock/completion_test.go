package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/missing"
)

func TestWordsAreCompleted(t *testing.T) {
	t.Parallel()
	for typed, want := range map[string]string{
		"stat":                           "status",
		"re":                             "replicas release resume reset-cursor",
		"--ver":                          "",
		"--no":                           "--no-color",
		"--db ":                          ":files",
		"--db postgres://h/d stat":       "status",
		"--db=":                          ":files",
		"--db=app.db stat":               "status",
		"exec --restart=on":              "--restart=on-failure",
		"exec --restart=":                "--restart=never --restart=on-failure --restart=always",
		"exec --nonsense=":               "",
		"--json ru":                      "runs run",
		"status --sch":                   "--schema",
		"exec --re":                      "--restart",
		"exec --restart ":                "never on-failure always",
		"exec --restart on":              "on-failure",
		"exec --no-wait -- ":             ":programs",
		"exec -- sh ":                    ":files",
		"exec sh scri":                   ":files",
		"help fen":                       "fence",
		"completion ":                    "bash zsh fish",
		"queue re":                       "requeue",
		"locks ":                         "release",
		"nonsense ":                      "",
		"status ":                        "",
		"history -n ":                    "",
		"--db postgres://u:p@h/d queue ": "count list requeue prune",
	} {
		got := callWith(t, nil, append([]string{"completion", "words", "--"},
			strings.Split(typed, " ")...)...)
		assert.Zero(t, got.code, got.err)
		assert.Equal(t, want, strings.Join(strings.Fields(got.out), " "), typed)
	}
}

// The scripts, in the shells that they are for.
func TestShellsComplete(t *testing.T) {
	t.Parallel()
	dir := folder(t)
	tool := process(t)
	require.NoError(t, os.Symlink(tool.Path, filepath.Join(dir, "schedlock")))
	in := map[string]string{
		"fish": `complete -C "schedlock exec --restart on"
			complete -C "schedlock --db=app.db exec --restart=on"
			complete -C "schedlock --db=there"`,
		// What compadd would offer.
		"zsh": `compadd() { print -l -- ${(P)3}; }
			words=(schedlock exec --restart on); CURRENT=4; _schedlock
			words=(schedlock --db=app.db exec --restart=on); CURRENT=4; _schedlock
			compset() { :; }
			_files() { echo --db=there.db; }
			words=(schedlock --db=there); CURRENT=2; _schedlock`,
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, "there.db"), nil, 0o600))
	for shell, then := range in {
		t.Run(shell, func(t *testing.T) {
			t.Parallel()
			path, err := exec.LookPath(shell)
			if err != nil {
				missing.Skip(t, "%s, on the PATH", shell)
			}
			script := call(t, "completion", shell).out
			if shell == "zsh" {
				script = "compdef() { :; }\n" + script
			}
			cmd := exec.Command(path, "-c", script+then)
			cmd.Dir = dir
			cmd.Env = append(tool.Env, "PATH="+dir+":"+os.Getenv("PATH"), "HOME="+dir)
			out, err := cmd.CombinedOutput()
			require.NoError(t, err, string(out))
			require.Equal(t, "on-failure\n--restart=on-failure\n--db=there.db\n", string(out))
		})
	}
}

func TestTheManualPage(t *testing.T) {
	t.Parallel()
	groff, err := exec.LookPath("groff")
	if err != nil {
		missing.Skip(t, "groff, on the PATH (Debian: apt-get install groff-base)")
	}
	cmd := exec.Command(groff, "-man", "-ww", "-T", "utf8", "-P", "-c")
	cmd.Stdin = strings.NewReader(call(t, "man").out)
	var warnings strings.Builder
	cmd.Stderr = &warnings
	out, err := cmd.Output()
	require.NoError(t, err)
	require.Empty(t, warnings.String())
	for _, c := range commands {
		require.Contains(t, string(out), c.name)
		for _, line := range strings.Split(c.help, "\n") {
			require.Contains(t, string(out), strings.TrimSpace(line), c.name)
		}
	}
}

func TestASlipInACommandIsNamed(t *testing.T) {
	t.Parallel()
	for typed, meant := range map[string]string{"stauts": "status", "relase": "release",
		"hlep": "help", "exce": "exec"} {
		assert.Contains(t, call(t, typed).err, "did you mean "+meant+"?")
	}
	assert.NotContains(t, call(t, "frobnicate").err, "did you mean")
	assert.NotContains(t, call(t, strings.Repeat("status", 10)).err, "did you mean")
	assert.NotContains(t, call(t, "--db", "host=h", "password=x", "statu").err, "status",
		"it may be a part of the password")
}

func TestASlipInAFlagIsNamed(t *testing.T) {
	t.Parallel()
	for typed, meant := range map[string]string{"status --jsno": "--json",
		"--tiemout=3s status": "--timeout", "release --forse": "--force", "pause -al": "--all"} {
		assert.Contains(t, expect(t, exitUsage, strings.Fields(typed)...),
			"did you mean "+meant+"?", typed)
	}
	assert.NotContains(t, call(t, "status", "--nonsense").err, "did you mean")
	assert.NotContains(t, call(t, "--db", "host=h", "password=x", "--jsno").err, "jsno",
		"it may be a part of the password")
}
