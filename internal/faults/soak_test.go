//go:build linux

package faults

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSoak(t *testing.T) {
	if *soakFor == 0 {
		t.Skip("-faults.soak=10m runs a random storm of that length")
	}
	require.Contains(t, []string{kindSQLite, kindPostgres, kindMySQL, kindGalera}, *soakOn)
	only, err := regexp.Compile(*onlyFlag)
	require.NoError(t, err)
	run := newTestRun(t)
	var together together
	for n := range *soakMany * 2 {
		g := group{name: fmt.Sprintf("storm %d", n), sameOwner: n%4 < 2, appPool: n/2%2 == 0,
			small: n%3 == 2}
		faults := Faults
		switch g.on = *soakOn; g.on {
		case kindSQLite:
			g.on = ""
		case kindPostgres:
			// Small disks and poolers have no replica.
			g.small, g.pooler = n%6 == 2, n%6 == 4 || n%6 == 1
			g.tunnel = n%6 == 5
			g.sessions = n%2 == 0 || g.tunnel
			faults = slices.Concat(sharedFaults(), PostgresFaults)
		case kindMySQL:
			g.small, g.sessions, g.sign = n%6 == 2, n%2 == 0, n%2 == 0
			faults = mysqlFaults()
		case kindGalera:
			g.small = false
			faults = galeraFaults()
		}
		if g.locks = n%3 == 0; g.locks {
			faults = slices.Concat(faults, LockFaults)
		}
		faults = slices.DeleteFunc(slices.Clone(faults), func(f Fault) bool {
			return !only.MatchString(f.Name)
		})
		require.NotEmpty(t, faults, "-faults.only=%s", *onlyFlag)
		together.run(t, g.name, func(t *testing.T) {
			run.with(t, g, n, func(ctx context.Context, c *Cluster) (map[string]error, error) {
				return c.Storm(ctx, survivable(n%2 == 0, faults...), 0, *soakFor)
			})
		})
	}
	together.Wait()
}

// survivable returns the faults of a storm, without those that step clocks or
// those that lose the database.
func survivable(clocks bool, faults ...Fault) []Fault {
	return slices.DeleteFunc(slices.Clone(faults), func(f Fault) bool {
		return f.Last || clocks && f.Restore || !clocks && f.Clock
	})
}
