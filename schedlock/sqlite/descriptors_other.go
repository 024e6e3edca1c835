//go:build !linux

package sqlite

import "errors"

// A descriptor is one of a regular file that this process has open.
type descriptor struct {
	fd   int
	file fileID
}

// descriptors cannot tell here.
func descriptors() ([]descriptor, error) { return nil, errors.ErrUnsupported }

func (descriptor) path() string { return "" }

func (descriptor) writable() bool { return false }

func (descriptor) locked(int64) (locked, known bool) { return false, false }
