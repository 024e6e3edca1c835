//go:build unix

package e2e

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAPostgresThatIsNamedByPairsIsNoFile(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	for _, url := range []string{
		"host=127.0.0.1 port=1 dbname=app password=geheim",
		"password = geheim host = 127.0.0.1 port = 1 dbname = app",
		"dbname='app' password='ge heim' host='127.0.0.1' port=1 connect_timeout=5",
	} {
		r := f.launch("DATABASE_URL=" + url)
		require.Equal(t, exitFailed, r.wait())
		require.Contains(t, r.log.String(), "127.0.0.1:1")
		require.Contains(t, r.log.String(), "refused")
		require.NotContains(t, r.log.String(), "heim")
		require.Empty(t, f.files())
	}
}
