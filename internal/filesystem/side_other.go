//go:build !unix

package filesystem

import (
	"io/fs"
	"os"
)

// OpenFlags keep an open from following a link and from waiting for a pipe.
const OpenFlags = 0

// give does nothing: the folder's rules say who may open the file.
func give(*os.File, fs.FileInfo) error { return nil }

func links(fs.FileInfo) uint64 { return 1 }

// SyncFolder does nothing where folders cannot be opened: names are durable with the
// files there.
func SyncFolder(string) error { return nil }
