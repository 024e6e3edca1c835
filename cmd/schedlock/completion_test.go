package main

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/missing"
)

func TestWordsAreCompleted(t *testing.T) {
	t.Parallel()
	const file, none = ":0", ":4"
	for typed, want := range map[string]string{
		"stat":                     "status " + none,
		"re":                       "replicas release resume reset-cursor " + none,
		"--no":                     "--no-color " + none,
		"--db ":                    file,
		"--db postgres://h/d stat": "status " + none,
		"--db=app.db stat":         "status " + none,
		"-o ":                      "json wide " + none,
		"--json ru":                "runs run " + none,
		"status --sch":             "--schema " + none,
		"exec --re":                "--restart " + none,
		"exec --restart ":          "never on-failure always " + none,
		"exec --restart=":          "never on-failure always " + none,
		"exec --no-wait -- ":       file,
		"exec sh scri":             file,
		"queue list --state ":      "pending in_progress done failed " + none,
		"runs --status ":           "in_progress done failed abandoned skipped " + none,
		"help fen":                 "fence " + none,
		"completion ":              "bash zsh fish powershell " + none,
		"locks ":                   "release " + none,
		"status ":                  none,
		"history -n ":              none,

		"--db postgres://u:p@h/d queue ": "list requeue prune " + none,
	} {
		got := call(t, append([]string{"__complete"}, strings.Split(typed, " ")...)...)
		assert.Zero(t, got.code, got.err)
		var words []string
		for line := range strings.Lines(got.out) {
			word, _, _ := strings.Cut(strings.TrimSpace(line), "\t")
			words = append(words, word)
		}
		assert.Equal(t, want, strings.Join(words, " "), typed)
	}
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		assert.Contains(t, expect(t, exitDone, "completion", shell), "__complete", shell)
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
	everyCommand(func(c command, path string) {
		require.Contains(t, string(out), path)
		help := strings.Replace(c.help, "Examples:\n", "", 1)
		for _, line := range strings.Split(help, "\n") {
			require.Contains(t, string(out), strings.TrimSpace(line), path)
		}
	})
}

// everyCommand is told of each command and of what stands behind "schedlock" for it.
func everyCommand(do func(c command, path string)) {
	for _, c := range commands {
		do(c, c.name())
		for _, part := range c.parts {
			do(part, c.name()+" "+part.name())
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
		"--tiemout=3s status": "--timeout", "release --forse": "--force", "pause --al": "--all",
		"-db x status": "--db"} {
		assert.Contains(t, expect(t, exitUsage, strings.Fields(typed)...),
			"did you mean "+meant+"?", typed)
	}
	assert.NotContains(t, call(t, "status", "--nonsense").err, "did you mean")
	assert.NotContains(t, call(t, "--db", "host=h", "password=x", "--jsno").err, "js",
		"it may be a part of the password")
}
