package sqlite

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock/ledger"
)

var order = ledger.Action{Job: "j", By: "ann", Reason: "why – ü 'x'"}

func inbox(t testing.TB, s *Store) ledger.Pending {
	t.Helper()
	in, err := s.Pending(bg)
	require.NoError(t, err)
	return in
}

func TestAnyReplicaOrdersAndTheLeaderAnswers(t *testing.T) {
	clock := newClock()
	leader := newStore(t, WithClock(clock.now))
	standby := mustOpen(t, leader.Path(), WithClock(clock.now))
	ref := acquire(t, leader, nobody)
	_, err := standby.Trigger(bg, order)
	require.ErrorIs(t, err, ledger.ErrNoJob)
	assert.EqualError(t, err, `no such job: "j"`)
	// A tick of the schedule has the time of the request already.
	decide(t, leader, ref, ledger.Decision{Job: "j", Spec: "s",
		To: clock.now(), Start: clock.now()})

	request, err := standby.Trigger(bg, order)
	require.NoError(t, err)
	assert.Equal(t, ledger.Request{Action: order, At: clock.now().Add(time.Microsecond)}, request)
	assert.Equal(t, []ledger.Request{request}, inbox(t, leader).Requests)

	pause, err := standby.Pause(bg, order)
	require.NoError(t, err)
	assert.Equal(t, ledger.Pause{Action: order, Since: clock.now()}, pause)
	_, err = standby.Trigger(bg, order)
	paused := (*ledger.PausedError)(nil)
	require.ErrorAs(t, err, &paused)
	assert.Equal(t, pause, paused.Pause)
	_, started, err := leader.Answer(bg, ref, request, "")
	require.ErrorIs(t, err, ledger.ErrPaused)
	assert.False(t, started)
	resumed, err := standby.Resume(bg, "j", "bob")
	require.NoError(t, err)
	assert.True(t, resumed)
	pause.Resumed, pause.ResumedBy = clock.now(), "bob"
	assert.Equal(t, ledger.Pending{Requests: []ledger.Request{request},
		Pauses: []ledger.Pause{pause}, Backlog: map[string]int{"j": 1}}, inbox(t, leader))

	got, started, err := leader.Answer(bg, ref, request, "")
	require.NoError(t, err)
	require.True(t, started)
	want := ledger.Run{ID: got.ID, Job: "j", ScheduledAt: request.At, StartedAt: clock.now(),
		Status: ledger.InProgress,
		Term:   ref.Term, PID: ref.PID, Hostname: ref.Hostname, Attempt: 1, RequestedBy: "ann",
		RequestReason: order.Reason}
	assert.Equal(t, want, got)
	seen, found, err := standby.Run(bg, "j", request.At)
	require.NoError(t, err)
	assert.True(t, found)
	assert.Equal(t, want, seen)
	assert.Empty(t, inbox(t, standby).Requests)
}

// A tick of the schedule may come to stand where a request stands.
func TestARequestWhoseTimeBecameATickIsRemoved(t *testing.T) {
	clock := newClock()
	s := newStore(t, WithClock(clock.now))
	ref := acquire(t, s, nobody)
	decide(t, s, ref, ledger.Decision{Job: "j", Spec: "s", To: noon})
	request, err := s.Trigger(bg, order)
	require.NoError(t, err)
	tick, _ := decide(t, s, ref, ledger.Decision{Job: "j",
		Spec: "s", From: noon, To: request.At, Start: request.At})
	_, started, err := s.Answer(bg, ref, request, "")
	require.NoError(t, err)
	assert.False(t, started)
	assert.Equal(t, []ledger.Run{tick}, runs(t, s, "j"))
	assert.Empty(t, inbox(t, s).Requests)
}

