package locktest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/ledger"
)

func TestConformance(t *testing.T) {
	Run(t, func(testing.TB) Database { return rig{}.database() })
}

var bg = context.Background()

// swap makes the claim's judgement that of the moment: no compare and swap.
func swap(s *sound, c schedlock.Claim, f func(now, judged *schedlock.Row)) schedlock.Claim {
	v, _ := s.Look(bg)
	if v.Row != nil && c.Judged.Row != nil {
		judged := *c.Judged.Row
		f(v.Row, &judged)
		c.Judged.Row = &judged
	}
	return c
}

// theirs is the ref in the row, whoever asks.
func theirs(s *sound, ref schedlock.Ref) schedlock.Ref {
	if v, _ := s.Look(bg); v.Row != nil {
		return v.Row.Ref
	}
	return ref
}

// Every rule of the suite, broken at least once: rule, what is wrong with the
// store, and a part of what the suite must say.
var brokenStores = []struct {
	rule int
	name string
	says string
	rig  rig
}{
	{1, "it has a row from the start", "the row", rig{look: func(s *sound, ctx context.Context) (schedlock.View, error) {
		v, err := s.Look(ctx)
		if v.Row == nil {
			v.Row = &schedlock.Row{}
		}
		return v, err
	}}},
	{1, "it fails when there is no row", "Look", rig{look: func(s *sound, ctx context.Context) (schedlock.View, error) {
		v, err := s.Look(ctx)
		if v.Row == nil {
			err = errors.New("no rows")
		}
		return v, err
	}}},
	{2, "it reads with two statements", "two moments", rig{look: func(s *sound, ctx context.Context) (schedlock.View, error) {
		v, err := s.Look(ctx)
		time.Sleep(2 * time.Millisecond)
		if later, _ := s.Look(ctx); later.Newest != nil {
			v.Newest = later.Newest
		}
		return v, err
	}}},
	{3, "a look is a heartbeat", "something was written", rig{look: func(s *sound, ctx context.Context) (schedlock.View, error) {
		v, err := s.Look(ctx)
		if v.Row != nil {
			_, _ = s.Heartbeat(ctx, v.Row.Ref, v.Row.State)
		}
		return v, err
	}}},
	{4, "what cannot be read is free", "no error", rig{look: func(s *sound, ctx context.Context) (schedlock.View, error) {
		v, _ := s.Look(ctx)
		return v, nil
	}}},
	{5, "it fails to parse", "Look", rig{look: func(s *sound, ctx context.Context) (schedlock.View, error) {
		v, err := s.Look(ctx)
		if v.Row != nil && v.Row.Token == (schedlock.Token{}) {
			return schedlock.View{}, errors.New("no token")
		}
		return v, err
	}}},
	{5, "it forgets the text", "RawToken", rig{look: func(s *sound, ctx context.Context) (schedlock.View, error) {
		v, err := s.Look(ctx)
		if v.Row != nil {
			v.Row.RawToken = v.Row.Token.String()
		}
		return v, err
	}}},
	{6, "the clock stands", "20 ms later", rig{look: func(s *sound, ctx context.Context) (schedlock.View, error) {
		v, err := s.Look(ctx)
		v.Now = time.Unix(0, 0).UTC()
		return v, err
	}}},
	{6, "the clock is local", "Now", rig{look: func(s *sound, ctx context.Context) (schedlock.View, error) {
		v, err := s.Look(ctx)
		v.Now = v.Now.In(time.FixedZone("", 3600))
		return v, err
	}}},
	{7, "the owner is another", "ref", rig{acquire: func(s *sound, ctx context.Context, c schedlock.Claim) (schedlock.Grant, error) {
		c.PID = os.Getpid()
		return s.Acquire(ctx, c)
	}}},
	{7, "it counts from one", "the beat", rig{acquire: func(s *sound, ctx context.Context, c schedlock.Claim) (schedlock.Grant, error) {
		g, err := s.Acquire(ctx, c)
		s.Edit(func(r *schedlock.Row) { r.Beat = 1 })
		return g, err
	}}},
	{8, "it keeps whole seconds", "", rig{acquire: func(s *sound, ctx context.Context, c schedlock.Claim) (schedlock.Grant, error) {
		c.Timing.TTL = c.Timing.TTL.Truncate(time.Second)
		return s.Acquire(ctx, c)
	}}},
	{8, "it keeps 64 bytes of a host name", "", rig{acquire: func(s *sound, ctx context.Context, c schedlock.Claim) (schedlock.Grant, error) {
		c.Hostname = c.Hostname[:min(64, len(c.Hostname))]
		return s.Acquire(ctx, c)
	}}},
	{9, "the token is not compared", "the token is another", rig{acquire: func(s *sound, ctx context.Context, c schedlock.Claim) (schedlock.Grant, error) {
		return s.Acquire(ctx, swap(s, c, func(now, judged *schedlock.Row) { judged.RawToken = now.RawToken }))
	}}},
	{9, "the term is not compared", "the term is another", rig{acquire: func(s *sound, ctx context.Context, c schedlock.Claim) (schedlock.Grant, error) {
		return s.Acquire(ctx, swap(s, c, func(now, judged *schedlock.Row) { judged.Term = now.Term }))
	}}},
	{9, "the beat is not compared", "the beat is another", rig{acquire: func(s *sound, ctx context.Context, c schedlock.Claim) (schedlock.Grant, error) {
		return s.Acquire(ctx, swap(s, c, func(now, judged *schedlock.Row) { judged.Beat = now.Beat }))
	}}},
	{9, "a row that is gone is free", "the row is gone", rig{acquire: func(s *sound, ctx context.Context, c schedlock.Claim) (schedlock.Grant, error) {
		if v, _ := s.Look(ctx); v.Row == nil {
			c.Judged = v
		}
		return s.Acquire(ctx, c)
	}}},
	{10, "a free lock is not compared", "another was first", rig{acquire: func(s *sound, ctx context.Context, c schedlock.Claim) (schedlock.Grant, error) {
		if c.Judged.Row == nil {
			c.Judged, _ = s.Look(ctx)
		}
		return s.Acquire(ctx, c)
	}}},
	{10, "the newest term is not compared", "another came and went", rig{acquire: func(s *sound, ctx context.Context, c schedlock.Claim) (schedlock.Grant, error) {
		if v, _ := s.Look(ctx); c.Judged.Row == nil && v.Row == nil {
			c.Judged = v
		}
		return s.Acquire(ctx, c)
	}}},
	{10, "the row is not looked for", "there is a row", rig{acquire: func(s *sound, ctx context.Context, c schedlock.Claim) (schedlock.Grant, error) {
		if v, _ := s.Look(ctx); c.Judged.Row == nil && c.Judged.Newest != nil && v.Newest.Term == c.Judged.Newest.Term {
			s.DeleteRow()
		}
		return s.Acquire(ctx, c)
	}}},
	{11, "the loser ends the winner's term", "something was written", rig{acquire: func(s *sound, ctx context.Context, c schedlock.Claim) (schedlock.Grant, error) {
		g, err := s.Acquire(ctx, c)
		if v, _ := s.Look(ctx); errors.Is(err, schedlock.ErrMoved) && v.Newest != nil {
			other := v.Newest.Ref
			other.PID++
			_, _ = s.Release(ctx, other, c.Reason)
		}
		return g, err
	}}},
	{12, "all win", "does not hold the lock", rig{acquire: func(s *sound, ctx context.Context, c schedlock.Claim) (schedlock.Grant, error) {
		return s.Acquire(ctx, swap(s, c, func(now, judged *schedlock.Row) { *judged = *now }))
	}}},
	{12, "nobody wins", "how many", rig{acquire: func(s *sound, ctx context.Context, c schedlock.Claim) (schedlock.Grant, error) {
		if c.Hostname == "replica" {
			return schedlock.Grant{}, schedlock.ErrMoved
		}
		return s.Acquire(ctx, c)
	}}},
	{13, "all win", "", rig{acquire: func(s *sound, ctx context.Context, c schedlock.Claim) (schedlock.Grant, error) {
		if c.Judged.Row == nil {
			c.Judged, _ = s.Look(ctx)
		}
		return s.Acquire(ctx, c)
	}}},
	{14, "terms do not grow", "the term", rig{acquire: func(s *sound, ctx context.Context, c schedlock.Claim) (schedlock.Grant, error) {
		g, err := s.Acquire(ctx, c)
		g.Term = 1
		return g, err
	}}},
	{15, "MinTerm is ignored", "", rig{acquire: func(s *sound, ctx context.Context, c schedlock.Claim) (schedlock.Grant, error) {
		c.MinTerm = 0
		return s.Acquire(ctx, c)
	}}},
	{15, "the last term is ignored", "the last + 1", rig{acquire: func(s *sound, ctx context.Context, c schedlock.Claim) (schedlock.Grant, error) {
		g, err := s.Acquire(ctx, c)
		if c.MinTerm == 1 {
			g.Term = g.Now.UnixMilli()
		}
		return g, err
	}}},
	{16, "the history alone counts", "after the row's term was raised", rig{acquire: func(s *sound, ctx context.Context, c schedlock.Claim) (schedlock.Grant, error) {
		g, err := s.Acquire(ctx, c)
		if c.MinTerm == 0 && g.Term > g.Now.UnixMilli()+500_000 {
			g.Term = g.Now.UnixMilli()
		}
		return g, err
	}}},
	{16, "an emptied history begins anew", "after the history was emptied", rig{acquire: func(s *sound, ctx context.Context, c schedlock.Claim) (schedlock.Grant, error) {
		c.MinTerm = 0
		return s.Acquire(ctx, c)
	}}},
	{17, "it remembers what it has not", "a backup was restored", rig{acquire: func(s *sound, ctx context.Context, c schedlock.Claim) (schedlock.Grant, error) {
		return s.Acquire(ctx, swap(s, c, func(now, judged *schedlock.Row) { *judged = *now }))
	}}},
	{18, "every end is expired", "the reason", rig{acquire: func(s *sound, ctx context.Context, c schedlock.Claim) (schedlock.Grant, error) {
		c.Reason = schedlock.EndExpired
		return s.Acquire(ctx, c)
	}}},
	{18, "who took over is not told", "who took over", rig{terms: func(s *sound, ctx context.Context, limit int) ([]schedlock.Term, error) {
		terms, err := s.Terms(ctx, limit)
		for i := range terms {
			terms[i].NextTerm = 0
		}
		return terms, err
	}}},
	{19, "an end is written again", "", rig{terms: func(s *sound, ctx context.Context, limit int) ([]schedlock.Term, error) {
		terms, err := s.Terms(ctx, limit)
		for i := range terms {
			if terms[i].NextTerm != 0 {
				terms[i].EndReason = schedlock.EndExpired
			}
		}
		return terms, err
	}}},
	{20, "the row goes without the term", "disagree", rig{acquire: func(s *sound, ctx context.Context, c schedlock.Claim) (schedlock.Grant, error) {
		g, err := s.Acquire(ctx, c)
		if ctx.Err() != nil {
			s.DeleteRow()
		}
		return g, err
	}}},
	{21, "the beat stands", "", rig{heartbeat: func(s *sound, ctx context.Context, ref schedlock.Ref, state schedlock.State) (schedlock.Beat, error) {
		b, err := s.Heartbeat(ctx, ref, state)
		s.Edit(func(r *schedlock.Row) { r.Beat = 0 })
		return b, err
	}}},
	{21, "the stamp stands", "", rig{heartbeat: func(s *sound, ctx context.Context, ref schedlock.Ref, state schedlock.State) (schedlock.Beat, error) {
		b, err := s.Heartbeat(ctx, ref, state)
		s.Edit(func(r *schedlock.Row) { r.HeartbeatAt = r.CreatedAt })
		return b, err
	}}},
	{22, "draining is not written", "", rig{heartbeat: func(s *sound, ctx context.Context, ref schedlock.Ref, _ schedlock.State) (schedlock.Beat, error) {
		return s.Heartbeat(ctx, ref, schedlock.StateLeading)
	}}},
	{23, "revoked is overwritten", "", rig{heartbeat: func(s *sound, ctx context.Context, ref schedlock.Ref, state schedlock.State) (schedlock.Beat, error) {
		s.Edit(func(r *schedlock.Row) { r.State = state })
		return s.Heartbeat(ctx, ref, state)
	}}},
	{24, "whoever beats", "", rig{heartbeat: func(s *sound, ctx context.Context, ref schedlock.Ref, state schedlock.State) (schedlock.Beat, error) {
		return s.Heartbeat(ctx, theirs(s, ref), state)
	}}},
	{24, "a heart beats before it is refused", "something was written", rig{heartbeat: func(s *sound, ctx context.Context, ref schedlock.Ref, state schedlock.State) (schedlock.Beat, error) {
		b, err := s.Heartbeat(ctx, ref, state)
		if err != nil {
			s.Edit(func(r *schedlock.Row) { r.Beat++ })
		}
		return b, err
	}}},
	{25, "it inserts", "after a release", rig{heartbeat: func(s *sound, ctx context.Context, ref schedlock.Ref, state schedlock.State) (schedlock.Beat, error) {
		b, err := s.Heartbeat(ctx, ref, state)
		if v, _ := s.Look(ctx); err != nil && v.Row == nil && v.Newest != nil {
			_, err = s.Acquire(ctx, schedlock.Claim{Ref: ref, Judged: v})
		}
		return b, err
	}}},
	{26, "it reads, then writes", "beats were lost", rig{heartbeat: func(s *sound, ctx context.Context, ref schedlock.Ref, state schedlock.State) (schedlock.Beat, error) {
		v, _ := s.Look(ctx)
		time.Sleep(time.Millisecond)
		s.Edit(func(r *schedlock.Row) { r.Beat = v.Row.Beat + 1 })
		return schedlock.Beat{State: state, Now: v.Now}, nil
	}}},
	{27, "the pid is not compared", "another pid", rig{release: func(s *sound, ctx context.Context, ref schedlock.Ref, reason schedlock.EndReason) (bool, error) {
		ref.PID = theirs(s, ref).PID
		return s.Release(ctx, ref, reason)
	}}},
	{27, "the hostname is not compared", "another hostname", rig{release: func(s *sound, ctx context.Context, ref schedlock.Ref, reason schedlock.EndReason) (bool, error) {
		ref.Hostname = theirs(s, ref).Hostname
		return s.Release(ctx, ref, reason)
	}}},
	{27, "the token is not compared", "another token", rig{release: func(s *sound, ctx context.Context, ref schedlock.Ref, reason schedlock.EndReason) (bool, error) {
		ref.Token = theirs(s, ref).Token
		return s.Release(ctx, ref, reason)
	}}},
	{27, "the term is not compared", "another term", rig{release: func(s *sound, ctx context.Context, ref schedlock.Ref, reason schedlock.EndReason) (bool, error) {
		ref.Term = theirs(s, ref).Term
		return s.Release(ctx, ref, reason)
	}}},
	{28, "the term stays open", "still open", rig{release: func(s *sound, ctx context.Context, ref schedlock.Ref, _ schedlock.EndReason) (bool, error) {
		return s.DeleteRow(), nil
	}}},
	{29, "a second release fails", "", rig{release: func(s *sound, ctx context.Context, ref schedlock.Ref, reason schedlock.EndReason) (bool, error) {
		deleted, err := s.Release(ctx, ref, reason)
		if !deleted {
			err = schedlock.ErrLost
		}
		return deleted, err
	}}},
	{30, "whoever looks alike is released", "", rig{release: func(s *sound, ctx context.Context, ref schedlock.Ref, reason schedlock.EndReason) (bool, error) {
		if other := theirs(s, ref); other.Owner == ref.Owner {
			ref = other
		}
		return s.Release(ctx, ref, reason)
	}}},
	{31, "without a row nothing is done", "still open", rig{release: func(s *sound, ctx context.Context, ref schedlock.Ref, reason schedlock.EndReason) (bool, error) {
		if theirs(s, schedlock.Ref{}) != ref {
			return false, nil
		}
		return s.Release(ctx, ref, reason)
	}}},
	{32, "the oldest come first", "", rig{terms: func(s *sound, ctx context.Context, limit int) ([]schedlock.Term, error) {
		terms, err := s.Terms(ctx, limit)
		slices.Reverse(terms)
		return terms, err
	}}},
	{32, "a negative limit is none", "limit -1", rig{terms: func(s *sound, ctx context.Context, limit int) ([]schedlock.Term, error) {
		if limit < 0 {
			limit = 1000
		}
		return s.Terms(ctx, limit)
	}}},
	{33, "the history has no bound", "1000", rig{terms: func(s *sound, ctx context.Context, limit int) ([]schedlock.Term, error) {
		terms, err := s.Terms(ctx, limit)
		if len(terms) == 1000 {
			terms = append(terms, terms[999])
		}
		return terms, err
	}}},
	{34, "Acquire has no context", "Acquire", rig{acquire: func(s *sound, ctx context.Context, c schedlock.Claim) (schedlock.Grant, error) {
		return s.Acquire(context.WithoutCancel(ctx), c)
	}}},
	{34, "Heartbeat has no context", "Heartbeat", rig{heartbeat: func(s *sound, ctx context.Context, ref schedlock.Ref, state schedlock.State) (schedlock.Beat, error) {
		return s.Heartbeat(context.WithoutCancel(ctx), ref, state)
	}}},
	{34, "Release has no context", "Release", rig{release: func(s *sound, ctx context.Context, ref schedlock.Ref, reason schedlock.EndReason) (bool, error) {
		return s.Release(context.WithoutCancel(ctx), ref, reason)
	}}},
	{34, "Terms hangs", "Terms did not return", rig{terms: func(s *sound, ctx context.Context, limit int) ([]schedlock.Term, error) {
		if ctx.Err() != nil {
			time.Sleep(2 * short)
		}
		return s.Terms(ctx, limit)
	}}},
	{35, "the holder is refused", "", rig{fence: func(s *sound, ctx context.Context, tx any, ref schedlock.Ref) error {
		return schedlock.ErrLost
	}}},
	{36, "everybody passes", "the lease before", rig{fence: func(s *sound, ctx context.Context, tx any, ref schedlock.Ref) error {
		return s.Fence(ctx, tx, theirs(s, ref))
	}}},
	{37, "a fence only looks", "take-over", rig{fence: func(s *sound, ctx context.Context, tx any, ref schedlock.Ref) error {
		err := s.Fence(ctx, tx, ref)
		_ = tx.(*memoryTx).end()
		return err
	}}},
	{38, "a claim waits", "did not return", rig{acquire: func(s *sound, ctx context.Context, c schedlock.Claim) (schedlock.Grant, error) {
		for {
			g, err := s.Acquire(ctx, c)
			if !errors.Is(err, errBusy) || ctx.Err() != nil {
				return g, err
			}
		}
	}}},
	{39, "a fence only looks", "changed hands", rig{fence: func(s *sound, ctx context.Context, tx any, ref schedlock.Ref) error {
		err := s.Fence(ctx, tx, ref)
		_ = tx.(*memoryTx).end()
		return err
	}}},
	{40, "a heartbeat waits for the fence", "a heartbeat beside", rig{heartbeat: func(s *sound, ctx context.Context, ref schedlock.Ref, state schedlock.State) (schedlock.Beat, error) {
		select {
		case s.turn <- struct{}{}:
			defer func() { <-s.turn }()
		case <-ctx.Done():
			return schedlock.Beat{}, ctx.Err()
		}
		return s.Heartbeat(ctx, ref, state)
	}}},
	{41, "anything is a transaction", "", rig{fence: func(s *sound, ctx context.Context, tx any, ref schedlock.Ref) error {
		if _, ok := tx.(*memoryTx); !ok {
			return nil
		}
		return s.Fence(ctx, tx, ref)
	}}},
	{42, "waiting has no end", "did not return", rig{hint: func(s *sound, ctx context.Context, v schedlock.View) { time.Sleep(2 * short) }}},
	{43, "no hint comes", "after a release", rig{hint: func(s *sound, ctx context.Context, v schedlock.View) { <-ctx.Done() }}},
	{44, "a job begins anew", "the job has", rig{decide: func(s *sound, ctx context.Context, ref schedlock.Ref, d ledger.Decision) (ledger.Run, bool, error) {
		if d.From.IsZero() {
			d.From = cursor(s, d.Job)
		}
		return s.Decide(ctx, ref, d)
	}}},
	{44, "a job is moved that is not there", "the job has no row", rig{decide: func(s *sound, ctx context.Context, ref schedlock.Ref, d ledger.Decision) (ledger.Run, bool, error) {
		if cursor(s, d.Job).IsZero() {
			d.From = time.Time{}
		}
		return s.Decide(ctx, ref, d)
	}}},
	{45, "anybody decides", "the lease before", rig{decide: func(s *sound, ctx context.Context, ref schedlock.Ref, d ledger.Decision) (ledger.Run, bool, error) {
		return s.Decide(ctx, theirs(s, ref), d)
	}}},
	{46, "the cursor is not compared", "", rig{decide: func(s *sound, ctx context.Context, ref schedlock.Ref, d ledger.Decision) (ledger.Run, bool, error) {
		if !d.From.IsZero() {
			d.From = cursor(s, d.Job)
		}
		return s.Decide(ctx, ref, d)
	}}},
	{46, "the cursor is compared to the millisecond", "1 µs", rig{decide: func(s *sound, ctx context.Context, ref schedlock.Ref, d ledger.Decision) (ledger.Run, bool, error) {
		if at := cursor(s, d.Job); at.Sub(d.From).Abs() < time.Millisecond {
			d.From = at
		}
		return s.Decide(ctx, ref, d)
	}}},
	{47, "a tick starts twice", "a tick that has run", rig{decide: func(s *sound, ctx context.Context, ref schedlock.Ref, d ledger.Decision) (ledger.Run, bool, error) {
		run, _, err := s.Decide(ctx, ref, d)
		return run, err == nil, err
	}}},
	{47, "a tick that has run is an error", "", rig{decide: func(s *sound, ctx context.Context, ref schedlock.Ref, d ledger.Decision) (ledger.Run, bool, error) {
		run, started, err := s.Decide(ctx, ref, d)
		if err == nil && !started {
			err = schedlock.ErrMoved
		}
		return run, started, err
	}}},
	{48, "all start", "how many", rig{decide: func(s *sound, ctx context.Context, ref schedlock.Ref, d ledger.Decision) (ledger.Run, bool, error) {
		run, started, err := s.Decide(ctx, ref, d)
		if errors.Is(err, schedlock.ErrMoved) {
			return run, true, nil
		}
		return run, started, err
	}}},
	{49, "a run has no owner", "", rig{decide: func(s *sound, ctx context.Context, ref schedlock.Ref, d ledger.Decision) (ledger.Run, bool, error) {
		run, started, err := s.Decide(ctx, ref, d)
		run.PID = 0
		return run, started, err
	}}},
	{50, "skipped ticks are forgotten", "5 item", rig{decide: func(s *sound, ctx context.Context, ref schedlock.Ref, d ledger.Decision) (ledger.Run, bool, error) {
		d.Skipped = nil
		return s.Decide(ctx, ref, d)
	}}},
	{50, "a range has no end", "", rig{runs: func(s *sound, ctx context.Context, job string, limit int) ([]ledger.Run, error) {
		runs, err := s.Runs(ctx, job, limit)
		for i := range runs {
			runs[i].Until = time.Time{}
		}
		return runs, err
	}}},
	{51, "the spec stays", "", rig{jobs: func(s *sound, ctx context.Context) ([]ledger.Job, error) {
		jobs, err := s.Jobs(ctx)
		for i := range jobs {
			jobs[i].Spec = "old"
		}
		return jobs, err
	}}},
	{52, "the term is not compared", "another term", rig{finish: func(s *sound, ctx context.Context, run ledger.Run, status ledger.Status, text string) (bool, error) {
		run.Term = theirs(s, schedlock.Ref{}).Term
		return s.Finish(ctx, run, status, text)
	}}},
	{52, "the attempt is not compared", "another attempt", rig{finish: func(s *sound, ctx context.Context, run ledger.Run, status ledger.Status, text string) (bool, error) {
		run.Attempt = 1
		return s.Finish(ctx, run, status, text)
	}}},
	{52, "all is done", "", rig{finish: func(s *sound, ctx context.Context, run ledger.Run, status ledger.Status, text string) (bool, error) {
		return s.Finish(ctx, run, ledger.Done, text)
	}}},
	{53, "the end of a run needs the lock", "", rig{finish: func(s *sound, ctx context.Context, run ledger.Run, status ledger.Status, text string) (bool, error) {
		if theirs(s, schedlock.Ref{}).Term != run.Term {
			return false, schedlock.ErrLost
		}
		return s.Finish(ctx, run, status, text)
	}}},
	{54, "a NUL is refused", "invalid byte sequence", rig{finish: func(s *sound, ctx context.Context, run ledger.Run, status ledger.Status, text string) (bool, error) {
		if strings.Contains(text, "\x00") {
			return false, errors.New("invalid byte sequence")
		}
		return s.Finish(ctx, run, status, text)
	}}},
	{54, "a text is cut", "", rig{finish: func(s *sound, ctx context.Context, run ledger.Run, status ledger.Status, text string) (bool, error) {
		return s.Finish(ctx, run, status, text[:min(len(text), 255)])
	}}},
	{55, "its own runs are abandoned", "", rig{abandon: func(s *sound, ctx context.Context, ref schedlock.Ref) ([]ledger.Run, error) {
		runs, err := s.Abandon(ctx, ref)
		own, _ := s.Runs(ctx, "d", 1)
		for _, r := range own {
			_, _ = s.Finish(ctx, r, ledger.Abandoned, "")
		}
		return runs, err
	}}},
	{56, "anybody abandons", "the lease before", rig{abandon: func(s *sound, ctx context.Context, ref schedlock.Ref) ([]ledger.Run, error) {
		return s.Abandon(ctx, theirs(s, ref))
	}}},
	{57, "runs come in the order of their ids", "", rig{runs: func(s *sound, ctx context.Context, job string, limit int) ([]ledger.Run, error) {
		runs, err := s.Runs(ctx, job, limit)
		slices.SortFunc(runs, func(a, b ledger.Run) int { return int(b.ID - a.ID) })
		return runs, err
	}}},
	{57, "a negative limit is none", "limit -1", rig{runs: func(s *sound, ctx context.Context, job string, limit int) ([]ledger.Run, error) {
		if limit < 0 {
			limit = 1000
		}
		return s.Runs(ctx, job, limit)
	}}},
	{58, "ticks are kept to the millisecond", "", rig{decide: func(s *sound, ctx context.Context, ref schedlock.Ref, d ledger.Decision) (ledger.Run, bool, error) {
		if !d.From.IsZero() {
			d.From = d.From.Truncate(time.Millisecond)
		}
		d.To, d.Start = d.To.Truncate(time.Millisecond), d.Start.Truncate(time.Millisecond)
		return s.Decide(ctx, ref, d)
	}}},
	{59, "Decide has no context", "Decide", rig{decide: func(s *sound, ctx context.Context, ref schedlock.Ref, d ledger.Decision) (ledger.Run, bool, error) {
		return s.Decide(context.WithoutCancel(ctx), ref, d)
	}}},
	{59, "Finish has no context", "Finish", rig{finish: func(s *sound, ctx context.Context, run ledger.Run, status ledger.Status, text string) (bool, error) {
		return s.Finish(context.WithoutCancel(ctx), run, status, text)
	}}},
}

