package filesystem

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
)

// Mode lets those read and write who may write the database, and the owner.
func Mode(db fs.FileInfo) fs.FileMode {
	write := db.Mode().Perm() & 0o222
	return write | write<<1 | 0o600
}

// Make makes the file whole, with the owner of the database and [Mode], and
// flushed: it is made under another name, and linked into place. Of many that do
// so at once one wins; if there is something already, that stays. dbPath leads
// to the database file, which is not opened.
func Make(path, dbPath, content string) (err error) {
	db, err := os.Stat(dbPath)
	if err != nil {
		return err
	}
	random := make([]byte, 16)
	rand.Read(random)
	tmp := fmt.Sprintf("%s.new-%x", path, random)
	err = fill(tmp, db, content)
	if named := (*fs.PathError)(nil); errors.As(err, &named) {
		named.Path = path // the same each time
	}
	if err == nil {
		err = os.Link(tmp, path)
		if err != nil && !errors.Is(err, fs.ErrExist) && content == "" {
			err = fill(path, db, content) // a file system without links
		}
		if errors.Is(err, fs.ErrExist) {
			err = nil // another process was first
		}
	}
	if gone := os.Remove(tmp); !errors.Is(gone, fs.ErrNotExist) {
		err = errors.Join(err, gone)
	}
	return err
}

// fill makes a file that nobody else may open before it is complete.
func fill(path string, db fs.FileInfo, content string) error {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = file.WriteString(content)
	return errors.Join(err, give(file, db), file.Sync(), file.Close())
}

// Follow gives a file that was made earlier, perhaps by another user, with
// another mode, or when the database had another, the owner of the database and
// [Mode], as far as this process may. The caller knows by its content that it
// is ours.
func Follow(file *os.File, db fs.FileInfo) {
	if info, err := file.Stat(); err == nil && info.Mode().IsRegular() && links(info) == 1 {
		_ = give(file, db)
	}
}

// CheckRegular says in plain words what is wrong with what a name leads to, if that is
// no regular file. The error wraps fs.ErrNotExist if there is nothing.
func CheckRegular(path string) (fs.FileInfo, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return nil, err
	}
	var what string
	switch mode := info.Mode(); {
	case mode.IsRegular():
		return info, nil
	case mode.IsDir():
		what = "a folder"
	case mode&fs.ModeSymlink != 0:
		what = "a symbolic link, which is not followed"
	case mode&fs.ModeNamedPipe != 0:
		what = "a named pipe, which is not waited for"
	default:
		what = Special(mode)
	}
	return nil, fmt.Errorf("%s is %s, and not the file that schedlock makes: remove it", path, what)
}
