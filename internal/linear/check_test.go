package linear

import (
	"testing"

	"github.com/anishathalye/porcupine"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/model"
)

// termsGrow reports whether each term that was granted is above those that were granted
// before it was asked for.
func termsGrow(history []Op) bool {
	var granted []Op
	for _, op := range history {
		if op.Term != 0 {
			granted = append(granted, op)
		}
	}
	for _, a := range granted {
		for _, b := range granted {
			if a.Key == b.Key && a.To < b.From && a.Term >= b.Term {
				return false
			}
		}
	}
	return true
}

func TestWhatIsNotLinearizableIsNoticed(t *testing.T) {
	t.Parallel()
	op := func(from, to int64, c Call, r Result) Op { return Op{c, r, from, to} }
	released := op(3, 4, Call{Op: Release, Token: "a"}, Result{Answer: Yes})
	first := op(1, 2, Call{Op: Acquire, Token: "a"}, Result{Answer: Yes, Term: 1})
	other := Call{Op: Acquire, Token: "b"}
	news := Call{Op: Acquire, Token: "b", Judged: model.Row{Newest: "a"}}
	claim := Call{Op: Acquire, Token: "b", Watched: true,
		Judged: model.Row{Token: "a", Newest: "a", Open: true}}
	for name, test := range map[string]struct {
		more []Op
		want porcupine.CheckResult
	}{
		"nothing more": {nil, porcupine.Ok},
		"two of one judgement": {[]Op{
			op(1, 3, other, Result{Answer: Yes, Term: 2})}, porcupine.Illegal},
		"the second was refused": {[]Op{
			op(1, 3, other, Result{Answer: No})}, porcupine.Ok},
		"it was refused before": {[]Op{
			op(0, 0, other, Result{Answer: No})}, porcupine.Illegal},
		"a renewal without a row": {[]Op{released,
			op(5, 6, Call{Op: Renew, Token: "a"}, Result{Answer: Yes})}, porcupine.Illegal},
		"a renewal beside the release": {[]Op{
			op(3, 6, Call{Op: Release, Token: "a"}, Result{Answer: Yes}),
			op(5, 6, Call{Op: Renew, Token: "a"}, Result{Answer: Yes})}, porcupine.Ok},
		"a renewal that was refused": {[]Op{
			op(5, 6, Call{Op: Renew, Token: "a"}, Result{Answer: No})}, porcupine.Illegal},
		"a release of somebody else's row": {[]Op{
			op(3, 4, Call{Op: Release, Token: "b"}, Result{Answer: Yes})}, porcupine.Illegal},
		"a release that found nothing": {[]Op{
			op(3, 4, Call{Op: Release, Token: "a"}, Result{Answer: No})}, porcupine.Illegal},
		"a look at an old row": {[]Op{released, op(5, 6, Call{Op: Look}, Result{Answer: Yes,
			Saw: model.Row{Token: "a", Newest: "a", Open: true}})}, porcupine.Illegal},
		"a look at a term without its end": {[]Op{released, op(5, 6, Call{Op: Look},
			Result{Answer: Yes, Saw: model.Row{Newest: "a", Open: true}})}, porcupine.Illegal},
		"a release that nobody was told of": {[]Op{
			op(3, Never, Call{Op: Release, Token: "a"}, Result{Answer: Unknown}),
			op(5, 6, Call{Op: Look},
				Result{Answer: Yes, Saw: model.Row{Newest: "a"}})}, porcupine.Ok},
		"a claim that nobody was told of": {[]Op{
			op(3, Never, claim, Result{Answer: Unknown}),
			op(5, 6, Call{Op: Look}, Result{Answer: Yes, Saw: claim.Judged}),
			op(7, 8, Call{Op: Look}, Result{Answer: Yes,
				Saw: model.Row{Token: "b", Newest: "b", Open: true}})}, porcupine.Ok},
		"news that come true": {[]Op{
			op(3, Never, news, Result{Answer: Unknown}),
			op(5, 6, Call{Op: Look}, Result{Answer: Yes, Saw: claim.Judged}),
			op(7, 8, Call{Op: Release, Token: "a"}, Result{Answer: Yes}),
			op(9, 10, Call{Op: Look}, Result{Answer: Yes,
				Saw: model.Row{Token: "b", Newest: "b", Open: true}})}, porcupine.Ok},
		"news that come true too late": {[]Op{
			op(3, Never, Call{Op: Acquire, Token: "c", Judged: news.Judged},
				Result{Answer: Unknown}),
			op(5, 6, claim, Result{Answer: Yes}),
			op(9, 10, Call{Op: Look}, Result{Answer: Yes,
				Saw: model.Row{Token: "c", Newest: "c", Open: true}})}, porcupine.Illegal},
		"it comes after a beat": {[]Op{
			op(3, Never, claim, Result{Answer: Unknown}),
			op(5, 6, Call{Op: Renew, Token: "a"}, Result{Answer: Yes}),
			op(7, 8, Call{Op: Look}, Result{Answer: Yes,
				Saw: model.Row{Token: "b", Newest: "b", Open: true}})}, porcupine.Illegal},
		"a lost beat": {[]Op{
			op(3, 4, Call{Op: Renew, Token: "a"}, Result{Answer: Yes}),
			op(5, 6, Call{Op: Look}, Result{Answer: Yes,
				Saw: model.Row{Token: "a", Newest: "a", Open: true}})}, porcupine.Illegal},
		"upon a look before a beat": {[]Op{
			op(3, 4, Call{Op: Renew, Token: "a"}, Result{Answer: Yes}),
			op(5, 6, claim, Result{Answer: Yes, Term: 2})}, porcupine.Illegal},
		"upon news of a release that never was": {[]Op{
			op(3, 4, Call{Op: Acquire, Token: "b", Judged: model.Row{Newest: "a"}},
				Result{Answer: Yes, Term: 2})}, porcupine.Illegal},
		"upon a free lock that somebody has had since": {[]Op{released,
			op(5, 6, other, Result{Answer: Yes, Term: 2})}, porcupine.Illegal},
		"upon a release": {[]Op{released, op(5, 6, Call{Op: Acquire, Token: "b",
			Judged: model.Row{Newest: "a"}}, Result{Answer: Yes, Term: 2})}, porcupine.Ok},
		"a named lock of two": {[]Op{
			op(1, 2, Call{Op: Acquire, Key: "k", Token: "a"}, Result{Answer: Yes}),
			op(3, 4, Call{Op: Acquire, Key: "k", Token: "b"},
				Result{Answer: Yes})}, porcupine.Illegal},
		"of another name": {[]Op{
			op(1, 2, Call{Op: Acquire, Key: "k", Token: "a"}, Result{Answer: Yes}),
			op(3, 4, Call{Op: Acquire, Key: "l", Token: "b"}, Result{Answer: Yes})}, porcupine.Ok},
	} {
		history := append([]Op{first}, test.more...)
		got, misfit := Check(history, false)
		assert.Equal(t, test.want, got, name)
		if got == porcupine.Illegal {
			assert.Contains(t, history, misfit, name)
		}
		if name != "it was refused before" {
			got, _ = Check(history, false, Acquire)
			assert.Equal(t, test.want, got, name)
		}
	}
	require.False(t, termsGrow([]Op{first,
		op(3, 4, Call{Op: Acquire, Token: "b"}, Result{Answer: Yes, Term: 1})}))
	require.True(t, termsGrow([]Op{first,
		op(2, 4, Call{Op: Acquire, Token: "b"}, Result{Answer: Yes, Term: 1})}))
}

