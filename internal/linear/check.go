package linear

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"

	"example.com/schedlock/internal/model"
)

// A Call is what a process asks of a store. Key is "" for the lock row, or a named lock.
type Call struct {
	Op    string
	Key   string `json:",omitempty"`
	Token string `json:",omitempty"`

	// Of an acquisition of the lock: what it was judged by.
	Judged  model.Row `json:",omitzero"`
	Watched bool      `json:",omitempty"`
}

// What a process may ask for.
const (
	Look    = "look"    // at the row
	Acquire = "acquire" // compare and swap; of a named lock: if it is free
	Renew   = "renew"
	Release = "release"
)

// A Result is the answer: yes, no, or none, as after a loss of the connection, or the death of who
// has asked.
type Result struct {
	Answer string
	Saw    model.Row `json:",omitzero"` // by a look
	Term   int64     `json:",omitempty"`
}

// The answers.
const (
	Yes     = "yes"
	No      = "no"
	Unknown = "unknown"
	Blocked = "blocked" // by somebody's transaction: nothing is said about the row
)

// An Op is a call with its answer, from one moment to another.
type Op struct {
	Call
	Result
	From, To int64 // Never: there was no answer, so it may take effect at any later time
}

// String is a line for who reads a history.
func (op Op) String() string {
	text := fmt.Sprintf("%d: %s", op.From, op.Op)
	if op.Token != "" {
		text += fmt.Sprintf(" %.6s", op.Token)
	}
	if op.Op == Acquire && op.Key == "" {
		text += fmt.Sprintf(" of %v, watched %v", op.Judged, op.Watched)
	}
	if text += "; " + op.Answer; op.Op == Look {
		text += fmt.Sprintf(", %v", op.Saw)
	}
	if op.To != Never {
		text += fmt.Sprintf(" after %v", time.Duration(op.To-op.From))
	}
	return text
}

// Around are the calls on the same row that came last before op was answered, one a line.
func Around(history []Op, op Op) string {
	history = slices.DeleteFunc(slices.Clone(history), func(other Op) bool {
		return other.Key != op.Key || other.From > op.To
	})
	slices.SortFunc(history, func(a, b Op) int { return cmp.Compare(a.From, b.From) })
	var text strings.Builder
	for _, other := range history[max(0, len(history)-20):] {
		fmt.Fprintln(&text, other)
	}
	return text.String()
}

// Never is when a call without an answer ends.
const Never = math.MaxInt64

const patience = time.Minute

// state is one row, and whether somebody may have written anything else into it.
type state struct {
	model.Row
	anything bool
}

// next returns the states that may follow, none if the answer cannot have been given. refused are
// the operations that may be refused although the row is as they expect it.
func (s state) next(c Call, r Result, refused []string) []state {
	if s.anything {
		switch {
		case r.Answer != Yes:
		case c.Op == Look:
			return []state{{Row: r.Saw}}
		case c.Op == Acquire:
			return []state{{Row: model.Row{Token: c.Token, Newest: c.Token, Open: true}}}
		}
		return []state{s}
	}
	var after state
	var possible bool
	switch {
	case c.Op == Look:
		if r.Answer == Yes && r.Saw != s.Row {
			return nil
		}
		return []state{s}
	case c.Key == "":
		kind := map[string]model.Kind{Acquire: model.Claim, Renew: model.Heartbeat,
			Release: model.Release}[c.Op]
		after.Row, possible = s.Apply(model.Statement{Kind: kind, Token: c.Token,
			Judged: c.Judged, Watched: c.Watched})
	case c.Op == Acquire:
		after.Token, possible = c.Token, s.Token == ""
	default:
		if possible = s.Token == c.Token; possible && c.Op == Renew {
			after = s
		}
	}
	// A release that finds no row ends the term, and says no.
	granted := possible && (c.Op != Release || s.Token == c.Token)
	refusable := slices.Contains(refused, c.Op)
	unchanged := []state{s}
	switch {
	case !granted || !refusable:
	case c.Op == Release: // so does one of a row that has another pid
		ended := s
		ended.Open = false
		unchanged = append(unchanged, ended)
	case c.Op == Renew: // a heartbeat may be committed just before its file is taken away
		unchanged = append(unchanged, after)
	}
	switch {
	case r.Answer == Yes && granted, r.Answer == No && possible && !granted:
		return []state{after}
	case r.Answer == Yes, r.Answer == No && granted && !refusable:
		return nil
	case r.Answer == Unknown && possible:
		return append(unchanged, after)
	}
	return unchanged
}

// Check looks for an order of the calls in which one database gives these answers. If anything may
// be in the row at first, the first answers tell. refused are the operations that may be refused
// although the row is as they expect it: such as an acquisition because of another one. If there is
// no order (porcupine.Illegal), first is the first call that the longest one found has no place
// for. It gives up after a minute: porcupine.Unknown.
func Check(history []Op, anything bool, refused ...string) (result porcupine.CheckResult,
	first Op) {
	byKey := map[string][]porcupine.Operation{}
	for _, op := range history {
		byKey[op.Key] = append(byKey[op.Key], porcupine.Operation{Input: op, Output: op.Result,
			Call: op.From, Return: until(history, op)})
	}
	m := porcupine.NondeterministicModel{
		Init: func() []any { return []any{state{anything: anything}} },
		Step: func(s, op, r any) (next []any) {
			for _, after := range s.(state).next(op.(Op).Call, r.(Result), refused) {
				next = append(next, after)
			}
			return next
		},
		Equal: func(a, b any) bool { return a == b },
	}
	for _, ops := range byKey {
		switch porcupine.CheckOperationsTimeout(m.ToModel(), ops, patience) {
		case porcupine.Illegal:
			return porcupine.Illegal, misfit(m.ToModel(), ops)
		case porcupine.Unknown:
			return porcupine.Unknown, first
		}
	}
	return porcupine.Ok, first
}

// until returns when a call ends. One without an answer has no effect any more once somebody was
// told what the row is, and it is not what the call expects: as no token and no beat comes back, it
// never will be again. So few calls are open at a time, as the search is slow with many.
func until(history []Op, op Op) int64 {
	to := op.To
	for _, other := range history {
		if op.Answer == Unknown && other.Answer == Yes && other.From >= op.From && other.To < to &&
			other.Key == op.Key && op.outlived(other) {
			to = other.To
		}
	}
	return to
}

// outlived reports whether the row is no more what op expects once other was answered.
func (op Op) outlived(other Op) bool {
	row, newest := other.Token, other.Token // after it
	switch other.Op {
	case Look:
		row, newest = other.Saw.Token, other.Saw.Newest
	case Release:
		row = ""
	}
	switch {
	case op.Op != Acquire:
		return row != op.Token
	case op.Key != "":
		return false
	case op.Judged.Token == "": // hearsay may come true yet
		return newest != op.Judged.Newest
	case other.Op == Look:
		return !other.Saw.SameAs(op.Judged)
	}
	return true
}

// misfit returns the first call that the longest order found has no place for. It ends when it
// can have no effect any more.
func misfit(m porcupine.Model, ops []porcupine.Operation) Op {
	_, info := porcupine.CheckOperationsVerbose(m, ops, patience)
	longest := slices.MaxFunc(append(info.PartialLinearizationsOperations()[0], nil),
		func(a, b []porcupine.Operation) int { return cmp.Compare(len(a), len(b)) })
	first := Op{To: Never}
	for _, op := range ops {
		if op.Return < first.To && !slices.Contains(longest, op) {
			first = op.Input.(Op)
			first.To = op.Return
		}
	}
	return first
}
