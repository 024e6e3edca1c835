package sqlite

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock/ledger"
)

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
