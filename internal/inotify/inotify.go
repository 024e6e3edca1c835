// Package inotify tells that something has happened to files and folders, on Linux, by inotify(7).
//
// A user of the system may have few instances of it, 128 by default, in all processes together. So
// one [Watch] is for all that a store looks after, and who gets no instance is told of nothing, and
// has to look by itself.
package inotify

// A change is something that can happen to what lies at a path. The last link is not followed.
type change int

const (
	// Fate: the file, or the link, was removed, moved, or replaced, or its metadata were changed.
	Fate change = iota
	// Moves: the folder was removed or moved.
	Moves
	// Writes: the file was written to.
	Writes
	// Closes: a descriptor that can write to the file was closed.
	Closes
)
