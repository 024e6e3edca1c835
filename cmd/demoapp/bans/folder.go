package bans

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
)

// A Folder is a folder of block lists on a disk. Whoever may write it has no say
// in what else is read: a link is followed inside the folder only, and nothing
// but a regular file is opened. Close it after use.
type Folder struct{ root *os.Root }

var _ fs.ReadDirFS = (*Folder)(nil)

var (
	errLeadsOut   = errors.New("links that lead out of the folder are not followed")
	errNotRegular = errors.New("not a regular file")
)

// OpenFolder opens a folder, which may be given by a link itself.
func OpenFolder(path string) (*Folder, error) {
	root, err := os.OpenRoot(path)
	if err != nil {
		return nil, err
	}
	return &Folder{root}, nil
}

// Close closes the folder.
func (f *Folder) Close() error { return f.root.Close() }

// ReadDir implements fs.ReadDirFS.
func (f *Folder) ReadDir(name string) ([]fs.DirEntry, error) {
	return fs.ReadDir(f.root.FS(), name)
}

// Open opens a regular file, whose name is text. What else may stand there is not waited
// for, and not read.
func (f *Folder) Open(name string) (fs.File, error) {
	if !fs.ValidPath(name) {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrInvalid}
	}
	file, err := f.root.OpenFile(name, openFlags, 0)
	if err != nil {
		return nil, f.explain(name, err)
	}
	info, err := file.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = &fs.PathError{Op: "open", Path: name, Err: errNotRegular}
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}

// explain says of a link that it leads out: os.Root has no error to tell it by.
func (f *Folder) explain(name string, err error) error {
	info, linkErr := f.root.Lstat(name)
	if linkErr != nil || info.Mode().Type() != fs.ModeSymlink ||
		errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
		return err
	}
	return fmt.Errorf("%w: %w", err, errLeadsOut)
}
