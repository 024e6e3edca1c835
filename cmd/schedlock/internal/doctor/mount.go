package doctor

import (
	"fmt"
	"slices"
	"strings"

	"example.com/schedlock/internal/filesystem"
)

// A mount is where a file lies.
type mount struct {
	point  string
	kind   string // "ext4", "fuse.sshfs", …
	source string
	flags  []string // "rw", "relatime", …
	free   int64    // bytes
}

// A heartbeat needs a page or two, and the -wal file grows to 4 MiB before it is copied back.
const (
	littleFree = 16 << 20
	noneFree   = 1 << 20
)

// checkMount asks the store, which refuses what it knows to be wrong, and then
// says what else is known of the file system. It reports whether the store
// accepts it.
func checkMount(f *findings, path string) bool {
	if err := filesystem.Check(path); err != nil {
		f.fail("file system", err.Error(), "the app refuses to start with it; follow the advice")
		return false
	}
	m, ok := mountOf(path)
	if !ok {
		f.note("file system",
			"not known on this system: SQLite's locks must reach every replica, "+
				"so it must be a local disk")
		return true
	}
	judgeMount(f, m)
	return true
}

func judgeMount(f *findings, m mount) {
	found := fmt.Sprintf("%s, mounted at %s", m.kind, m.point)
	switch {
	case slices.Contains(m.flags, "ro"),
		slices.Contains(m.flags, "emergency_ro"): // of ext4, beside rw, on new kernels
		f.fail("file system", found+" read-only",
			"nobody can acquire or renew the lock: mount it rw; "+
				"if it was remounted by an error of the disk, see the kernel's log")
	case m.free < littleFree:
		level := Warning
		if m.free < noneFree {
			level = Error
		}
		f.add(level, "file system", fmt.Sprintf("%s: %s are free", found, size(m.free)),
			"without room nobody can acquire or renew the lock: remove what is not needed there")
	case strings.HasPrefix(m.kind, "fuse"), m.kind == "virtiofs":
		f.warn("file system", found+fmt.Sprintf(" (%s): a file system in user space or of a host",
			m.source),
			"whether file locks reach every replica depends on it, deaths cannot be proven on "+
				"it, and network file systems come this way too: use a local disk")
	case m.kind == "tmpfs", m.kind == "ramfs":
		f.note("file system", found+
			": it is memory; the database is gone after a reboot, or with its container")
	case m.kind == "overlay":
		f.note("file system", found+": the layer of a container; the database goes with the "+
			"container, and other containers do not see it, unless its folder is a volume")
	default:
		f.ok("file system", found)
	}
}
