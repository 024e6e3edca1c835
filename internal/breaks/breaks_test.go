package breaks

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/child"
	"example.com/schedlock/internal/missing"
)

var (
	run   = flag.String("breaks.run", "", "run the breaks whose subject: name matches this")
	share = flag.String("breaks.share", "", "run the K-th of N shares of the breaks: K/N")
	every = flag.Bool("breaks.all", false, "run all breaks")
)

var root, _ = filepath.Abs(filepath.Join("..", ".."))

// chosen reports whether the flags want the i-th break to run.
func chosen(t *testing.T, i int, b *Break) bool {
	var k, n int
	if *share != "" {
		_, err := fmt.Sscanf(*share, "%d/%d", &k, &n)
		require.True(t, err == nil && 1 <= k && k <= n, "-breaks.share=%s is not K/N", *share)
	}
	return *every || n > 0 && i%n == k-1 ||
		*run != "" && regexp.MustCompile(*run).MatchString(b.Subject+": "+b.Name)
}

// Each break applies, and is noticed, if the flags want to know that. The page about
// reliability names the files.
func TestBreaks(t *testing.T) {
	if *every || *run != "" || *share != "" {
		defer child.Seat()()
	}
	all, err := Load("testdata")
	require.NoError(t, err)
	require.NotEmpty(t, all)
	page, err := os.ReadFile(filepath.Join(root, "docs", "reliability.md"))
	require.NoError(t, err)
	names := map[string]bool{}
	for i, b := range all {
		assert.Contains(t, string(page), "`"+b.Subject+"`", "docs/reliability.md: the files")
		name := b.Subject + ": " + b.Name
		assert.False(t, names[name], "two breaks have the name %q", name)
		names[name] = true
		t.Run(name, func(t *testing.T) {
			files, err := b.Apply(root)
			require.NoError(t, err)
			for _, red := range b.Red {
				requireTests(t, red)
			}
			if chosen(t, i, b) {
				overlay := write(t, files)
				for _, red := range b.Red {
					requireRed(t, overlay, red)
				}
			}
		})
	}
}

// requireTests makes sure that the tests exist: one that was renamed is green.
func requireTests(t *testing.T, red Red) {
	top, _, _ := strings.Cut(red.Run, "/")
	match, err := regexp.Compile(top)
	require.NoError(t, err)
	require.True(t, slices.ContainsFunc(tests(t, red.Folder), match.MatchString),
		"no test of %s matches %s any more", red.Folder, top)
}

