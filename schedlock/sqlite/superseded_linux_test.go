package sqlite

import (
	"context"
	"database/sql"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/missing"
	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/driver"
)

// hung returns a database whose leader, another process with a TTL of 1 s, was
// stopped and has been replaced since, and the store of who replaced it with a
// TTL of a minute.
func hung(t *testing.T) (s *Store, lease *schedlock.Lease) {
	t.Helper()
	missing.Long(t, "waits for the TTL of a process")
	s = newStore(t)
	needProof(t, s)
	old := leads(t, s.Path(), "0", "1s")
	require.NoError(t, old.Cmd.Process.Signal(syscall.SIGSTOP))
	t.Cleanup(func() { _ = old.Cmd.Process.Signal(syscall.SIGCONT) })
	lock := newLock(t, s)
	lease, err := lock.Wait(lasting(t, soon))
	require.NoError(t, err)
	t.Cleanup(func() { _ = lock.Stop(bg) })
	return s, lease
}

func TestAHungLeaderThatWasReplacedDelaysNobodyAnyMore(t *testing.T) {
	t.Parallel()
	s, lease := hung(t)
	require.NoError(t, lease.Release(bg))
	leadsSoon(t, mustOpen(t, s.Path())) // after a clean hand-over

	leader := leads(t, s.Path(), "0")
	lock := newLock(t, mustOpen(t, s.Path()))
	won := make(chan error, 1)
	ctx := lasting(t, 20*time.Second)
	go func() { // waits already when it happens
		lease, err := lock.Wait(ctx)
		if err == nil {
			err = lease.Release(bg)
		}
		won <- err
	}()
	kill(t, leader)
	require.NoError(t, <-won, "after a crash the TTL decides")
	leadsSoon(t, mustOpen(t, s.Path()))
}

// A tale is what a hand, or a copy of the database, has made of the history of
// hung: what a newcomer finds.
type tale struct {
	name  string
	edit  []string // the successor has released unless it leads
	leads bool
	want  driver.Sign
}

const (
	ofHung      = ` WHERE term = (SELECT min(term) FROM scheduler_terms)`
	ofSuccessor = ` WHERE term = (SELECT max(term) FROM scheduler_terms)`
	endByHand   = `UPDATE scheduler_terms
		SET ended_at = '2026-03-01T12:00:00.000000Z', end_reason = 'released'`
)

// The names in brackets are those of the runs of the model that elect two
// leaders.
var tales = []tale{
	{name: "an end beside this lease file: the byte is disregarded", want: driver.SignDead},
	{name: "an end by hand, of the row's own token (Y5)", leads: true, want: driver.SignAlive,
		edit: []string{
			endByHand + `, ended_file_id = file_id` + ofSuccessor}},
	{name: "the row deleted and its end written by hand (Y6)", leads: true, want: driver.SignAlive,
		edit: []string{
			`DELETE FROM scheduler_lock`, endByHand + ofSuccessor}},
	{name: "the row deleted, the end written beside another lease file (Y7)", leads: true,
		want: driver.SignAlive, edit: []string{
			`DELETE FROM scheduler_lock`, endByHand + `, ended_file_id = 'another'` + ofSuccessor}},
	{name: "an old term's end written beside another lease file (Y8)", want: driver.SignAlive,
		edit: []string{
			`UPDATE scheduler_terms SET ended_file_id = 'another'` + ofHung}},
	{name: "an old term's end written by older code", want: driver.SignAlive, edit: []string{
		`UPDATE scheduler_terms SET ended_file_id = NULL` + ofHung}},
	{name: "a term that is known, and open (Y12)", want: driver.SignAlive, edit: []string{
		`UPDATE scheduler_terms SET ended_at = NULL, end_reason = NULL` + ofHung}},
	{name: "the row's token edited (Y13)", leads: true, want: driver.SignNone, edit: []string{
		`UPDATE scheduler_lock SET token = '00000000000000000000000000000000'`}},
	{name: "a term that was trimmed", want: driver.SignAlive, edit: []string{
		`DELETE FROM scheduler_terms` + ofHung}},
	{name: "the row's token edited, its end written by hand (Y6b)", leads: true,
		want: driver.SignAlive, edit: []string{
			`UPDATE scheduler_lock SET token = '00000000000000000000000000000000'`, endByHand +
				ofSuccessor}},
	{name: "two terms of one token", want: driver.SignAlive, edit: []string{
		`INSERT INTO scheduler_terms
		 SELECT term + 1, token, pid, hostname, acquired_at, NULL, NULL, next_term, ttl_ms, file_id,
		 revoked_at, revoked_by, revoke_reason, ended_file_id, app, program
		 FROM scheduler_terms` + ofHung}},
}

