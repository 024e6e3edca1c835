//go:build linux

package faults

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"example.com/schedlock/internal/servertest"
)

// A server is a Database on a server: each slot of the cluster comes to it through a
// proxy of its own.
type server interface {
	Database

	// become changes the network of some slots, or of all.
	become(n network, slots ...int)

	// proxy is the network of a slot.
	proxy(slot int) *proxy

	// ended reports whether the server has ended by itself.
	ended() bool

	// halt ends the server, hard or in good order, and start starts it again. A
	// pooler stays.
	halt(hard bool)
	start()

	// terminate ends the sessions of a process, or with nil of all.
	terminate(ctx context.Context, p *process) error

	// foreign opens a session of somebody else's.
	foreign(ctx context.Context) (end func(), err error)

	// setClock sets its wall clock so far ahead of the machine's; errCannotInject if it
	// has that of the machine.
	setClock(ctx context.Context, ahead time.Duration) error

	// smallDisk is the folder of a file system that is the server's alone, "" if it has none,
	// and how long the server may take to see that it has room again.
	smallDisk() (folder string, sees time.Duration)

	// write lets its log grow.
	write(ctx context.Context) error

	// pooled reports whether a pooler is in between.
	pooled() bool

	// wakes reports whether a release wakes the standbys.
	wakes() bool
}

// A proxy is the network between one replica and its server.
type (
	proxy   = servertest.Wire
	network = servertest.Network
)

// wire is the network of a cluster: a proxy for each slot.
type wire struct{ proxies []*proxy }

func (w *wire) become(n network, slots ...int) {
	if len(slots) == 0 {
		for _, p := range w.proxies {
			p.Become(n)
		}
	}
	for _, slot := range slots {
		w.proxies[slot].Become(n)
	}
}

func (w *wire) proxy(slot int) *proxy { return w.proxies[slot] }

func (w *wire) close() {
	for _, p := range w.proxies {
		p.Close()
	}
}

// shrink moves the data of a server that does not run onto a small tmpfs; errCannotInject if
// this process may not mount one.
func shrink(data string, size int) error {
	info, err := os.Stat(data)
	if err != nil {
		return err
	}
	owner := info.Sys().(*syscall.Stat_t)
	away := data + ".away"
	if err := os.Rename(data, away); err != nil {
		return err
	}
	if err := os.Mkdir(data, 0o700); err != nil {
		return err
	}
	options := fmt.Sprintf("size=%d,mode=0700,uid=%d,gid=%d", size, owner.Uid, owner.Gid)
	if err := unix.Mount("none", data, "tmpfs", 0, options); err != nil {
		return fmt.Errorf("%w: mount a tmpfs: %w", errCannotInject, err)
	}
	if err := os.CopyFS(data, os.DirFS(away)); err != nil {
		return err
	}
	err = filepath.WalkDir(data, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		mode := fs.FileMode(0o600)
		if entry.IsDir() {
			mode = 0o700
		}
		return errors.Join(os.Chmod(path, mode), os.Chown(path, int(owner.Uid), int(owner.Gid)))
	})
	return errors.Join(err, os.RemoveAll(away))
}
