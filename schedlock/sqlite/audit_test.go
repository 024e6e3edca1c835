package sqlite

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock/ledger"
)

// An order and its line are written together, or not at all.
func TestAnOrderWhoseLineCannotBeWrittenIsNotCarriedOut(t *testing.T) {
	s := newStore(t)
	conn := foreign(t, s)
	ref := acquire(t, s, nobody)
	decide(t, s, ref, ledger.Decision{Job: "j", Spec: "s", To: newClock().now()})
	_, err := s.Pause(bg, ledger.Action{By: "ann"})
	require.NoError(t, err)
	run(t, conn, `CREATE TRIGGER full BEFORE INSERT ON scheduler_audit
		BEGIN SELECT RAISE(ABORT, 'the audit is full'); END`)
	before := dump(t, conn)
	for what, give := range map[string]func() error{
		"pause":        func() error { _, err := s.Pause(bg, order); return err },
		"resume":       func() error { _, err := s.Resume(bg, "", "ann"); return err },
		"reset-cursor": func() error { _, err := s.ResetCursor(bg, order); return err },
		"hand-over":    func() error { _, err := s.Revoke(bg, ref.Term, "ann", ""); return err },
	} {
		require.ErrorContains(t, give(), "the audit is full", what)
		assert.Equal(t, before, dump(t, conn), what)
	}
	run(t, conn, `DELETE FROM scheduler_pauses`)
	before = dump(t, conn)
	_, err = s.Trigger(bg, order)
	require.ErrorContains(t, err, "the audit is full")
	assert.Equal(t, before, dump(t, conn))
}

// A hand may have spoiled a line: it hides no other one.
func TestALineWithoutATimeIsShown(t *testing.T) {
	s := newStore(t)
	run(t, foreign(t, s), `INSERT INTO scheduler_audit (at, what, job, by, reason)
		VALUES ('monday', 'pause', '', 'a hand', '')`)
	_, err := s.Pause(bg, ledger.Action{By: "ann"})
	require.NoError(t, err)
	list, err := s.Audit(bg, "", 10)
	require.NoError(t, err)
	require.Len(t, list, 2)
	assert.Equal(t, "ann", list[0].By)
	assert.Equal(t, ledger.AuditEntry{ID: 1, What: "pause", Action: ledger.Action{By: "a hand"}},
		list[1])
}