func TestRequestsOfOneMomentGetTimesOfTheirOwn(t *testing.T) {
	clock := newClock()
	first := newStore(t, WithClock(clock.now))
	decide(t, first, acquire(t, first, nobody), ledger.Decision{Job: "j", Spec: "s", To: noon})
	var (
		wait sync.WaitGroup
		mu   sync.Mutex
		at   []time.Time
		want []time.Time
	)
	for i := range 20 {
		s := mustOpen(t, first.Path(), WithClock(clock.now))
		want = append(want, clock.now().Add(time.Duration(i)*time.Microsecond))
		wait.Go(func() {
			var r ledger.Request
			err := retryBusy(bg, func() (err error) { r, err = s.Trigger(bg, order); return err })
			assert.NoError(t, err)
			mu.Lock()
			at = append(at, r.At)
			mu.Unlock()
		})
	}
	wait.Wait()
	slices.SortFunc(at, time.Time.Compare)
	assert.Equal(t, want, at)
	assert.Len(t, inbox(t, first).Requests, 20)
}

func TestOncePauseHasReturnedNothingStarts(t *testing.T) {
	for _, name := range []string{"j", ""} {
		t.Run("job "+name, func(t *testing.T) {
			leader := newStore(t)
			standby := mustOpen(t, leader.Path())
			ref := acquire(t, leader, nobody)
			decide(t, leader, ref, ledger.Decision{Job: "j", Spec: "s", To: noon})
			begun, ended := make(chan struct{}), make(chan error, 1)
			ctx, cancel := context.WithTimeout(bg, 20*time.Second)
			defer cancel()
			go func() {
				from := noon
				for i := 0; ; i++ {
					at := from.Add(time.Minute)
					_, _, err := leader.Decide(ctx, ref,
						ledger.Decision{Job: "j", Spec: "s", From: from, To: at, Start: at})
					if err != nil {
						ended <- err
						return
					}
					if from = at; i == 10 {
						close(begun)
					}
				}
			}()
			select {
			case <-begun:
			case err := <-ended:
				require.NoError(t, err)
			}
			require.NoError(t, retryBusy(bg, func() error {
				_, err := standby.Pause(bg, ledger.Action{Job: name, By: "ann"})
				return err
			}))
			before := runs(t, standby, "")
			assert.ErrorIs(t, <-ended, ledger.ErrPaused)
			assert.Equal(t, before, runs(t, standby, ""))
			_, _, err := leader.Decide(bg, ref, ledger.Decision{Job: "j",
				Spec: "s", From: before[0].ScheduledAt, To: before[0].ScheduledAt.Add(time.Hour)})
			assert.NoError(t, err, "ticks are passed over during a pause")
		})
	}
}

func TestASpoiledRequestOrPauseConcernsItsRowOnly(t *testing.T) {
	s := newStore(t)
	ref := acquire(t, s, nobody)
	other := foreign(t, s)
	decide(t, s, ref, ledger.Decision{Job: "j", Spec: "s", To: noon})
	for _, at := range []string{"now", "", "2026-03-01 12:00:00", "2026-03-01T12:00:00Z"} {
		run(t, other, `INSERT INTO scheduler_requests VALUES ('j', ?, 'a hand', '')`, at)
	}
	request, err := s.Trigger(bg, order)
	require.NoError(t, err)
	assert.Equal(t, []ledger.Request{request}, inbox(t, s).Requests,
		"each that is shown can be answered")
	_, started, err := s.Answer(bg, ref, request, "")
	require.NoError(t, err)
	assert.True(t, started)

	// Whether a pause is in force does not hang on how its times are written.
	run(t, other, `INSERT INTO scheduler_pauses VALUES ('j', 'monday', 'a hand', '', NULL, NULL)`)
	_, _, err = s.Decide(bg, ref, ledger.Decision{Job: "j",
		Spec: "s", From: noon, To: noon, Start: noon})
	require.ErrorIs(t, err, ledger.ErrPaused)
	assert.NotNil(t, ledger.Pending{Pauses: inbox(t, s).Pauses}.Paused("j"))
	run(t, other, `UPDATE scheduler_pauses SET resumed_at = 'tuesday', resumed_by = 'a hand'`)
	assert.Nil(t, ledger.Pending{Pauses: inbox(t, s).Pauses}.Paused("j"))
	decide(t, s, ref, ledger.Decision{Job: "j", Spec: "s", From: noon, To: noon, Start: noon})
}
