package postgres_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock/ledger"
)

// An order and its line are written together, or not at all.
func TestAnOrderWhoseLineCannotBeWrittenIsNotCarriedOut(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	s, admin := open(t, url), session(t, url)
	ref := acquire(t, s, time.Minute)
	_, _, err := s.Decide(ctx, ref, ledger.Decision{Job: "j", Spec: "s", To: tick})
	require.NoError(t, err)
	_, err = s.Pause(ctx, ledger.Action{By: "ann"})
	require.NoError(t, err)
	exec(t, admin, `
		CREATE FUNCTION full_up() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN RAISE EXCEPTION 'the audit is full'; END $$;
		CREATE TRIGGER full_up BEFORE INSERT ON scheduler_audit
		FOR EACH ROW EXECUTE FUNCTION full_up()`)
	all := func() []string {
		var rows []string
		for _, table := range []string{"lock", "terms", "jobs", "requests", "pauses"} {
			rows = append(rows, value[string](t, admin, `
				SELECT coalesce(string_agg(to_jsonb(t)::text, ' '), '')
				FROM scheduler_`+table+` t`))
		}
		return rows
	}
	before := all()
	order := ledger.Action{Job: "j", By: "ann"}
	for what, give := range map[string]func() error{
		"pause":        func() error { _, err := s.Pause(ctx, order); return err },
		"resume":       func() error { _, err := s.Resume(ctx, "", "ann"); return err },
		"reset-cursor": func() error { _, err := s.ResetCursor(ctx, order); return err },
		"hand-over":    func() error { _, err := s.Revoke(ctx, ref.Term, "ann", ""); return err },
	} {
		require.ErrorContains(t, give(), "the audit is full", what)
		require.Equal(t, before, all(), what)
	}
	exec(t, admin, `DELETE FROM scheduler_pauses`)
	before = all()
	_, err = s.Trigger(ctx, order)
	require.ErrorContains(t, err, "the audit is full")
	require.Equal(t, before, all())
}
