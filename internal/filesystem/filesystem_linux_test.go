package filesystem

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestNetworkFileSystemsAreKnown(t *testing.T) {
	for _, name := range []string{"NFS", "CIFS", "SMB2", "9p", "Ceph"} {
		found := false
		for _, n := range networkFS {
			found = found || n == name
		}
		assert.True(t, found, name)
	}
	for magic := range Local {
		assert.NotContains(t, networkFS, magic)
	}
}
