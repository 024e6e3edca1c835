// Package inotify tells that something has happened to files and folders, on Linux, by inotify(7).
//
// A user of the system may have few instances of it, 128 by default, in all processes together. So
// one [Watch] is for all that a store looks after, and who gets no instance is told of nothing, and
// has to look by itself.
package inotify

// A change is something that can happen to what a path leads to.
type change int

const (
	// Names: a name in the folder came, went, or leads to something else; or the folder itself.
	Names change = iota
	// Writes: the file was written to.
	Writes
	// Closes: a descriptor that can write to the file was closed. A link is not followed.
	Closes
)
