//go:build !unix

package sqlite

import "os"

func readable(string) error { return nil }

func writable(string) error { return nil }

func changeable(string) error { return nil }

// identify finds out whether there is a file; which one, this system does not
// tell cheaply.
func identify(path string) (fileID, error) {
	_, err := os.Stat(path)
	return fileID{}, err
}
