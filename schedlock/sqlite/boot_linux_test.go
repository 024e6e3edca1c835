package sqlite

import (
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/missing"
)

func TestTheBootClockCountsAndHasAnID(t *testing.T) {
	t.Parallel()
	first, id := bootNow()
	require.Positive(t, first)
	require.NotEmpty(t, id)
	require.NotEqual(t, wallClock, id)
	require.NotContains(t, id, "\n")
	t.Logf("boot clock: %d", first)
	require.Eventually(t, func() bool {
		later, same := bootNow()
		return later > first && same == id
	}, 10*time.Second, time.Millisecond)
}

func TestTheOffsetOfATimeNamespace(t *testing.T) {
	t.Parallel()
	for offsets, want := range map[string]time.Duration{
		"": 0,
		"monotonic           0         0\nboottime            0         0\n": 0,
		"monotonic       86400         0\nboottime       604800 500000000\n": 604800*time.Second +
			500*time.Millisecond,
		"monotonic          -1         0\n" +
			"boottime           -1 250000000\n": -750 * time.Millisecond,
		"boottime one two\n": 0,
	} {
		assert.Equal(t, want, bootOffset(offsets), "%q", offsets)
	}
}

// A container may have a boot clock of its own: ours is the machine's all the
// same.
func TestTheBootClockIsTheSameInATimeNamespace(t *testing.T) {
	t.Parallel()
	unshare := []string{"--time", "--boottime", "1000000", "--fork"}
	if os.Getuid() != 0 {
		unshare = append(unshare, "--user", "--map-root-user")
	}
	if out, err := exec.Command("unshare", append(unshare,
		"true")...).CombinedOutput(); err != nil {
		missing.Skip(t, "the program unshare, or the right to make a time namespace: %v: %s",
			err, out)
	}
	before, _ := bootNow()
	out, err := exec.Command("unshare", append(unshare, os.Args[0], "-test.v",
		"-test.run=^TestTheBootClockCountsAndHasAnID$")...).CombinedOutput()
	require.NoError(t, err, "%s", out)
	after, _ := bootNow()
	found := regexp.MustCompile(`boot clock: (\d+)`).FindSubmatch(out)
	require.NotNil(t, found, "%s", out)
	ms, err := strconv.ParseInt(string(found[1]), 10, 64)
	require.NoError(t, err)
	require.GreaterOrEqual(t, ms, before)
	require.LessOrEqual(t, ms, after)
}
