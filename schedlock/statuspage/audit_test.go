package statuspage

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTheNewestOrdersAreShownIfThereAreAny(t *testing.T) {
	t.Parallel()
	db := newDatabase()
	h := newHandler(t, db, nil)
	page := func() string { return get(h, "/").Body.String() }
	require.NotContains(t, page(), "Audit")

	ref := db.lead(t, other, "")
	db.paused(t, "", "ann <b>", "disk full")
	_, err := db.Revoke(ctx, ref.Term, "bob", "")
	require.NoError(t, err)
	text := page()
	require.Regexp(t, `(?s)Audit</h2>.*order">hand-over<.*job">–<.*by">bob<.*reason">–<`+
		`.*order">pause<.*job">\(all\)<.*by">ann &lt;b&gt;<.*reason">disk full<`, text)

	for range maxAudit {
		_, err = db.Resume(ctx, "", "carol")
		require.NoError(t, err)
		db.paused(t, "", "carol", "")
	}
	text = page()
	require.Equal(t, maxAudit, strings.Count(text, `data-label="order"`), "the newest")
	require.NotContains(t, text, "disk full")
}
