package doctor

import (
	"bufio"
	"math"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"example.com/schedlock/internal/filesystem"
)

// mountOf finds the mount of a path by its id, which needs Linux 5.8.
func mountOf(path string) (mount, bool) {
	number, ok := filesystem.MountID(path)
	var room unix.Statfs_t
	if !ok || unix.Statfs(path, &room) != nil {
		return mount{}, false
	}
	file, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return mount{}, false
	}
	defer file.Close()
	id := strconv.FormatUint(number, 10)
	for lines := bufio.NewScanner(file); lines.Scan(); {
		if m, found := parseMount(lines.Text(), id); found {
			m.free = free(room)
			return m, true
		}
	}
	return mount{}, false
}

// free is how many bytes there is room for. A file system that has no size, such as ramfs
// or some in user space, is never full.
func free(room unix.Statfs_t) int64 {
	if room.Blocks == 0 {
		return math.MaxInt64
	}
	return int64(room.Bavail * uint64(room.Frsize)) // its width differs by architecture
}

// parseMount reads a line of mountinfo (proc_pid_mountinfo(5)) if it is that of
// the mount id.
func parseMount(line, id string) (mount, bool) {
	left, right, ok := strings.Cut(line, " - ")
	fields, rest := strings.Fields(left), strings.Fields(right)
	if !ok || len(fields) < 6 || len(rest) < 2 || fields[0] != id {
		return mount{}, false
	}
	flags := strings.Split(fields[5], ",")
	if len(rest) > 2 { // of the file system itself: ro after an error of the disk
		flags = append(flags, strings.Split(rest[2], ",")...)
	}
	return mount{point: fields[4], kind: rest[0], source: rest[1], flags: flags}, true
}
