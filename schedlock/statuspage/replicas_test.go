package statuspage

import (
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock/ledger"
)

func TestReplicasThatTellOfThemselvesAreShown(t *testing.T) {
	t.Parallel()
	db := newDatabase()
	h := newHandler(t, db, nil)
	page := func() string { return get(h, "/").Body.String() }
	require.NotContains(t, page(), "Replicas")
	for _, r := range []ledger.Replica{
		{Instance: "a", PID: 12, Hostname: "web-1", Version: "v1 <b>", State: "leading"},
		{Instance: "b", PID: 7, Hostname: "web-2", State: "standby"},
		{Instance: "c", PID: 8, Hostname: "web-2", State: "standby"},
	} {
		require.NoError(t, db.Present(ctx, r, false))
	}
	require.Regexp(t, `(?s)Replicas</h2>.*<strong>2</strong> standbys are ready.*`+
		`replica">pid 12 on web-1<.*version">v1 &lt;b&gt;<.*state">leading<.*`+
		`replica">pid 7 on web-2<.*version">–<.*state">standby<`, page())
	require.NoError(t, db.Absent(ctx, "b"))
	require.Contains(t, page(), "<strong>1</strong> standby is ready")
}
