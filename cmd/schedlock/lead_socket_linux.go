package main

import (
	"errors"
	"os"
	"syscall"
	"time"
)

// lockFolder keeps other sidecars that do the same waiting until the folder is closed.
func lockFolder(path string) (*os.File, error) {
	folder, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		err = syscall.Flock(int(folder.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		switch {
		case err == nil:
			return folder, nil
		case !errors.Is(err, syscall.EWOULDBLOCK) || time.Now().After(deadline):
			return nil, errors.Join(&os.PathError{Op: "flock", Path: path, Err: err}, folder.Close())
		}
	}
}
