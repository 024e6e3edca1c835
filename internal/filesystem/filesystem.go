// Package filesystem is about where a SQLite database lies, and about the files beside
// it.
//
// [Check] tells whether the locks of SQLite, and those of the lease file, reach every
// process that can open a file.
//
// The files that lie beside the database, and that SQLite does not know, are made by
// [Make]: it sets who may open them, and what has taken their place is refused by
// [CheckRegular]. Whoever may open a file may lock it, also if he may only read it:
// flock(2) asks for no more, and a read lock keeps others from a write lock. So who may
// not write the database may not open these files at all.
package filesystem

import "io/fs"

// Special is what a file is that is neither a regular one nor a folder.
func Special(mode fs.FileMode) string {
	switch {
	case mode&fs.ModeDevice != 0:
		return "a device"
	case mode&fs.ModeSocket != 0:
		return "a socket"
	case mode&fs.ModeNamedPipe != 0:
		return "a named pipe"
	}
	return "something else"
}
