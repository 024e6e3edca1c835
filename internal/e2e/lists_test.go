//go:build unix

package e2e

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// Whoever may write the folder of block lists has no say in what else the app
// reads, and cannot ban everybody.
func TestAListThatIsALinkOutOfItsFolderIsNotRead(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	lists, secret := filepath.Join(f.dir, "lists"), filepath.Join(f.dir, "shadow")
	require.NoError(t, os.Mkdir(lists, 0o700))
	require.NoError(t, os.WriteFile(secret, []byte("root:$6$geheim:19000:0\n198.51.100.9\n"),
		0o600))
	require.NoError(t, os.Symlink("../shadow", filepath.Join(lists, "a.txt")))
	require.NoError(t, os.Symlink(secret, filepath.Join(lists, "b.txt")))
	require.NoError(t, os.Symlink("..", filepath.Join(lists, "up.txt")))
	require.NoError(t, os.Symlink("up.txt/shadow", filepath.Join(lists, "c.txt")))
	require.NoError(t, syscall.Mkfifo(filepath.Join(lists, "d.txt"), 0o600))
	require.NoError(t, os.Mkdir(filepath.Join(lists, "e.txt"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(lists, "f.txt"),
		[]byte("0.0.0.0/0\n::/0\n192.0.2.7\n"), 0o600))
	// a link inside, as Kubernetes makes
	require.NoError(t, os.Symlink("f.txt", filepath.Join(lists, "g.txt")))

	r, _ := f.startLeader("BLOCKLISTS="+lists, "CONTROL=true")
	r.awaitLine("block lists imported", "1 bans", "1 duplicates", "4 garbage lines", "5 unreadable")
	for _, name := range []string{"a.txt", "b.txt", "c.txt"} {
		r.awaitLine("block list has faults", name,
			"links that lead out of the folder are not followed")
	}
	r.awaitLine("block list has faults", "d.txt", "not a regular file")
	r.awaitLine("block list has faults", "f.txt", "0.0.0.0/0", "is every address")
	require.Equal(t, "192.0.2.7/32", f.sql(`SELECT prefix FROM bans`))
	text := r.everything()
	require.NotContains(t, text, f.dir, "a stranger learns no paths")
	for _, part := range []string{"geheim", "root:", "198.51.100.9"} {
		require.NotContains(t, r.log.String()+text, part)
	}
}
