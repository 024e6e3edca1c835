//go:build !linux

package sqlite

import "io"

func lockedElsewhere(io.ReaderAt) (locked, ok bool) { return false, false }
