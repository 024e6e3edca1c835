//go:build unix

package tempserver

import (
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// Data makes the data directory. The template makes it once: it is kept as an archive in the user's
// cache, for all later test binaries.
func (p *Process) Data(template Template) error {
	archive, err := template.cached()
	if err != nil {
		return template.Make(p) // there is no cache
	}
	if p.unpack(archive) == nil {
		return nil
	}
	if err := os.RemoveAll(filepath.Join(p.Dir, "data")); err != nil {
		return err
	}
	if err := template.Make(p); err != nil {
		return err
	}
	_ = p.pack(archive) // without it the next one takes longer
	return nil
}

// cached returns the path of the archive.
func (t Template) cached() (string, error) {
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	dir = filepath.Join(dir, t.Name)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	key := fnv.New64a()
	fmt.Fprint(key, t.Version)
	return filepath.Join(dir, fmt.Sprintf("%x.tar", key.Sum64())), nil
}

// unpack makes the data directory from an archive that only this user can have written.
func (p *Process) unpack(archive string) error {
	file, err := os.OpenFile(archive, os.O_RDONLY|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return err
	}
	owner, ok := info.Sys().(*syscall.Stat_t)
	if !ok || int(owner.Uid) != os.Getuid() || !info.Mode().IsRegular() ||
		info.Mode().Perm()&0o022 != 0 {
		return fmt.Errorf("%s: not trusted", archive)
	}
	cmd := p.Command("tar", "-xpf", "-")
	cmd.Stdin = file
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("unpack %s: %w", archive, err)
	}
	// The last file: an archive that was cut short ends before it.
	return os.Remove(filepath.Join(p.Dir, "complete"))
}

// pack writes the archive under another name first: there may be other test binaries.
func (p *Process) pack(archive string) (err error) {
	file, err := os.CreateTemp(filepath.Dir(archive), "new")
	if err != nil {
		return err
	}
	defer func() {
		err = errors.Join(err, file.Close())
		if err == nil {
			err = os.Rename(file.Name(), archive)
		}
		if err != nil {
			_ = os.Remove(file.Name())
		}
	}()
	complete := filepath.Join(p.Dir, "complete")
	if err := os.WriteFile(complete, nil, 0o644); err != nil {
		return err
	}
	defer os.Remove(complete)
	cmd := p.Command("tar", "-cf", "-", "data", "complete")
	cmd.Stdout = file
	var said strings.Builder
	cmd.Stderr = &said
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("pack %s: %w: %s", archive, err, said.String())
	}
	return nil
}
