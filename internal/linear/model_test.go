package linear

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A call is what a process asks of a store. Key is "" for the lock row, or a named lock.
type call struct {
	Op    string
	Key   string
	Token string
	// Of an acquisition what it was judged by: the row's token and beat, or without a
	// row the token of the newest term.
	Row    string
	Beat   int64
	Newest string
}

// What a process may ask for.
const (
	look    = "look"    // at the row
	acquire = "acquire" // compare and swap; of a named lock: if it is free
	renew   = "renew"
	release = "release"
)

// A result is the answer: yes, no, or none, as after a loss of the connection, or the death of who
// has asked.
type result struct {
	Answer string
	Row    string // what a look has seen; also Beat and Newest
	Beat   int64
	Newest string
	Term   int64 // that was granted
}

const (
	yes     = "yes"
	no      = "no"
	unknown = "unknown"
	blocked = "blocked" // by somebody's transaction: nothing is said about the row
)

// state is one row. The token tells whose it is; "": there is none.
type state struct {
	row    string
	beat   int64
	newest string // of the last acquisition, whether it was released or not
}

// next returns the states that may follow, none if the answer cannot have been given. Where two
// acquisitions may get in each other's way, one is refused although the row is as it was judged.
func (s state) next(c call, r result, inEachOthersWay bool) []state {
	after, possible := s, true
	switch c.Op {
	case look:
		if r.Answer == yes && (r.Row != s.row || c.Key == "" && (r.Newest != s.newest ||
			s.row != "" && r.Beat != s.beat)) {
			return nil
		}
		return []state{s}
	case acquire:
		after = state{row: c.Token, newest: c.Token}
		switch {
		case c.Key != "":
			possible = s.row == ""
		case c.Row != "":
			possible = s.row == c.Row && s.beat == c.Beat
		default:
			possible = s.row == "" && s.newest == c.Newest
		}
	case renew:
		if possible = s.row == c.Token; c.Key == "" {
			after.beat++
		}
	case release:
		possible = s.row == c.Token
		after.row, after.beat = "", 0
	}
	switch {
	case r.Answer == blocked, r.Answer == no && !possible,
		r.Answer == no && c.Op == acquire && c.Key == "" && inEachOthersWay:
		return []state{s}
	case r.Answer == yes && possible:
		return []state{after}
	case r.Answer == unknown && possible:
		return []state{s, after}
	case r.Answer == unknown:
		return []state{s}
	}
	return nil
}

func modelOf(inEachOthersWay bool) porcupine.Model {
	m := porcupine.NondeterministicModel{
		Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
			byKey := map[string][]porcupine.Operation{}
			for _, op := range history {
				key := op.Input.(call).Key
				byKey[key] = append(byKey[key], op)
			}
			return slices.Collect(maps.Values(byKey))
		},
		Init: func() []any { return []any{state{}} },
		Step: func(s, c, r any) (next []any) {
			for _, after := range s.(state).next(c.(call), r.(result), inEachOthersWay) {
				next = append(next, after)
			}
			return next
		},
		Equal: func(a, b any) bool { return a == b },
	}
	return m.ToModel()
}

// check looks for an order of the calls in which one database gives these answers.
func check(m porcupine.Model, history []porcupine.Operation) porcupine.CheckResult {
	return porcupine.CheckOperationsTimeout(m, history, 2*time.Minute)
}

// termsGrow reports whether each term that was granted is above those that were granted
// before it was asked for.
func termsGrow(history []porcupine.Operation) bool {
	var granted []porcupine.Operation
	for _, op := range history {
		if op.Output.(result).Term != 0 {
			granted = append(granted, op)
		}
	}
	for _, a := range granted {
		for _, b := range granted {
			if a.Input.(call).Key == b.Input.(call).Key && a.Return < b.Call &&
				a.Output.(result).Term >= b.Output.(result).Term {
				return false
			}
		}
	}
	return true
}

func TestWhatIsNotLinearizableIsNoticed(t *testing.T) {
	t.Parallel()
	op := func(from, to int64, c call, r result) porcupine.Operation {
		return porcupine.Operation{Call: from, Return: to, Input: c, Output: r}
	}
	first := op(1, 2, call{Op: acquire, Token: "a"}, result{Answer: yes, Term: 1})
	for name, test := range map[string]struct {
		more []porcupine.Operation
		want porcupine.CheckResult
	}{
		"nothing more": {nil, porcupine.Ok},
		"two of one judgement": {[]porcupine.Operation{
			op(1, 3, call{Op: acquire, Token: "b"}, result{Answer: yes, Term: 2})}, porcupine.Illegal},
		"the second was refused": {[]porcupine.Operation{
			op(1, 3, call{Op: acquire, Token: "b"}, result{Answer: no})}, porcupine.Ok},
		"it was refused before": {[]porcupine.Operation{
			op(0, 0, call{Op: acquire, Token: "b"}, result{Answer: no})}, porcupine.Illegal},
		"a renewal without a row": {[]porcupine.Operation{
			op(3, 4, call{Op: release, Token: "a"}, result{Answer: yes}),
			op(5, 6, call{Op: renew, Token: "a"}, result{Answer: yes})}, porcupine.Illegal},
		"a renewal beside the release": {[]porcupine.Operation{
			op(3, 6, call{Op: release, Token: "a"}, result{Answer: yes}),
			op(5, 6, call{Op: renew, Token: "a"}, result{Answer: yes})}, porcupine.Ok},
		"a look at an old row": {[]porcupine.Operation{
			op(3, 4, call{Op: release, Token: "a"}, result{Answer: yes}),
			op(5, 6, call{Op: look}, result{Answer: yes, Row: "a", Newest: "a"})}, porcupine.Illegal},
		"a release that nobody was told of": {[]porcupine.Operation{
			op(3, 4, call{Op: release, Token: "a"}, result{Answer: unknown}),
			op(5, 6, call{Op: look}, result{Answer: yes, Newest: "a"})}, porcupine.Ok},
		"a lost beat": {[]porcupine.Operation{
			op(3, 4, call{Op: renew, Token: "a"}, result{Answer: yes}),
			op(5, 6, call{Op: look}, result{Answer: yes, Row: "a", Newest: "a"})}, porcupine.Illegal},
		"a named lock of two": {[]porcupine.Operation{
			op(1, 2, call{Op: acquire, Key: "k", Token: "a"}, result{Answer: yes}),
			op(3, 4, call{Op: acquire, Key: "k", Token: "b"}, result{Answer: yes})}, porcupine.Illegal},
		"of another name": {[]porcupine.Operation{
			op(1, 2, call{Op: acquire, Key: "k", Token: "a"}, result{Answer: yes}),
			op(3, 4, call{Op: acquire, Key: "l", Token: "b"}, result{Answer: yes})}, porcupine.Ok},
	} {
		history := append([]porcupine.Operation{first}, test.more...)
		assert.Equal(t, test.want, check(modelOf(false), history), name)
		if name != "it was refused before" {
			assert.Equal(t, test.want, check(modelOf(true), history), name)
		}
	}
	require.False(t, termsGrow([]porcupine.Operation{first,
		op(3, 4, call{Op: acquire, Token: "b"}, result{Answer: yes, Term: 1})}))
	require.True(t, termsGrow([]porcupine.Operation{first,
		op(2, 4, call{Op: acquire, Token: "b"}, result{Answer: yes, Term: 1})}))
}
