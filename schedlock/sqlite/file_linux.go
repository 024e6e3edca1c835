package sqlite

import (
	"io/fs"
	"syscall"
	"time"
)

// changedAt is when the state of a file was last changed (ctime): written to,
// renamed, or removed.
func changedAt(info fs.FileInfo) (time.Time, bool) {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return time.Time{}, false
	}
	return time.Unix(st.Ctim.Unix()), true
}