// cursor is where a job stands.
func cursor(s *sound, name string) time.Time {
	jobs, _ := s.Jobs(bg)
	for _, j := range jobs {
		if j.Name == name {
			return j.Cursor
		}
	}
	return time.Time{}
}

// short is the patience with a broken store.
const short = time.Second

func TestEveryRuleCatchesABrokenStore(t *testing.T) {
	all := cases()
	caught := map[int]bool{}
	for _, b := range brokenStores {
		t.Run(fmt.Sprintf("%02d %s", b.rule, b.name), func(t *testing.T) {
			c := all[b.rule-1]
			said := record(t, c, b.rig.database(), short)
			require.NotEmpty(t, said, "the suite did not notice")
			assert.Contains(t, said, b.says)
			caught[b.rule] = true
		})
	}
	for _, c := range all {
		assert.True(t, caught[c.Number], "no broken store for rule %d: %s", c.Number, c.Name)
	}
}

// The numbers are given once, and the package comment lists them.
func TestTheRulesAreNumberedAndListed(t *testing.T) {
	doc, err := os.ReadFile("doc.go")
	require.NoError(t, err)
	text := strings.Join(strings.Fields(strings.ReplaceAll(string(doc), "\n//", " ")), " ")
	for i, r := range Rules() {
		assert.Equal(t, i+1, r.Number)
		assert.Contains(t, text, fmt.Sprintf("%d. %s", r.Number, r.Text), "doc.go")
		assert.NotEmpty(t, r.Name)
		assert.NotEmpty(t, r.Breaks)
	}
}

func TestAFeatureThatIsMissingIsNotPassedOver(t *testing.T) {
	for _, c := range cases() {
		for _, f := range c.Needs {
			db := rig{}.database()
			db.Edit, db.Backup, db.Begin = nil, nil, nil
			if f == Hints || f == Ledger {
				open := db.Open
				db.Open = func(t testing.TB) schedlock.Store { return struct{ schedlock.Store }{open(t)} }
			}
			assert.Contains(t, record(t, c, db, short), "add it, or list it in Database.Without", c.Name)
		}
	}
}
