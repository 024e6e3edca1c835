package model

import (
	"bufio"
	"cmp"
	"flag"
	"fmt"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/missing"
)

var (
	all   = flag.Bool("model.all", false, "search every run, not only the small ones")
	only  = flag.String("model.run", "", "search the runs whose name matches, and tell what breaks")
	write = flag.Bool("model.write", false, "with -model.all: write testdata/states.txt anew")
)

const (
	// small is how many states a run has at most that is searched in a full run.
	small = 60_000
	// plain is the same for the comparison with the plain search, and few is how many
	// states that may have.
	plain, few = 2_500, 300_000
	// most is how many states any run may have.
	most = 4_000_000
)

const statesFile = "testdata/states.txt"

// states is how many states each run has. The numbers are no promise. They choose the
// small runs, and show which runs a change of a model has changed.
func states(t *testing.T) map[string]int {
	file, err := os.Open(statesFile)
	require.NoError(t, err)
	defer file.Close()
	numbers := map[string]int{}
	for lines := bufio.NewScanner(file); lines.Scan(); {
		number, name, _ := strings.Cut(strings.TrimSpace(lines.Text()), " ")
		var n int
		_, err := fmt.Sscan(number, &n)
		require.NoError(t, err, lines.Text())
		numbers[name] = n
	}
	return numbers
}

func TestTheVerdictOfEachRun(t *testing.T) {
	pattern, err := regexp.Compile(*only)
	require.NoError(t, err)
	known := states(t)
	small := small
	switch {
	case testing.Short():
		small /= 20
	case !missing.Full():
		small /= 3
	}
	runs := slices.DeleteFunc(Runs(), func(r Run) bool {
		n, ok := known[r.Name]
		return !pattern.MatchString(r.Name) || *only == "" && !*all && (!ok || n > small)
	})
	require.NotEmpty(t, runs)
	// The largest first, so that no processor waits for it at the end.
	slices.SortStableFunc(runs, func(a, b Run) int {
		return cmp.Compare(known[b.Name], known[a.Name])
	})
	found := map[string]int{}
	results := make(chan func())
	slots := make(chan struct{}, runtime.GOMAXPROCS(0))
	go func() {
		for _, r := range runs {
			slots <- struct{}{}
			go func() {
				start := time.Now()
				got := r.Search(Options{Limit: most})
				took := time.Since(start).Round(time.Millisecond)
				<-slots
				results <- func() {
					found[r.Name] = got.States
					t.Run(r.Name, func(t *testing.T) { judge(t, r, got, known[r.Name], took) })
				}
			}()
		}
	}()
	for range runs {
		(<-results)()
	}
	if *all && *write {
		writeStates(t, found)
	}
}

func judge(t *testing.T, r Run, got Result, states int, took time.Duration) {
	t.Logf("%v: %d states, %v", got.Broken, got.States, took)
	assert.True(t, got.Complete || got.Broken != Holds,
		"gave up after %d events: raise the constant most", got.Depth)
	assert.Equal(t, r.Want.String(), got.Broken.String())
	if !*write {
		assert.Equal(t, states, got.States, "states; if it was meant: -model.all -model.write")
	}
	if *only != "" || t.Failed() {
		t.Log(r.Missing + "\n" + strings.Join(got.Trace, "\n"))
	}
}

func writeStates(t *testing.T, numbers map[string]int) {
	var lines strings.Builder
	for _, r := range Runs() {
		fmt.Fprintf(&lines, "%7d %s\n", numbers[r.Name], r.Name)
	}
	require.NoError(t, os.WriteFile(statesFile, []byte(lines.String()), 0o644))
}

// A search that forgets nothing, and in which no replicas change places, comes to the
// same verdict, after as many events.
func TestThePlainSearchAgrees(t *testing.T) {
	missing.Long(t, "searches plainly")
	known := states(t)
	runs := slices.DeleteFunc(Runs(), func(r Run) bool { return known[r.Name] > plain })
	shorter := func(c leaseRules) leaseRules {
		c.TTL, c.Deadline, c.FullWatch, c.Prompt = 3, 2, 3, true
		return today(c)
	}
	runs = append(runs,
		holds("a crash", shorter(leaseRules{Crashes: 1, LeadsWithin: 3})),
		breaks("a crash, a tick sooner", SomebodyLeads, "",
			shorter(leaseRules{Crashes: 1, LeadsWithin: 2})),
		holds("an edit", shorter(leaseRules{Edits: 1, EditsToken: true, Byte: bytePerToken})),
		holds("a crash of the server",
			forgetfulRules{Replicas: 2, Claims: 2, LazyRelease: true, Crashes: 1}),
		holds("a fail-over",
			forgetfulRules{Replicas: 2, Claims: 2, LazyRelease: true, FailOvers: 1}),
		holds("a kill and an edit", byteRules{Replicas: 2, Claims: 2, Rule: endBesideFile, Kills: 1,
			AllSee: true, Edits: 1}),
		holds("a kill and a copy", byteRules{Replicas: 2, Claims: 2, Rule: endBesideFile, Kills: 1,
			AllSee: true, Moves: 1, Elsewhere: 1}))
	compared := map[Promise]int{}
	for _, r := range runs {
		reduced := r.Search(Options{Limit: few})
		full := r.Search(Options{Limit: few, Plain: true})
		t.Logf("%s: %v, %d states, plain %d", r.Name, full.Broken, reduced.States, full.States)
		assert.Equal(t, r.Want.String(), reduced.Broken.String(), r.Name)
		assert.Equal(t, r.Want.String(), full.Broken.String(), r.Name)
		assert.Equal(t, reduced.Depth, full.Depth, r.Name)
		compared[full.Broken]++
	}
	for _, p := range []Promise{Holds, OneLeader, TermsRise, FenceHolds, SomebodyLeads} {
		assert.NotZero(t, compared[p], "no small run shows: %v", p)
	}
}

func TestEachRunSaysWhatIsMissing(t *testing.T) {
	names := map[string]bool{}
	for _, r := range Runs() {
		assert.Equal(t, r.Want != Holds, r.Missing != "", r.Name)
		assert.False(t, names[r.Name], "two runs are called %q", r.Name)
		names[r.Name] = true
	}
}
