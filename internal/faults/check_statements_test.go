package faults

import (
	"time"

	"example.com/schedlock/internal/linear"
	"example.com/schedlock/internal/model"
)

// said is a statement that was answered within a millisecond.
func said(at time.Duration, op, token, answer string) linear.Op {
	return linear.Op{Call: linear.Call{Op: op, Token: token},
		Result: linear.Result{Answer: answer}, From: int64(at), To: int64(at + ms)}
}

// saw is a look at a row that has beaten so often, or at the end of its term.
func saw(at time.Duration, token string, beats int64, ended bool) linear.Op {
	op := said(at, linear.Look, "", linear.Yes)
	if op.Saw = (model.Row{Newest: token}); !ended {
		op.Saw = model.Row{Token: token, Beat: beats, Newest: token, Open: true}
	}
	return op
}

// took is an acquisition of what was judged.
func took(at time.Duration, token string, judged linear.Op) linear.Op {
	op := said(at, linear.Acquire, token, linear.Yes)
	op.Judged, op.Watched = judged.Saw, judged.Saw.Token != ""
	return op
}

var begins = []linear.Op{
	took(10*ms, "a", linear.Op{}),
	said(20*ms, linear.Renew, "a", linear.Yes),
	saw(30*ms, "a", 1, false),
}

func then(more ...linear.Op) func(*History) {
	return func(h *History) { h.Statements = append(append(h.Statements, begins...), more...) }
}

var spoiledRows = []spoiled{
	{"a take-over of what was seen last", then(took(40*ms, "b", begins[2]),
		said(50*ms, linear.Renew, "a", linear.No)), ""},
	{"a take-over of what was seen before a heartbeat",
		then(took(40*ms, "b", saw(0, "a", 0, false))), RuleOneRow},
	{"a take-over upon false news", then(took(40*ms, "b", saw(0, "a", 0, true))), RuleOneRow},
	{"a take-over upon a release", then(said(40*ms, linear.Release, "a", linear.Yes),
		took(50*ms, "b", saw(0, "a", 0, true))), ""},
	{"a heartbeat of a row that another has", then(took(40*ms, "b", begins[2]),
		said(50*ms, linear.Renew, "a", linear.Yes)), RuleOneRow},
	{"a look at what is no more", then(said(40*ms, linear.Release, "a", linear.Yes),
		saw(50*ms, "a", 1, false)), RuleOneRow},
	{"what was refused without need", then(said(40*ms, linear.Renew, "a", linear.No),
		saw(50*ms, "a", 1, false)), ""},
	{"a heartbeat was refused after its commit, as the file is gone",
		then(said(40*ms, linear.Renew, "a", linear.No), saw(50*ms, "a", 2, false)), ""},
	{"one that was refused comes twice",
		then(said(40*ms, linear.Renew, "a", linear.No), saw(50*ms, "a", 3, false)), RuleOneRow},
	{"a release of a row whose pid was edited", then(said(40*ms, linear.Release, "a", linear.No),
		func() linear.Op {
			op := saw(50*ms, "a", 1, false)
			op.Saw.Open = false
			return op
		}()), ""},
	{"what was not answered happens late", then(
		linear.Op{Call: linear.Call{Op: linear.Renew, Token: "a"},
			Result: linear.Result{Answer: linear.Unknown}, From: int64(40 * ms), To: linear.Never},
		saw(50*ms, "a", 1, false), saw(60*ms, "a", 2, false)), ""},
	{"a heartbeat comes twice", then(saw(50*ms, "a", 2, false)), RuleOneRow},
	{"somebody else writes into the row", func(h *History) {
		then(saw(50*ms, "b", 7, false), said(60*ms, linear.Renew, "b", linear.Yes),
			saw(70*ms, "b", 8, false))(h)
		h.Rewritten = []Span{{40 * ms, 45 * ms}}
	}, ""},
	{"and after that it is one row", func(h *History) {
		then(saw(50*ms, "b", 7, false), said(60*ms, linear.Renew, "b", linear.Yes),
			saw(70*ms, "b", 7, false))(h)
		h.Rewritten = []Span{{40 * ms, 45 * ms}}
	}, RuleOneRow},
	{"as it was before", func(h *History) {
		then(saw(50*ms, "b", 7, false))(h)
		h.Statements[2].Saw.Beat = 2
		h.Rewritten = []Span{{40 * ms, 45 * ms}}
	}, RuleOneRow},
	{"a heartbeat was answered after somebody had written", func(h *History) {
		then(saw(50*ms, "a", 2, false))(h)
		h.Statements[1].To = int64(48 * ms)
		h.Statements[2].Saw.Beat = 0
		h.Rewritten = []Span{{40 * ms, 45 * ms}}
	}, ""},
}