func TestAHeldByteIsDisregardedByTheRuleOnly(t *testing.T) {
	t.Parallel()
	for _, tale := range tales {
		t.Run(tale.name, func(t *testing.T) {
			t.Parallel()
			s, lease := hung(t)
			newcomer := mustOpen(t, s.Path())
			if !tale.leads {
				require.NoError(t, lease.Release(bg))
			}
			before := look(t, newcomer)
			hand := foreign(t, s)
			for _, edit := range tale.edit {
				run(t, hand, edit)
			}
			v := look(t, newcomer)
			assert.Equal(t, tale.want, v.Sign)
			if tale.leads {
				require.NoError(t, lease.Err(), "it has not noticed yet")
			}

			if tale.edit == nil {
				leadsSoon(t, mustOpen(t, s.Path()))
				return
			}
			lock := newLock(t, newcomer)
			_, err := lock.Wait(lasting(t, 300*time.Millisecond))
			require.ErrorIs(t, err, context.DeadlineExceeded, "it leads although a byte counts")
			require.NoError(t, lock.Stop(bg))

			if before.Row == nil { // the claim of one who has looked before the edit
				c := claimOf(before)
				c.Watched = false
				_, err := newcomer.Acquire(bg, c)
				require.ErrorIs(t, err, driver.ErrConflict,
					"what a look has found is not what decides")
			}
		})
	}
}

// endedBeside is what the history says of the end of a term.
func endedBeside(t *testing.T, s *Store, term int64) sql.NullString {
	t.Helper()
	return ask[sql.NullString](t, foreign(t, s),
		`SELECT ended_file_id FROM scheduler_terms WHERE term = ?`, term)
}

// Y14.
func TestAnEndBearsTheLeaseFileAfterAWatchOrAProofOnly(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	needProof(t, s)
	first := acquire(t, s)
	state, err := s.lease.Probe(first.Token)
	require.NoError(t, err)
	file := state.ID
	rival := mustOpen(t, s.Path())

	claim := claimOf(look(t, rival))
	claim.Watched, claim.Expected.Sign, claim.Expected.Probe = false, driver.SignNone, nil
	grant, err := rival.Acquire(bg, claim)
	require.NoError(t, err)
	assert.Equal(t, sql.NullString{}, endedBeside(t, s, first.Term),
		"neither watched nor proven dead")

	unproven := claim.Token
	alive := claimOf(look(t, s))
	require.Equal(t, driver.SignAlive, alive.Expected.Sign)
	alive.Watched = false
	second, err := s.Acquire(bg, alive)
	require.NoError(t, err)
	assert.Equal(t, sql.NullString{}, endedBeside(t, s, grant.Term), "its byte was seen to be held")

	claim = claimOf(look(t, s))
	next, err := s.Acquire(bg, claim)
	require.NoError(t, err)
	assert.Equal(t, sql.NullString{String: file, Valid: true}, endedBeside(t, s, second.Term),
		"watched")

	s.dropByte(first.Token)
	s.dropByte(alive.Token)
	s.dropByte(claim.Token) // as if it had died
	rival.dropByte(unproven)
	dead := claimOf(look(t, rival))
	require.Equal(t, driver.SignDead, dead.Expected.Sign)
	dead.Watched, dead.Reason = false, driver.EndProvenDead
	last, err := rival.Acquire(bg, dead)
	require.NoError(t, err)
	assert.Equal(t, sql.NullString{String: file, Valid: true}, endedBeside(t, s, next.Term),
		"proven dead")

	dead.Ref.Term = last.Term
	release(t, rival, dead.Ref)
	assert.Equal(t, sql.NullString{String: file, Valid: true}, endedBeside(t, s, last.Term),
		"by its own word")
}

// Y15.
func TestALeaderWritesItsEndWhenItsWorkHasReturnedOnly(t *testing.T) {
	missing.Long(t, "waits for what does not happen")
	t.Parallel()
	s := newStore(t)
	needProof(t, s)
	_, lease := lead(t, s)
	run(t, foreign(t, s), `DELETE FROM scheduler_lock`)
	require.ErrorIs(t, lease.Heartbeat(bg), driver.ErrLost)
	rival := mustOpen(t, s.Path())
	lock := newLock(t, rival)
	_, err := lock.Wait(lasting(t, 300*time.Millisecond))
	require.ErrorIs(t, err, context.DeadlineExceeded, "two at work")
	assert.Equal(t, driver.SignAlive, look(t, rival).Sign, "its work has not returned")
	require.NoError(t, lock.Stop(bg))
	require.NoError(t, lease.Release(bg))
	leadsSoon(t, mustOpen(t, s.Path()))
}
