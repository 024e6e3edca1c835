//go:build !unix

package sqlite

import (
	"io/fs"
	"os"
)

func readable(string) error { return nil }

func writable(string) error { return nil }

func changeable(string) error { return nil }

// examineFile finds out whether there is a file; which one, this system does not
// tell cheaply.
func examineFile(path string) (fileStat, error) {
	info, err := os.Stat(path)
	if err != nil {
		return fileStat{}, err
	}
	return fileStat{size: info.Size(), modified: info.ModTime()}, nil
}

func idOf(fs.FileInfo) fileID { return fileID{} }

func likeDatabase(*os.File, fs.FileInfo) error { return nil }
