package sqlite

import (
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

// Those of many at the same time: see rule 72 of locktest.
func TestRequestsOfOneMomentGetTimesOfTheirOwn(t *testing.T) {
	clock := newClock()
	s := newStore(t, WithClock(clock.now))
	decide(t, s, acquire(t, s, nobody), ledger.Decision{Job: "j", Spec: "s", To: noon})
	for i := range 20 {
		r, err := s.Trigger(bg, order)
		require.NoError(t, err)
		assert.Equal(t, clock.now().Add(time.Duration(i)*time.Microsecond), r.At)
	}
	assert.Len(t, inbox(t, s).Requests, 20)
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
