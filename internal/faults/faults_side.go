//go:build linux

package faults

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// RemoveSideFiles: some of the files that lie beside the database (-wal, -shm,
// lease file) are removed in any order, and one process is killed between two
// of them, before or after, and started again. The leader's term ends; what was
// committed is not lost. On the app's pool only the lease file is: connections that
// are not ours would write to two databases at once. Bound: TTL + 2 s.
func RemoveSideFiles(ctx context.Context, c *Cluster, in *Injection, f *sqliteFile, p *process,
	b Belief) error {
	if f.mounted {
		return fmt.Errorf("%w: a small disk has no room for a -wal file that was removed "+
			"and for its copy", errCannotInject)
	}
	suffixes := []string{"-wal", "-shm", "-lease"}
	c.random.Shuffle(len(suffixes), func(i, j int) {
		suffixes[i], suffixes[j] = suffixes[j], suffixes[i]
	})
	suffixes = suffixes[:1+c.random.IntN(len(suffixes))]
	if f.appPool {
		suffixes = []string{"-lease"} // without the others SQLite itself damages the database
	}
	victim, when := c.running()[c.random.IntN(len(c.running()))], c.random.IntN(len(suffixes)+1)
	c.Logf("remove %v, kill %s before no. %d", suffixes, victim.name, when)
	f.gate.Lock() // the harness itself would make new ones
	defer f.gate.Unlock()
	in.From = bootTime()
	for i, suffix := range suffixes {
		if i == when {
			victim.kill()
		}
		if err := os.Remove(f.path + suffix); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		sleep(ctx, time.Duration(c.random.IntN(20))*time.Millisecond)
	}
	if when == len(suffixes) {
		victim.kill()
	}
	in.To, in.Bound = bootTime(), c.boundTTL()
	c.mustStepDown(ctx, in, p, b, fmt.Sprintf("%v were removed", suffixes))
	await(ctx, c.boundTTL(), func() bool { _, now := c.leader(); return now.Term > b.Term })
	c.awaitAll(ctx)
	return nil
}

// LinkHard: the database file gets a second name. The leader stays and says so;
// a process that is started meanwhile refuses the file. Then the name is removed
// again. Bound: the leader stays.
func LinkHard(ctx context.Context, c *Cluster, in *Injection,
	f *sqliteFile, p *process, b Belief) error {
	name := filepath.Join(filepath.Dir(f.path), "second.db")
	_ = os.Remove(name) // of an injection that failed
	if err := os.Link(f.path, name); err != nil {
		return err
	}
	defer os.Remove(name) // if it fails halfway
	var victim *process
	for _, q := range c.running() {
		if q != p {
			victim = q
		}
	}
	if victim != nil {
		victim.kill()
	}
	sleep(ctx, c.TTL)
	if now, leads := c.leader(); now != nil && now != p {
		in.note("%s leads in term %d", now.name, leads.Term)
	}
	c.mustStill(ctx, in, p, b)
	if text, _ := os.ReadFile(p.file("stderr")); !strings.Contains(string(text), "has 2 names") {
		in.note("%s does not say that its database has two names", p.name)
	}
	for _, q := range c.running() {
		if victim != nil && q.slot == victim.slot && q.up() > 0 {
			in.note("%s has opened a database with two names", q.name)
		}
	}
	in.Keeps, in.Bound, in.To = b.Term, c.TTL/4, bootTime()
	if err := os.Remove(name); err != nil {
		return err
	}
	c.awaitAll(ctx)
	return nil
}

// SwitchFolder: the path as it was given leads to another folder, with a copy
// of the database or with nothing, for more than a TTL, and then back. The
// leader steps down, nobody leads meanwhile, all heals by itself. Bound: TTL +
// 2 s after it leads back.
func SwitchFolder(ctx context.Context, c *Cluster, in *Injection, f *sqliteFile) error {
	if f.appPool {
		return fmt.Errorf("%w: SQLite tells only where the path of an app's pool leads, "+
			"not how it was given", errCannotInject)
	}
	c.awaitAll(ctx) // one that is started meanwhile opens the other database, and may lead there
	p, b, err := c.target(ctx)
	if err != nil {
		return err
	}
	other := filepath.Join(filepath.Dir(f.dir), "other")
	if err := errors.Join(os.RemoveAll(other), os.Mkdir(other, 0o755)); err != nil {
		return err
	}
	if c.random.IntN(2) == 0 {
		if err := f.copyTo(ctx, filepath.Join(other, filepath.Base(f.path))); err != nil {
			return err
		}
	}
	f.gate.Lock()
	defer f.gate.Unlock()
	in.From = bootTime()
	if err := f.lead(other); err != nil {
		return err
	}
	c.mustStepDown(ctx, in, p, b, "its path leads to another folder")
	sleep(ctx, c.outage())
	c.mustBeNobody(in)
	in.To, in.Bound = bootTime(), c.boundTTL()
	return f.lead(f.dir)
}

// lead makes the link in the path of the database lead to a folder.
func (f *sqliteFile) lead(dir string) error {
	link := filepath.Dir(f.path)
	next := fmt.Sprintf("%s.next", link)
	if err := os.Symlink(dir, next); err != nil {
		return err
	}
	return os.Rename(next, link)
}