// What nobody knows, the first answers tell.
func TestWhateverIsInTheRowAtFirst(t *testing.T) {
	t.Parallel()
	seen := Op{Call{Op: Look}, Result{Answer: Yes, Saw: model.Row{Token: "a", Beat: 7}}, 3, 4}
	beat := func(from int64) Op {
		return Op{Call{Op: Renew, Token: "a"}, Result{Answer: Yes}, from, from + 1}
	}
	again := seen
	again.Saw.Beat, again.From, again.To = 8, 7, 8
	got, _ := Check([]Op{beat(1), seen, beat(5), again}, true)
	assert.Equal(t, porcupine.Ok, got)
	again.Saw.Beat = 9
	got, misfit := Check([]Op{beat(1), seen, beat(5), again}, true)
	assert.Equal(t, porcupine.Illegal, got)
	assert.Equal(t, again, misfit)

	// The row was deleted by hand, and its term has no end: it has to be watched.
	left := Op{Call{Op: Look}, Result{Answer: Yes, Saw: model.Row{Newest: "a", Open: true}}, 1, 2}
	for watched, want := range map[bool]porcupine.CheckResult{
		true: porcupine.Ok, false: porcupine.Illegal} {
		claim := Call{Op: Acquire, Token: "b", Judged: left.Saw, Watched: watched}
		got, _ = Check([]Op{left, {claim, Result{Answer: Yes, Term: 2}, 3, 4}}, true)
		assert.Equal(t, want, got)
	}
}
