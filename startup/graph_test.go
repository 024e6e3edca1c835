package startup_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"example.com/schedlock/startup"
)

// list makes stages from lines such as "http: database worker_mode".
func list(lines ...string) []startup.Stage {
	var stages []startup.Stage
	for _, line := range lines {
		name, after, _ := strings.Cut(line, ":")
		stages = append(stages, startup.Stage{Name: name, After: strings.Fields(after)})
	}
	return stages
}

func TestNewNamesEveryFault(t *testing.T) {
	cycle := func(names string) string {
		return "stages wait for each other: " + names + "; break the cycle in After"
	}
	for _, tt := range []struct {
		name   string
		stages []startup.Stage
		want   []string
	}{
		{"blank name", list("a", "", " "), []string{
			`stage 2 of 3: its name "" is blank; every stage needs a name`,
			`stage 3 of 3: its name " " is blank; every stage needs a name`,
		}},
		{"duplicate name", list("a", "b", "a", "a"), []string{
			`stage 3 of 4: its name "a" is that of stage 1; names must be unique`,
			`stage 4 of 4: its name "a" is that of stage 1; names must be unique`,
		}},
		{"unknown dependency", list("a: x b y", "b"), []string{
			`stage "a": After names "x", but no stage has that name`,
			`stage "a": After names "y", but no stage has that name`,
		}},
		{"negative timeouts",
			[]startup.Stage{{Name: "a", StartTimeout: -time.Second, StopTimeout: -1}},
			[]string{
				`stage "a": StartTimeout -1s is negative; 0 means 30s`,
				`stage "a": StopTimeout -1ns is negative; 0 means 10s`,
			}},
		{"a stage after itself", list("a: a"), []string{cycle("a → a")}},
		{"a cycle of two", list("a: b", "b: a"), []string{cycle("a → b → a")}},
		{"a cycle without the way to it", list("in: c", "b: c", "c: d", "d: b", "free"),
			[]string{cycle("b → c → d → b")}},
		{"a cycle starts with the stage given first", list("in: c", "b: c", "c: b"),
			[]string{cycle("b → c → b")}},
		{"two cycles", list("a: b", "b: a", "c: d a", "d: c"),
			[]string{cycle("a → b → a"), cycle("c → d → c")}},
		{"everything at once", list("a: b", "b: a", "a: x", ":"),
			[]string{
				`stage 3 of 4: its name "a" is that of stage 1; names must be unique`,
				`stage 4 of 4: its name "" is blank; every stage needs a name`,
				`stage "a": After names "x", but no stage has that name`,
				cycle("a → b → a"),
			}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			g, err := startup.New(tt.stages, nil)
			assert.Nil(t, g)
			assert.EqualError(t, err, strings.Join(tt.want, "\n"))
		})
	}
}

func TestNewLeavesItsArgumentsAlone(t *testing.T) {
	stages := list("b: a", "a")
	_, err := startup.New(stages, nil)
	require.NoError(t, err)
	assert.Equal(t, list("b: a", "a"), stages, "New has changed its argument")
}

// Whatever the stages, New either finds an order that respects every
// dependency, and in which each stage is the first given that could be next, or
// names cycles that are there.
func TestOrderOfAnyStages(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(0, 8).Draw(t, "stages")
		stages := make([]startup.Stage, n)
		for i := range stages {
			stages[i].Name = string(rune('a' + i))
			for _, dep := range rapid.SliceOfN(rapid.IntRange(0, n-1), 0, 2).Draw(t, "after") {
				stages[i].After = append(stages[i].After, string(rune('a'+dep)))
			}
		}

		if _, err := startup.New(stages, nil); err != nil {
			for line := range strings.Lines(err.Error()) {
				checkCycle(t, stages, line)
			}
			return
		}
		order := orderOf(t, stages)
		require.Equal(t, order, orderOf(t, stages), "the second order differs")
		require.Len(t, order, n)
		for i, name := range order {
			next := slices.IndexFunc(stages, func(st startup.Stage) bool {
				return !slices.Contains(order[:i], st.Name) &&
					!slices.ContainsFunc(st.After, func(dep string) bool {
						return !slices.Contains(order[:i], dep)
					})
			})
			require.GreaterOrEqual(t, next, 0, "no stage can follow %v", order[:i])
			require.Equal(t, stages[next].Name, name, "after %v", order[:i])
		}
	})
}

// checkCycle checks that line spells out a cycle of stages.
func checkCycle(t *rapid.T, stages []startup.Stage, line string) {
	text, found := strings.CutPrefix(strings.TrimSpace(line), "stages wait for each other: ")
	require.True(t, found, "not a cycle: %s", line)
	text, _, _ = strings.Cut(text, ";")
	names := strings.Split(text, " → ")
	require.GreaterOrEqual(t, len(names), 2)
	require.Equal(t, names[0], names[len(names)-1], "does not close: %s", text)
	for i, name := range names[:len(names)-1] {
		st := stages[name[0]-'a']
		require.Contains(t, st.After, names[i+1], fmt.Sprintf("%s: %s does not wait for %s",
			text, name, names[i+1]))
	}
}
