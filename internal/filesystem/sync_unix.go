//go:build unix

package filesystem

import (
	"errors"
	"fmt"
	"os"
	"syscall"
)

// SyncFolder waits until the names in a folder are on the disk: a file that was synced is
// lost with the power all the same if its name is not (fsync(2), "Calling fsync() does
// not necessarily ensure that the entry in the directory containing the file has also
// reached disk"). Like SQLite it takes a folder that cannot be read, or a file system
// that syncs no folders, as it is.
func SyncFolder(path string) error {
	folder, err := os.Open(path)
	if err != nil {
		return nil
	}
	defer folder.Close()
	err = folder.Sync()
	if errors.Is(err, syscall.EINVAL) || errors.Is(err, errors.ErrUnsupported) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("sync the folder %s: %w", path, err)
	}
	return nil
}