var (
	function = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz|Example)\w*)\(`)
	known    = map[string][]string{} // by folder
)

// tests are the names of the tests of a package.
func tests(t *testing.T, folder string) (names []string) {
	if known[folder] != nil {
		return known[folder]
	}
	files, err := filepath.Glob(filepath.Join(root, folder, "*_test.go"))
	require.NoError(t, err)
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, found := range function.FindAllSubmatch(text, -1) {
			names = append(names, string(found[1]))
		}
	}
	known[folder] = names
	return names
}

// write writes the changed files and the overlay that puts them in place.
func write(t *testing.T, files map[string]string) (overlay string) {
	folder := t.TempDir()
	replace := map[string]string{}
	for file, text := range files {
		path := filepath.Join(folder, fmt.Sprint(len(replace))+"-"+filepath.Base(file))
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		replace[filepath.Join(root, file)] = path
	}
	text, err := json.Marshal(map[string]any{"Replace": replace})
	require.NoError(t, err)
	overlay = filepath.Join(folder, "overlay.json")
	require.NoError(t, os.WriteFile(overlay, text, 0o600))
	return overlay
}

var (
	failed  = regexp.MustCompile(`(?m)^\s*--- FAIL: `)
	endless = regexp.MustCompile(`panic: (test timed out after|deadlock: )`) // also of a bubble
)

// leftBehind is said of a bubble whose test has ended before what it has begun.
const leftBehind = "panic: deadlock: main bubble goroutine has exited"

// requireRed runs the tests, and fails unless they fail. The overlay is for what
// the tests build, too.
func requireRed(t *testing.T, overlay string, red Red) {
	t.Helper()
	limit := 3 * time.Minute // a wait in vain may take a minute, and a test has several
	hangs := slices.Contains(red.Options, "hang")
	if hangs {
		limit = 20 * time.Second
	}
	args := []string{"test", "-count=1", "-v", "-vet=off", "-failfast", "-ldflags=-s",
		"-timeout=" + limit.String(), "-run=" + red.Run}
	bound := "ulimit -d 8000000; " // in KiB: a break may make a loop that only allocates
	if slices.Contains(red.Options, "race") {
		args, bound = append(args, "-race"), ""
	}
	ctx, cancel := context.WithTimeout(t.Context(), limit+5*time.Minute) // to build takes a while
	defer cancel()
	cmd := exec.CommandContext(ctx, "sh", append([]string{"-c", bound + `exec go "$@"`, "go"},
		append(args, ".")...)...)
	cmd.Dir = filepath.Join(root, red.Folder)
	cmd.Env = append(os.Environ(), missing.FullEnv+"=1",
		"GOFLAGS="+os.Getenv("GOFLAGS")+" -overlay="+overlay)
	cmd.WaitDelay = 5 * time.Second
	begin := time.Now()
	out, err := cmd.CombinedOutput()
	text := string(out)
	_, skipped, missed := strings.Cut(text, "missing on this machine: ")
	switch {
	case strings.Contains(text, "[build failed]"), strings.Contains(text, "[setup failed]"):
		t.Fatalf("the break does not compile:\n%s", text)
	case ctx.Err() != nil:
		t.Fatalf("%s of %s did not end:\n%s", red.Run, red.Folder, tail(text))
	case strings.Contains(text, leftBehind): // what a test that fails has begun, as a rule
	case endless.MatchString(text):
		require.True(t, hangs, "%s of %s hangs. If that is what shows the break, "+
			"write hang behind it:\n%s", red.Run, red.Folder, tail(text))
	case err != nil && !hangs && failed.MatchString(text):
	case err == nil && missed:
		line, _, _ := strings.Cut(skipped, "\n")
		missing.Skip(t, "%s, of a test that must be red", line)
	default:
		t.Fatalf("not noticed by %s of %s:\n%s", red.Run, red.Folder, tail(text))
	}
	t.Logf("%s of %s is red after %.1f s", red.Run, red.Folder, time.Since(begin).Seconds())
}

// tail is the end of a text.
func tail(text string) string { return text[max(0, len(text)-3000):] }

func TestParseNamesWhatIsWrong(t *testing.T) {
	const head, body = "# a break\nred schedlock ^TestStop$\n", "edit schedlock/lock.go\n-a\n+b\n"
	good, err := Parse("subject", head+body+"\n"+head+body+" c\nedit schedlock/run.go\n-d\n")
	require.NoError(t, err)
	assert.Equal(t, []Edit{{"schedlock/lock.go", "a\nc\n", "b\nc\n"}, {"schedlock/run.go", "d\n", ""}},
		good[1].Edits)
	for text, want := range map[string]string{
		body:                              "before the name of a break",
		"# a break\n" + body:              "not expected here",
		head:                              "no edit",
		head + "edit schedlock/lock.go\n": "changes nothing",
		"# a\nred schedlock ^T$ slow\n":   `unknown option "slow"`,
		head + body + "?":                 "not expected here",
	} {
		_, err := Parse("subject", text)
		assert.ErrorContains(t, err, want, text)
	}
}

func TestABreakThatDoesNotApplySaysSo(t *testing.T) {
	for text, want := range map[string]string{
		"-no such line":                     "does not apply any more: internal/breaks/breaks.go has 0",
		"-	}":                               "times, not once",
		"-package breaks\n+package breaks(": "no Go any more",
	} {
		all, err := Parse("s", "# b\nred schedlock ^TestStop$\nedit internal/breaks/breaks.go\n"+text)
		require.NoError(t, err)
		_, err = all[0].Apply(root)
		assert.ErrorContains(t, err, want)
	}
}
