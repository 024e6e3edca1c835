//go:build unix

package pgtest

import (
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// cluster makes the data directory of a new cluster. initdb runs once for a version of PostgreSQL:
// what it made is kept as an archive in the user's cache, for all later test binaries.
func (p *process) cluster(bin string) error {
	archive, err := cached(bin)
	if err != nil {
		return p.initdb(bin) // there is no cache
	}
	if p.unpack(archive) == nil {
		return nil
	}
	if err := os.RemoveAll(filepath.Join(p.dir, "data")); err != nil {
		return err
	}
	if err := p.initdb(bin); err != nil {
		return err
	}
	_ = p.pack(archive) // without it the next one takes longer
	return nil
}

func (p *process) initdb(bin string) error {
	return p.run(filepath.Join(bin, "initdb"), append([]string{"-D", filepath.Join(p.dir, "data")},
		initdbOptions...)...)
}

// initdbOptions have segments of 1 MB: each server and each copy of one begins with a new segment.
var initdbOptions = []string{"-U", "postgres", "-A", "trust", "--no-sync", "--locale=C",
	"--encoding=UTF8", "--wal-segsize=1"}

// cached returns the path of the archive for the programs in bin.
func cached(bin string) (string, error) {
	program, err := os.Stat(filepath.Join(bin, "postgres"))
	if err != nil {
		return "", err
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	dir = filepath.Join(dir, "schedlock-pgtest")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	key := fnv.New64a()
	fmt.Fprint(key, bin, program.Size(), program.ModTime().UnixNano(), initdbOptions)
	return filepath.Join(dir, fmt.Sprintf("%x.tar", key.Sum64())), nil
}

// unpack makes the data directory from an archive that only this user can have written.
func (p *process) unpack(archive string) error {
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
	cmd := p.command("tar", "-xpf", "-")
	cmd.Stdin = file
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("unpack %s: %w", archive, err)
	}
	// The last file: an archive that was cut short ends before it.
	return os.Remove(filepath.Join(p.dir, "complete"))
}

// pack writes the archive under another name first: there may be other test binaries.
func (p *process) pack(archive string) (err error) {
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
	complete := filepath.Join(p.dir, "complete")
	if err := os.WriteFile(complete, nil, 0o644); err != nil {
		return err
	}
	defer os.Remove(complete)
	cmd := p.command("tar", "-cf", "-", "data", "complete")
	cmd.Stdout = file
	var said strings.Builder
	cmd.Stderr = &said
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("pack %s: %w: %s", archive, err, said.String())
	}
	return nil
}
