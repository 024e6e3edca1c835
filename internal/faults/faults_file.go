//go:build linux

package faults

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// outage is how long a database cannot be written: the leader passes its renew
// deadline, and a TTL passes.
func (c *Cluster) outage() time.Duration { return c.TTL + c.TTL/4 }

// FillDisk: the file system is full for more than a TTL, and the WAL has to
// grow. Bound: TTL + 2 s after there is room again.
func FillDisk(ctx context.Context, c *Cluster, in *Injection, f *sqliteFile) error {
	if !f.mounted {
		return fmt.Errorf("%w: needs a small file system, which only root can mount",
			errCannotInject)
	}
	ballast := filepath.Join(filepath.Dir(f.path), "ballast")
	defer func() {
		if err := os.Remove(ballast); err != nil {
			in.note("%v", err)
		}
		in.To, in.Bound = bootTime(), c.boundTTL()
	}()
	f.emptyWAL(ctx) // otherwise the frames of one that has wrapped would still fit
	if err := fill(ballast); err != nil {
		return err
	}
	sleep(ctx, c.outage())
	return nil
}

// fill makes a file that takes all room of its file system.
func fill(path string) error {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	for chunk := make([]byte, 1<<16); len(chunk) > 0; {
		if _, err := file.Write(chunk); err != nil {
			chunk = chunk[:len(chunk)/2]
		}
	}
	return file.Close() // an open one would keep its room when it is removed
}

// ReadOnly: nobody may write the database file and its WAL for more than a
// TTL; in the middle the leader is killed, so that what is started anew opens
// it read-only. With chattr +i where that can be had; otherwise with chmod,
// which only those notice that open the file. Bound: TTL + 2 s after the file
// can be written again.
func ReadOnly(ctx context.Context, c *Cluster, in *Injection,
	f *sqliteFile, p *process, _ Belief) error {
	thaw, err := f.immutable()
	if err != nil {
		return err
	}
	defer func() {
		thaw()
		in.To, in.Bound = bootTime(), c.boundTTL()
	}()
	sleep(ctx, c.outage()/2)
	p.kill()
	sleep(ctx, c.outage()/2)
	return nil
}

func (f *sqliteFile) immutable() (thaw func(), err error) {
	set := func(path string, on bool) error {
		file, err := os.Open(path)
		if err != nil {
			return err
		}
		defer file.Close()
		flags, err := unix.IoctlGetInt(int(file.Fd()), unix.FS_IOC_GETFLAGS)
		if err != nil {
			return err
		}
		flags &^= unix.STATX_ATTR_IMMUTABLE
		if on {
			flags |= unix.STATX_ATTR_IMMUTABLE // the same bit as FS_IMMUTABLE_FL
		}
		return unix.IoctlSetPointerInt(int(file.Fd()), unix.FS_IOC_SETFLAGS, flags)
	}
	paths := []string{f.path, f.path + "-wal"}
	thaw = func() {
		for _, path := range paths {
			_ = set(path, false)
		}
	}
	for _, path := range paths {
		if err = set(path, true); err != nil {
			break
		}
	}
	switch {
	case err == nil:
		return thaw, nil
	case os.Geteuid() == 0:
		thaw()
		return nil, fmt.Errorf("%w: root writes any file, and this file system has no "+
			"immutable ones: %w", errCannotInject, err)
	}
	return func() { _ = os.Chmod(f.path, 0o644) }, os.Chmod(f.path, 0o444)
}

// Unlink: the file is deleted, with its WAL. The leader steps down at its next
// heartbeat, nobody leads, nobody makes a new file in its place. Then all
// processes are restarted, and make a new database. Bound: TTL + 2 s after
// the first serves again.
func Unlink(ctx context.Context, c *Cluster, in *Injection,
	f *sqliteFile, p *process, b Belief) error {
	if err := f.remove(); err != nil {
		return err
	}
	c.mustStepDown(ctx, in, p, b, "its database file was deleted")
	sleep(ctx, c.TTL)
	c.mustBeNobody(in)
	if _, err := os.Stat(f.path); !errors.Is(err, os.ErrNotExist) {
		in.note("a new file was made in place of the deleted one (%v)", err)
	}
	since := bootTime()
	c.killAll() // an operator's repair; what the database knew is gone
	c.forget(Span{in.From, bootTime()})
	in.Bound = c.boundTTL()
	c.awaitUp(ctx, in, since)
	return nil
}

