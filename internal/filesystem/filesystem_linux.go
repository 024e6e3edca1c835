package filesystem

import (
	"fmt"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// networkFS are the file systems (statfs(2), f_type) on which SQLite's locks
// do not reach, or do not reach reliably, from one machine to the other.
var networkFS = map[int64]string{
	0x6969:     "NFS",
	0xff534d42: "CIFS",
	0xfe534d42: "SMB2",
	0x517b:     "SMB",
	0x01021997: "9p",
	0x00c36400: "Ceph",
	0x5346414f: "AFS",
	0x564c:     "NCP",
	0x73757245: "Coda",
	0x47504653: "GPFS",
	0x0bd00bd0: "Lustre",
	0x013661:   "GFS2",
	0x7461636f: "OCFS2",
}

// Local are the file systems on which the kernel's file locks are known to
// reach every process that can open the file: there a free byte of the lease
// file is proof of death.
var Local = map[int64]string{
	0xef53:     "ext",
	0x58465342: "xfs",
	0x9123683e: "btrfs",
	0xf2f52010: "f2fs",
	0x2fc12fc1: "zfs",
	0x01021994: "tmpfs",
	0x794c7630: "overlay",
}

// Type is the type of the file system that a path lies on (statfs(2), f_type).
func Type(path string) (int64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return 0, err
	}
	return int64(uint32(st.Type)), nil // its width differs by architecture
}

// Check refuses set-ups in which two replicas are known to hold row 1 at once: a
// network file system, and a single file that was bind-mounted (its -wal and
// -shm then lie in each container's own folder). The path leads to an existing
// database file, is absolute, and has its symbolic links resolved. Check opens
// nothing.
func Check(path string) error {
	t, err := Type(path)
	if err != nil {
		return fmt.Errorf("database %s: statfs: %w", path, err)
	}
	if name, ok := networkFS[t]; ok {
		return fmt.Errorf("database %s lies on a network file system (%s), "+
			"where SQLite's locks cannot be trusted and two replicas would lead: "+
			"use a local disk, or PostgreSQL for several machines", path, name)
	}
	file, ok1 := MountID(path)
	dir, ok2 := MountID(filepath.Dir(path))
	if ok1 && ok2 && file != dir {
		return fmt.Errorf("database %s is a single file mounted into its folder %s, "+
			"so its -wal file is not shared and two replicas would lead: "+
			"mount the folder, not the file", path, filepath.Dir(path))
	}
	return nil
}

// MountID tells one mount from another. It needs Linux 5.8; before that nothing
// can be told.
func MountID(path string) (uint64, bool) {
	var stx unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, path, 0, unix.STATX_MNT_ID, &stx); err != nil ||
		stx.Mask&unix.STATX_MNT_ID == 0 {
		return 0, false
	}
	return stx.Mnt_id, true
}
