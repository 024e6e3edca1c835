//go:build unix

package sqlite

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/child"
	"example.com/schedlock/internal/missing"
)

func init() {
	// Folder, and the step before which it is killed.
	child.Modes["store killed"] = func() {
		d, err := makeDisk(os.Args[1])
		child.Check(err)
		d.killAt, err = strconv.Atoi(os.Args[2])
		child.Check(err)
		h := on(d)
		h.Tell = func(line string) { fmt.Println(line) }
		child.Check(h.Live(bg))
		fmt.Println("lived", d.tried)
	}
}

// killed lets a process live until it does something for the n-th time with a file. It returns
// what the process was told before, and whether it has lived.
func killed(t *testing.T, there bool, n int) (h *history, lived bool) {
	t.Helper()
	h = begins(t, there)
	cmd := child.Command(t, "store killed", h.folder, strconv.Itoa(n))
	cmd.Env = append(cmd.Env, "GOMAXPROCS=1") // many live side by side
	out, err := cmd.Output()
	h.Steps = func() int { return 0 }
	for lines := bufio.NewScanner(bytes.NewReader(out)); lines.Scan(); {
		if _, scanErr := fmt.Sscanf(lines.Text(), "lived %d", &h.tried); scanErr == nil {
			require.NoError(t, err)
			return h, true
		}
		require.NoError(t, h.Hear(lines.Text()))
	}
	require.ErrorContains(t, err, "signal: killed")
	return h, false
}

// Whatever a process is killed at, the others go on with what it was told.
func TestNoKillLosesWhatWasAcknowledged(t *testing.T) {
	missing.Long(t, "kills processes")
	t.Parallel()
	for _, there := range []bool{true, false} {
		t.Run(fmt.Sprintf("there %v", there), func(t *testing.T) {
			t.Parallel()
			whole, lived := killed(t, there, 0)
			require.True(t, lived)
			kills := 0
			for n := 1; n <= whole.tried; n++ {
				if !*everyCut && n%(23*seldom()) != 0 {
					continue
				}
				h, lived := killed(t, there, n)
				if lived {
					break // a life differs by a step or two
				}
				kills++
				require.NoError(t, h.survives(h.folder, 1), "killed at %d of %d", n, whole.tried)
			}
			t.Logf("%d of %d steps", kills, whole.tried)
			require.NotZero(t, kills)
		})
	}
}
