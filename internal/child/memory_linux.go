package child

import (
	"os"
	"syscall"
)

// memory is the file system in memory, where files cost least, or "" if it has no room for a few
// servers: in a container it often has 64 MB.
func memory() string {
	const (
		path  = "/dev/shm"
		tmpfs = 0x01021994
		room  = 1 << 30
	)
	var fs syscall.Statfs_t
	if err := syscall.Statfs(path, &fs); err != nil || fs.Type != tmpfs {
		return ""
	}
	info, err := os.Stat(path)
	if fs.Bavail*uint64(fs.Bsize) < room || err != nil || info.Mode().Perm()&0o007 != 0o007 {
		return ""
	}
	return path
}
