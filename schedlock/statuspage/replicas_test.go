package statuspage

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock/ledger"
)

func TestReplicasThatTellOfThemselvesAreShown(t *testing.T) {
	t.Parallel()
	db := newDatabase()
	h := newHandler(t, db, nil)
	page := func() string { return get(h, "/").Body.String() }
	require.NotContains(t, page(), "Replicas")
	require.Regexp(t, `(?s)id="standbys".*<strong>not known</strong>.*set Presence in`, page())
	db.lead(t, other, "")
	for _, r := range []ledger.Replica{
		{Instance: "a", PID: 12, Hostname: "web-1", Version: "v1 <b>", State: "leading"},
		{Instance: "b", PID: 7, Hostname: "web-2", State: "standby",
			Reason: "pid 12 <b> leads"},
		{Instance: "c", PID: 8, Hostname: "web-2", State: "standby"},
	} {
		require.NoError(t, db.Present(ctx, r, false))
	}
	require.Contains(t, page(), "</strong>, 2 standbys ready, 1 job OK", "the verdict")
	require.Regexp(t, `(?s)id="standbys"><p class="number"><strong>2</strong>.*Replicas</h2>.*`+
		`replica">pid 12 on web-1<.*version">v1 &lt;b&gt;<.*state">leading<.*`+
		`replica">pid 7 on web-2<.*version">–<.*`+
		`state">standby<div class="quiet">pid 12 &lt;b&gt; leads<`, page())
	require.NoError(t, db.Absent(ctx, "b"))
	require.Contains(t, page(), "</strong>, 1 standby ready, 1 job OK")
	db.set(time.Now().Add(4 * ledger.PresenceInterval))
	require.Contains(t, page(), `id="standbys"><p class="number bad"><strong>0<`, "it is silent")
	db.at.Store(nil)
	require.NoError(t, db.Absent(ctx, "c"))
	require.Regexp(t, `(?s)id="standbys"><p class="number bad"><strong>0</strong>.*Nobody takes over`+
		`.*No standby is ready</span> · <a href="#replicas-title">the replicas</a>`, page())
}
