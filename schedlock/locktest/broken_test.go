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
	{52, "the term is not compared", "another term", rig{finish: func(s *sound, ctx context.Context, run ledger.Run, end ledger.End) (bool, error) {
		run.Term = theirs(s, schedlock.Ref{}).Term
		return s.Finish(ctx, run, end)
	}}},
	{52, "the attempt is not compared", "another attempt", rig{finish: func(s *sound, ctx context.Context, run ledger.Run, end ledger.End) (bool, error) {
		run.Attempt = 1
		return s.Finish(ctx, run, end)
	}}},
	{52, "all is done", "", rig{finish: func(s *sound, ctx context.Context, run ledger.Run, end ledger.End) (bool, error) {
		end.Status = ledger.Done
		return s.Finish(ctx, run, end)
	}}},
	{53, "the end of a run needs the lock", "", rig{finish: func(s *sound, ctx context.Context, run ledger.Run, end ledger.End) (bool, error) {
		if theirs(s, schedlock.Ref{}).Term != run.Term {
			return false, schedlock.ErrLost
		}
		return s.Finish(ctx, run, end)
	}}},
	{54, "a NUL is refused", "invalid byte sequence", rig{finish: func(s *sound, ctx context.Context, run ledger.Run, end ledger.End) (bool, error) {
		if strings.Contains(end.Error, "\x00") {
			return false, errors.New("invalid byte sequence")
		}
		return s.Finish(ctx, run, end)
	}}},
	{54, "a text is cut", "", rig{finish: func(s *sound, ctx context.Context, run ledger.Run, end ledger.End) (bool, error) {
		end.Error = end.Error[:min(len(end.Error), 255)]
		return s.Finish(ctx, run, end)
	}}},
	{55, "its own runs are abandoned", "", rig{abandon: func(s *sound, ctx context.Context, ref schedlock.Ref, retryAt func(ledger.Run) time.Time) ([]ledger.Run, error) {
		runs, err := s.Abandon(ctx, ref, retryAt)
		own, _ := s.Runs(ctx, "d", 1)
		for _, r := range own {
			_, _ = s.Finish(ctx, r, ledger.End{Status: ledger.Abandoned})
		}
		return runs, err
	}}},
	{56, "anybody abandons", "the lease before", rig{abandon: func(s *sound, ctx context.Context, ref schedlock.Ref, retryAt func(ledger.Run) time.Time) ([]ledger.Run, error) {
		return s.Abandon(ctx, theirs(s, ref), retryAt)
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
	{59, "Finish has no context", "Finish", rig{finish: func(s *sound, ctx context.Context, run ledger.Run, end ledger.End) (bool, error) {
		return s.Finish(context.WithoutCancel(ctx), run, end)
	}}},
	{60, "what is owed nothing is tried again", "a run that is", rig{retry: func(s *sound, ctx context.Context, ref schedlock.Ref, run ledger.Run) (ledger.Run, bool, error) {
		next, started, err := s.Retry(ctx, ref, run)
		return next, started || err == nil, err
	}}},
	{60, "the attempt is not compared", "an attempt to come", rig{retry: func(s *sound, ctx context.Context, ref schedlock.Ref, run ledger.Run) (ledger.Run, bool, error) {
		run.Attempt = stored(s, run.ID).Attempt
		return s.Retry(ctx, ref, run)
	}}},
	{61, "an attempt keeps its first owner", "Retry", rig{retry: func(s *sound, ctx context.Context, ref schedlock.Ref, run ledger.Run) (ledger.Run, bool, error) {
		next, started, err := s.Retry(ctx, ref, run)
		next.PID, next.Hostname = run.PID, run.Hostname
		return next, started, err
	}}},
	{61, "the error is cleared", "Runs", rig{runs: func(s *sound, ctx context.Context, job string, limit int) ([]ledger.Run, error) {
		runs, err := s.Runs(ctx, job, limit)
		for i := range runs {
			if runs[i].Status == ledger.InProgress {
				runs[i].Error = ""
			}
		}
		return runs, err
	}}},
	{62, "all start", "how many", rig{retry: func(s *sound, ctx context.Context, ref schedlock.Ref, run ledger.Run) (ledger.Run, bool, error) {
		next, _, err := s.Retry(ctx, ref, run)
		return next, err == nil, err
	}}},
	{63, "anybody retries", "Retry, ", rig{retry: func(s *sound, ctx context.Context, ref schedlock.Ref, run ledger.Run) (ledger.Run, bool, error) {
		return s.Retry(ctx, theirs(s, ref), run)
	}}},
	{63, "anybody gives up", "GiveUp, ", rig{giveUp: func(s *sound, ctx context.Context, ref schedlock.Ref, run ledger.Run) (bool, error) {
		return s.GiveUp(ctx, theirs(s, ref), run)
	}}},
	{64, "nothing is given up", "", rig{giveUp: func(s *sound, ctx context.Context, ref schedlock.Ref, run ledger.Run) (bool, error) {
		return true, nil
	}}},
	{64, "whatever is given up was owed", "a run", rig{giveUp: func(s *sound, ctx context.Context, ref schedlock.Ref, run ledger.Run) (bool, error) {
		_, err := s.GiveUp(ctx, ref, run)
		return err == nil, err
	}}},
	{65, "no attempt is owed after a failure", "", rig{finish: func(s *sound, ctx context.Context, run ledger.Run, end ledger.End) (bool, error) {
		end.RetryAt = time.Time{}
		return s.Finish(ctx, run, end)
	}}},
	{65, "attempts are due to the second", "", rig{finish: func(s *sound, ctx context.Context, run ledger.Run, end ledger.End) (bool, error) {
		end.RetryAt = end.RetryAt.Truncate(time.Second)
		return s.Finish(ctx, run, end)
	}}},
	{65, "retryAt is not asked", "job ", rig{abandon: func(s *sound, ctx context.Context, ref schedlock.Ref, retryAt func(ledger.Run) time.Time) ([]ledger.Run, error) {
		return s.Abandon(ctx, ref, nil)
	}}},
	{65, "without retryAt it fails", "retryAt is nil", rig{abandon: func(s *sound, ctx context.Context, ref schedlock.Ref, retryAt func(ledger.Run) time.Time) ([]ledger.Run, error) {
		if retryAt == nil {
			return nil, errors.New("retryAt is nil")
		}
		return s.Abandon(ctx, ref, retryAt)
	}}},
	{66, "what is owed comes in the order of the ids", "", rig{retries: func(s *sound, ctx context.Context) ([]ledger.Run, error) {
		runs, err := s.Retries(ctx)
		slices.SortFunc(runs, func(a, b ledger.Run) int { return int(a.ID - b.ID) })
		return runs, err
	}}},
	{66, "all that failed is owed", "", rig{retries: func(s *sound, ctx context.Context) ([]ledger.Run, error) {
		all, err := s.Runs(ctx, "", 100)
		return slices.DeleteFunc(all, func(r ledger.Run) bool { return r.Status != ledger.Failed }), err
	}}},
	{67, "a streak has no end", "an end", rig{jobs: func(s *sound, ctx context.Context) ([]ledger.Job, error) {
		jobs, err := s.Jobs(ctx)
		for i := range jobs {
			jobs[i].Streak = jobs[i].Failed
		}
		return jobs, err
	}}},
	{67, "whole seconds are counted", "an end", rig{jobs: func(s *sound, ctx context.Context) ([]ledger.Job, error) {
		jobs, err := s.Jobs(ctx)
		for i := range jobs {
			jobs[i].Total = jobs[i].Total.Truncate(time.Second)
		}
		return jobs, err
	}}},
	{67, "an end that is written twice counts twice", "a second end", rig{finish: func(s *sound, ctx context.Context, run ledger.Run, end ledger.End) (bool, error) {
		written, err := s.Finish(ctx, run, end)
		if !written && err == nil {
			again, _, _ := s.Decide(ctx, theirs(s, schedlock.Ref{}), ledger.Decision{Job: run.Job, From: cursor(s, run.Job), To: cursor(s, run.Job), Start: cursor(s, run.Job).Add(time.Second)})
			_, _ = s.Finish(ctx, again, end)
		}
		return written, err
	}}},
	{67, "runs are counted, not attempts", "two attempts", rig{jobs: func(s *sound, ctx context.Context) ([]ledger.Job, error) {
		jobs, err := s.Jobs(ctx)
		runs, _ := s.Runs(ctx, "", 100)
		for i := range jobs {
			jobs[i].Failed = 0
			for _, r := range runs {
				if r.Job == jobs[i].Name && r.Status == ledger.Failed {
					jobs[i].Failed++
				}
			}
		}
		return jobs, err
	}}},
	{68, "an error is not cut", "", rig{jobs: func(s *sound, ctx context.Context) ([]ledger.Job, error) {
		jobs, err := s.Jobs(ctx)
		for i := range jobs {
			if runs, _ := s.Runs(ctx, jobs[i].Name, 1); len(runs) > 0 {
				jobs[i].LastError = runs[0].Error
			}
		}
		return jobs, err
	}}},
	{68, "an error is cut to 1,000 bytes", "", rig{jobs: func(s *sound, ctx context.Context) ([]ledger.Job, error) {
		jobs, err := s.Jobs(ctx)
		for i := range jobs {
			jobs[i].LastError = jobs[i].LastError[:min(len(jobs[i].LastError), 1000)]
		}
		return jobs, err
	}}},
	{68, "a NUL is refused", "invalid byte sequence", rig{finish: func(s *sound, ctx context.Context, run ledger.Run, end ledger.End) (bool, error) {
		if strings.Contains(end.Error, "\x00") {
			return false, errors.New("invalid byte sequence")
		}
		return s.Finish(ctx, run, end)
	}}},
	{69, "what is abandoned is not counted", "Failed of job", rig{jobs: func(s *sound, ctx context.Context) ([]ledger.Job, error) {
		jobs, err := s.Jobs(ctx)
		for i := range jobs {
			jobs[i].Failed = 0
		}
		return jobs, err
	}}},
	{69, "two that are abandoned count as one", "Failed of job", rig{jobs: func(s *sound, ctx context.Context) ([]ledger.Job, error) {
		jobs, err := s.Jobs(ctx)
		for i := range jobs {
			jobs[i].Failed = min(jobs[i].Failed, 1)
		}
		return jobs, err
	}}},
	{70, "a tick inside a range is found", "a tick inside a skipped range", rig{run: func(s *sound, ctx context.Context, job string, tick time.Time) (ledger.Run, bool, error) {
		run, found, err := s.Run(ctx, job, tick)
		runs, _ := s.Runs(ctx, job, 100)
		for _, r := range runs {
			if !found && tick.After(r.ScheduledAt) && tick.Before(r.Until) {
				return r, true, err
			}
		}
		return run, found, err
	}}},
	{70, "the newest run is found", "", rig{run: func(s *sound, ctx context.Context, job string, tick time.Time) (ledger.Run, bool, error) {
		runs, err := s.Runs(ctx, job, 1)
		if len(runs) == 0 {
			return ledger.Run{}, false, err
		}
		return runs[0], true, err
	}}},
	{71, "a request's time is local", "", rig{trigger: func(s *sound, ctx context.Context, o ledger.Order) (ledger.Request, error) {
		r, err := s.Trigger(ctx, o)
		r.At = r.At.In(time.FixedZone("", 3600))
		return r, err
	}}},
	{71, "it is forgotten why", "", rig{inbox: func(s *sound, ctx context.Context) (ledger.Inbox, error) {
		in, err := s.Inbox(ctx)
		for i := range in.Requests {
			in.Requests[i].Reason = ""
		}
		return in, err
	}}},
	{72, "requests of one second have one time", "different times", rig{trigger: func(s *sound, ctx context.Context, o ledger.Order) (ledger.Request, error) {
		r, err := s.Trigger(ctx, o)
		r.At = r.At.Truncate(time.Second)
		return r, err
	}}},
	{72, "one request a job is kept", "the times in Inbox", rig{inbox: func(s *sound, ctx context.Context) (ledger.Inbox, error) {
		in, err := s.Inbox(ctx)
		in.Requests = slices.CompactFunc(in.Requests, func(a, b ledger.Request) bool { return a.Job == b.Job })
		return in, err
	}}},
	{73, "it does not matter who asks", "Trigger", rig{trigger: func(s *sound, ctx context.Context, o ledger.Order) (ledger.Request, error) {
		o.By = "somebody"
		return s.Trigger(ctx, o)
	}}},
	{73, "a job that is not there is asked for", "Trigger of job", rig{trigger: func(s *sound, ctx context.Context, o ledger.Order) (ledger.Request, error) {
		r, err := s.Trigger(ctx, o)
		if errors.Is(err, ledger.ErrNoJob) {
			err = nil
		}
		return r, err
	}}},
	{73, "a job that is not there is paused", "Pause of job", rig{pause: func(s *sound, ctx context.Context, o ledger.Order) (ledger.Pause, error) {
		p, err := s.Pause(ctx, o)
		if errors.Is(err, ledger.ErrNoJob) {
			err = nil
		}
		return p, err
	}}},
	{74, "what is paused may be asked for", "Trigger", rig{trigger: func(s *sound, ctx context.Context, o ledger.Order) (ledger.Request, error) {
		return unpaused(s, func() (ledger.Request, error) { return s.Trigger(ctx, o) })
	}}},
	{74, "it is not told who paused", "Trigger", rig{trigger: func(s *sound, ctx context.Context, o ledger.Order) (ledger.Request, error) {
		r, err := s.Trigger(ctx, o)
		if errors.Is(err, ledger.ErrPaused) {
			err = ledger.ErrPaused
		}
		return r, err
	}}},
	{75, "a request starts twice", "one ", rig{answer: func(s *sound, ctx context.Context, ref schedlock.Ref, q ledger.Request, skip string) (ledger.Run, bool, error) {
		run, _, err := s.Answer(ctx, ref, q, skip)
		return run, err == nil, err
	}}},
	{75, "it is forgotten who asked", "", rig{answer: func(s *sound, ctx context.Context, ref schedlock.Ref, q ledger.Request, skip string) (ledger.Run, bool, error) {
		run, started, err := s.Answer(ctx, ref, q, skip)
		run.RequestedBy, run.RequestReason = "", ""
		return run, started, err
	}}},
	{75, "a request stays", "", rig{inbox: func(s *sound, ctx context.Context) (ledger.Inbox, error) {
		in, err := s.Inbox(ctx)
		runs, _ := s.Runs(ctx, "", 100)
		for _, r := range runs {
			in.Requests = append(in.Requests, ledger.Request{Order: ledger.Order{Job: r.Job, By: r.RequestedBy}, At: r.ScheduledAt})
		}
		return in, err
	}}},
	{76, "what is skipped starts", "", rig{answer: func(s *sound, ctx context.Context, ref schedlock.Ref, q ledger.Request, skip string) (ledger.Run, bool, error) {
		return s.Answer(ctx, ref, q, "")
	}}},
	{76, "a NUL is refused", "invalid byte sequence", rig{answer: func(s *sound, ctx context.Context, ref schedlock.Ref, q ledger.Request, skip string) (ledger.Run, bool, error) {
		if strings.Contains(skip, "\x00") {
			return ledger.Run{}, false, errors.New("invalid byte sequence")
		}
		return s.Answer(ctx, ref, q, skip)
	}}},
	{77, "all start", "how many", rig{answer: func(s *sound, ctx context.Context, ref schedlock.Ref, q ledger.Request, skip string) (ledger.Run, bool, error) {
		run, _, err := s.Answer(ctx, ref, q, skip)
		return run, err == nil, err
	}}},
	{78, "anybody answers", "", rig{answer: func(s *sound, ctx context.Context, ref schedlock.Ref, q ledger.Request, skip string) (ledger.Run, bool, error) {
		return s.Answer(ctx, theirs(s, ref), q, skip)
	}}},
	{78, "anybody skips", "", rig{answer: func(s *sound, ctx context.Context, ref schedlock.Ref, q ledger.Request, skip string) (ledger.Run, bool, error) {
		if skip != "" {
			ref = theirs(s, ref)
		}
		return s.Answer(ctx, ref, q, skip)
	}}},
	{79, "a pause stops no tick", "Decide", rig{decide: func(s *sound, ctx context.Context, ref schedlock.Ref, d ledger.Decision) (ledger.Run, bool, error) {
		started := false
		run, err := unpaused(s, func() (run ledger.Run, err error) {
			run, started, err = s.Decide(ctx, ref, d)
			return run, err
		})
		return run, started, err
	}}},
	{79, "a pause stops no attempt", "Retry", rig{retry: func(s *sound, ctx context.Context, ref schedlock.Ref, run ledger.Run) (ledger.Run, bool, error) {
		started := false
		next, err := unpaused(s, func() (next ledger.Run, err error) {
			next, started, err = s.Retry(ctx, ref, run)
			return next, err
		})
		return next, started, err
	}}},
	{79, "a pause stops no answer", "Answer", rig{answer: func(s *sound, ctx context.Context, ref schedlock.Ref, q ledger.Request, skip string) (ledger.Run, bool, error) {
		started := false
		run, err := unpaused(s, func() (run ledger.Run, err error) {
			run, started, err = s.Answer(ctx, ref, q, skip)
			return run, err
		})
		return run, started, err
	}}},
	{79, "a refusal moves the cursor", "something was written", rig{decide: func(s *sound, ctx context.Context, ref schedlock.Ref, d ledger.Decision) (ledger.Run, bool, error) {
		run, started, err := s.Decide(ctx, ref, d)
		if errors.Is(err, ledger.ErrPaused) {
			d.Start = time.Time{}
			_, _, _ = s.Decide(ctx, ref, d)
		}
		return run, started, err
	}}},
	{80, "a pause stops every decision", "a decision that starts nothing", rig{decide: func(s *sound, ctx context.Context, ref schedlock.Ref, d ledger.Decision) (ledger.Run, bool, error) {
		if in, _ := s.Inbox(ctx); in.Paused(d.Job) != nil {
			return ledger.Run{}, false, &ledger.PausedError{Pause: *in.Paused(d.Job)}
		}
		return s.Decide(ctx, ref, d)
	}}},
	{80, "a pause of one job stops them all", "Retry", rig{retry: func(s *sound, ctx context.Context, ref schedlock.Ref, run ledger.Run) (ledger.Run, bool, error) {
		if in, _ := s.Inbox(ctx); len(in.Pauses) > 0 {
			return ledger.Run{}, false, ledger.ErrPaused
		}
		return s.Retry(ctx, ref, run)
	}}},
	{80, "a pause stops every answer", "Answer, to skip", rig{answer: func(s *sound, ctx context.Context, ref schedlock.Ref, q ledger.Request, skip string) (ledger.Run, bool, error) {
		if in, _ := s.Inbox(ctx); in.Paused(q.Job) != nil {
			return ledger.Run{}, false, ledger.ErrPaused
		}
		return s.Answer(ctx, ref, q, skip)
	}}},
	{81, "the pause is looked at before the transaction", "once Pause has returned", rig{decide: func(s *sound, ctx context.Context, ref schedlock.Ref, d ledger.Decision) (ledger.Run, bool, error) {
		if in, _ := s.Inbox(ctx); in.Paused(d.Job) != nil {
			return ledger.Run{}, false, ledger.ErrPaused
		}
		time.Sleep(time.Millisecond)
		started := false
		run, err := unpaused(s, func() (run ledger.Run, err error) {
			run, started, err = s.Decide(ctx, ref, d)
			return run, err
		})
		return run, started, err
	}}},
	{82, "the last to pause is its author", "Pause again", rig{pause: func(s *sound, ctx context.Context, o ledger.Order) (ledger.Pause, error) {
		_, _ = s.Resume(ctx, o.Job, "me")
		return s.Pause(ctx, o)
	}}},
	{82, "a pause has no reason", "", rig{inbox: func(s *sound, ctx context.Context) (ledger.Inbox, error) {
		in, err := s.Inbox(ctx)
		for i := range in.Pauses {
			in.Pauses[i].Reason = ""
		}
		return in, err
	}}},
	{83, "all pauses end at once", "after Resume", rig{resume: func(s *sound, ctx context.Context, job, by string) (bool, error) {
		in, err := s.Inbox(ctx)
		for _, p := range in.Pauses {
			if p.Job != job {
				_, _ = s.Resume(ctx, p.Job, by)
			}
		}
		if err != nil {
			return false, err
		}
		return s.Resume(ctx, job, by)
	}}},
	{83, "a pause that has ended is forgotten", "", rig{inbox: func(s *sound, ctx context.Context) (ledger.Inbox, error) {
		in, err := s.Inbox(ctx)
		in.Pauses = slices.DeleteFunc(in.Pauses, func(p ledger.Pause) bool { return !p.InForce() })
		return in, err
	}}},
	{83, "there always was a pause", "that is not paused", rig{resume: func(s *sound, ctx context.Context, job, by string) (bool, error) {
		_, err := s.Resume(ctx, job, by)
		return err == nil, err
	}}},
	{84, "the newest come first", "oldest first", rig{inbox: func(s *sound, ctx context.Context) (ledger.Inbox, error) {
		in, err := s.Inbox(ctx)
		slices.Reverse(in.Requests)
		return in, err
	}}},
	{84, "the inbox has no bound", "1000", rig{inbox: func(s *sound, ctx context.Context) (ledger.Inbox, error) {
		in, err := s.Inbox(ctx)
		if len(in.Requests) == 1000 {
			in.Requests = append(in.Requests, in.Requests[999])
		}
		return in, err
	}}},
	{85, "the limit is no limit", "keep 2, limit", rig{prune: func(s *sound, ctx context.Context, job string, keep, limit int) (int64, error) {
		return s.Prune(ctx, job, keep, 1<<30)
	}}},
	{85, "one more stays", "keep 2, limit", rig{prune: func(s *sound, ctx context.Context, job string, keep, limit int) (int64, error) {
		return s.Prune(ctx, job, keep+1, limit)
	}}},
	{85, "all jobs are pruned", "", rig{prune: func(s *sound, ctx context.Context, job string, keep, limit int) (int64, error) {
		_, _ = s.Prune(ctx, "b", keep, limit)
		return s.Prune(ctx, job, keep, limit)
	}}},
	{85, "it counts what it might have deleted", "deleted", rig{prune: func(s *sound, ctx context.Context, job string, keep, limit int) (int64, error) {
		_, err := s.Prune(ctx, job, keep, limit)
		return int64(limit), err
	}}},
	{85, "stats shrink", "Jobs", rig{jobs: func(s *sound, ctx context.Context) ([]ledger.Job, error) {
		jobs, err := s.Jobs(ctx)
		for i := range jobs {
			runs, _ := s.Runs(ctx, jobs[i].Name, 100)
			jobs[i].Done = int64(len(runs))
		}
		return jobs, err
	}}},
	{86, "what is owed goes", "the ticks that stay", rig{prune: func(s *sound, ctx context.Context, job string, keep, limit int) (int64, error) {
		owed, _ := s.Retries(ctx)
		for _, r := range owed {
			_, _ = s.GiveUp(ctx, theirs(s, schedlock.Ref{}), r)
		}
		return s.Prune(ctx, job, keep, limit)
	}}},
	{86, "what is in progress goes", "the ticks that stay", rig{prune: func(s *sound, ctx context.Context, job string, keep, limit int) (int64, error) {
		runs, _ := s.Runs(ctx, job, 100)
		for _, r := range runs {
			_, _ = s.Finish(ctx, r, ledger.End{Status: ledger.Done})
		}
		return s.Prune(ctx, job, keep, limit)
	}}},
	{86, "what has not ended is not counted", "keep 2", rig{prune: func(s *sound, ctx context.Context, job string, keep, limit int) (int64, error) {
		runs, _ := s.Runs(ctx, job, 100)
		for _, r := range runs {
			if !r.Final() && keep > 0 {
				keep++
			}
		}
		return s.Prune(ctx, job, keep, limit)
	}}},
	{87, "Retry has no context", "Retry with", rig{retry: func(s *sound, ctx context.Context, ref schedlock.Ref, run ledger.Run) (ledger.Run, bool, error) {
		return s.Retry(context.WithoutCancel(ctx), ref, run)
	}}},
	{87, "GiveUp has no context", "GiveUp with", rig{giveUp: func(s *sound, ctx context.Context, ref schedlock.Ref, run ledger.Run) (bool, error) {
		return s.GiveUp(context.WithoutCancel(ctx), ref, run)
	}}},
	{87, "Retries has no context", "Retries with", rig{retries: func(s *sound, ctx context.Context) ([]ledger.Run, error) {
		return s.Retries(context.WithoutCancel(ctx))
	}}},
	{87, "Run has no context", "Run with", rig{run: func(s *sound, ctx context.Context, job string, tick time.Time) (ledger.Run, bool, error) {
		return s.Run(context.WithoutCancel(ctx), job, tick)
	}}},
	{87, "Trigger has no context", "Trigger with", rig{trigger: func(s *sound, ctx context.Context, o ledger.Order) (ledger.Request, error) {
		return s.Trigger(context.WithoutCancel(ctx), o)
	}}},
	{87, "Answer has no context", "Answer with", rig{answer: func(s *sound, ctx context.Context, ref schedlock.Ref, q ledger.Request, skip string) (ledger.Run, bool, error) {
		return s.Answer(context.WithoutCancel(ctx), ref, q, skip)
	}}},
	{87, "Pause has no context", "Pause with", rig{pause: func(s *sound, ctx context.Context, o ledger.Order) (ledger.Pause, error) {
		return s.Pause(context.WithoutCancel(ctx), o)
	}}},
	{87, "Resume has no context", "Resume with", rig{resume: func(s *sound, ctx context.Context, job, by string) (bool, error) {
		return s.Resume(context.WithoutCancel(ctx), job, by)
	}}},
	{87, "Inbox has no context", "Inbox with", rig{inbox: func(s *sound, ctx context.Context) (ledger.Inbox, error) {
		return s.Inbox(context.WithoutCancel(ctx))
	}}},
	{87, "Prune has no context", "Prune with", rig{prune: func(s *sound, ctx context.Context, job string, keep, limit int) (int64, error) {
		return s.Prune(context.WithoutCancel(ctx), job, keep, limit)
	}}},
	{88, "the row is not marked", "", rig{revoke: func(s *sound, ctx context.Context, term int64, by, reason string) (schedlock.Revocation, error) {
		r, err := s.Revoke(ctx, term, by, reason)
		s.Edit(func(r *schedlock.Row) { r.State = schedlock.StateLeading })
		return r, err
	}}},
	{88, "it counts as a heartbeat", "", rig{revoke: func(s *sound, ctx context.Context, term int64, by, reason string) (schedlock.Revocation, error) {
		r, err := s.Revoke(ctx, term, by, reason)
		s.Edit(func(r *schedlock.Row) { r.Beat++ })
		return r, err
	}}},
	{88, "it keeps no reason", "", rig{revoke: func(s *sound, ctx context.Context, term int64, by, _ string) (schedlock.Revocation, error) {
		return s.Revoke(ctx, term, by, "")
	}}},
	{88, "the history does not know", "Terms", rig{terms: func(s *sound, ctx context.Context, limit int) ([]schedlock.Term, error) {
		terms, err := s.Terms(ctx, limit)
		for i := range terms {
			terms[i].Revoked = schedlock.Revocation{}
		}
		return terms, err
	}}},
	{89, "the last one is returned", "", rig{revoke: func(s *sound, ctx context.Context, term int64, by, reason string) (schedlock.Revocation, error) {
		r, err := s.Revoke(ctx, term, by, reason)
		r.By = by
		return r, err
	}}},
	{90, "whoever leads", "", rig{revoke: func(s *sound, ctx context.Context, _ int64, by, reason string) (schedlock.Revocation, error) {
		return s.Revoke(ctx, theirs(s, schedlock.Ref{}).Term, by, reason)
	}}},
	{91, "it does not heed its context", "", rig{revoke: func(s *sound, ctx context.Context, term int64, by, reason string) (schedlock.Revocation, error) {
		return s.Revoke(context.WithoutCancel(ctx), term, by, reason)
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

// stored is the row with an id.
func stored(s *sound, id int64) ledger.Run {
	runs, _ := s.Runs(bg, "", 100)
	for _, r := range runs {
		if r.ID == id {
			return r
		}
	}
	return ledger.Run{}
}

// unpaused calls f as if nothing were paused.
func unpaused[T any](s *sound, f func() (T, error)) (T, error) {
	in, _ := s.Inbox(bg)
	for _, p := range in.Pauses {
		if p.InForce() {
			_, _ = s.Resume(bg, p.Job, "nobody")
			defer s.Pause(bg, p.Order)
		}
	}
	return f()
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
			if f == Hints || f == Ledger || f == Revocations {
				open := db.Open
				db.Open = func(t testing.TB) schedlock.Store { return struct{ schedlock.Store }{open(t)} }
			}
			assert.Contains(t, record(t, c, db, short), "add it, or list it in Database.Without", c.Name)
		}
	}
}