func (c *Cluster) forget(s Span) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.forgot = append(c.forgot, s)
}

// promoted is forget where a replica was promoted.
func (c *Cluster) promoted(s Span) {
	c.forget(s)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.promotions = append(c.promotions, s)
}

// MoveAway: the file is renamed for more than a TTL, and then put back. The
// leader steps down at its next heartbeat; all heals by itself. Bound: TTL +
// 2 s after the file is back.
func MoveAway(ctx context.Context, c *Cluster, in *Injection, f *sqliteFile) error {
	if !c.awaitAll(ctx) {
		return errors.New("not all processes are up")
	}
	if _, _, err := c.target(ctx); err != nil {
		return err
	}
	if err := os.Rename(f.path, f.path+".away"); err != nil {
		return err
	}
	sleep(ctx, c.outage())
	c.mustBeNobody(in)
	in.To, in.Bound = bootTime(), c.boundTTL()
	return os.Rename(f.path+".away", f.path)
}

// ReplaceOlder: the file is replaced by an older copy of itself, made while
// the same or another leader held the lock. The standbys are restarted at
// once, while the leader still works on the old file; it must step down at its
// next heartbeat, and is restarted too. Bound: TTL + 2 s after the first
// serves again.
func ReplaceOlder(ctx context.Context, c *Cluster, in *Injection, f *sqliteFile) error {
	backup := f.path + ".backup"
	_ = os.Remove(backup) // of an injection that failed
	if err := f.copyTo(ctx, backup); err != nil {
		return err
	}
	if err := c.perhapsAnother(ctx); err != nil {
		return err
	}
	sleep(ctx, c.TTL/2)
	p, b, err := c.target(ctx)
	if err != nil {
		return err
	}
	in.From = bootTime()
	if err := f.remove(); err != nil {
		return err
	}
	if err := os.Rename(backup, f.path); err != nil {
		return err
	}
	c.forget(Span{in.From, bootTime() + late})
	for _, q := range c.running() {
		if q != p {
			q.kill()
		}
	}
	c.mustStepDown(ctx, in, p, b, "its database file was replaced")
	p.kill()
	in.Bound = c.boundTTL()
	c.awaitUp(ctx, in, in.From)
	return nil
}

// perhapsAnother lets another lead, or not: so a backup knows the leader, or one before.
func (c *Cluster) perhapsAnother(ctx context.Context) error {
	if c.random.IntN(2) == 0 {
		return nil
	}
	p, _, err := c.target(ctx)
	if err != nil {
		return err
	}
	p.kill()
	_, _, err = c.other(ctx, p)
	return err
}

// DeleteLeaseFile: the lease file is deleted under the leader, whose term ends
// at once: nothing would prove its death. The next one makes another, and is
// killed: that proves its death again. Without a lease file it cannot be
// injected.
func DeleteLeaseFile(ctx context.Context, c *Cluster, in *Injection,
	f *sqliteFile, p *process, b Belief) error {
	if err := os.Remove(f.path + "-lease"); errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("%w: there is no lease file", errCannotInject)
	} else if err != nil {
		return err
	}
	c.mustStepDown(ctx, in, p, b, "its lease file was deleted")
	if _, err := c.settle(ctx, bootTime(), true); err != nil {
		return err
	}
	return onLeader(KillLeader)(ctx, c, in)
}

// DeleteRowAndLeaseFile is edit of editDelete where the lease file is deleted too:
// nothing but the history of terms says that somebody may still lead.
func DeleteRowAndLeaseFile(ctx context.Context, c *Cluster, in *Injection, f *sqliteFile,
	p *process, b Belief) error {
	return c.whileStopped(ctx, in, p, b, func() error {
		if err := os.Remove(f.path + "-lease"); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		return c.db.Edit(ctx, editDelete)
	})
}
