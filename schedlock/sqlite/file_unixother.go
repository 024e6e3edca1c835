//go:build unix && !linux

package sqlite

import (
	"io/fs"
	"time"
)

func changedAt(fs.FileInfo) (t time.Time, ok bool) { return t, false }
