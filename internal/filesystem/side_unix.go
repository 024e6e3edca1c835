//go:build unix

package filesystem

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
)

// OpenFlags keep an open from following a link and from waiting for a pipe.
const OpenFlags = syscall.O_NOFOLLOW | syscall.O_NONBLOCK

// give makes db's owner the file's, then sets its mode, whatever the umask. Only
// root may give a file away; others may to a group of theirs.
func give(file *os.File, db fs.FileInfo) error {
	want, owner := Mode(db), db.Sys().(*syscall.Stat_t)
	info, err := file.Stat()
	if err != nil {
		return err
	}
	if st := info.Sys().(*syscall.Stat_t); st.Uid != owner.Uid || st.Gid != owner.Gid {
		if file.Chown(int(owner.Uid), int(owner.Gid)) != nil {
			_ = file.Chown(-1, int(owner.Gid))
		}
		if info, err = file.Stat(); err != nil {
			return err
		}
	}
	if info.Sys().(*syscall.Stat_t).Gid != owner.Gid {
		want &^= 0o070 // the rights of the database's group are not another's
	}
	if info.Mode().Perm() == want {
		return nil
	}
	return file.Chmod(want)
}

func links(info fs.FileInfo) uint64 {
	// its width differs by system
	return uint64(info.Sys().(*syscall.Stat_t).Nlink)
}

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
