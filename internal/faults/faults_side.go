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
func RemoveSideFiles(ctx context.Context, c *Cluster, in *Injection, f *sqliteFile) error {
	if f.mounted {
		return fmt.Errorf("%w: a small disk has no room for a -wal file that was removed "+
			"and for its copy", errCannotInject)
	}
	p, b, err := c.target(ctx)
	if err != nil {
		return err
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
		c.sleep(ctx, time.Duration(c.random.IntN(20))*time.Millisecond)
	}
	if when == len(suffixes) {
		victim.kill()
	}
	in.To, in.Bound = bootTime(), c.boundTTL()
	if !c.await(ctx, c.TTL, func() bool {
		now, leads := p.leads()
		return !leads || now.Term != b.Term
	}) {
		in.note("%s still leads in term %d a TTL after %v were removed", p.name, b.Term, suffixes)
	}
	c.await(ctx, c.boundTTL(), func() bool { _, now := c.leader(); return now.Term > b.Term })
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
	c.sleep(ctx, c.TTL)
	if now, leads := c.leader(); now != nil && now != p {
		in.note("%s leads in term %d", now.name, leads.Term)
	}
	c.mustStill(ctx, p, b, in)
	if text, _ := os.ReadFile(p.file("stderr")); strings.Count(string(text), "has 2 names") == 0 {
		in.note("%s does not say that its database has two names", p.name)
	}
	c.mu.Lock()
	if q := c.slots[victimSlot(victim)]; victim != nil && q != nil && q.alive() {
		if records, _ := readRecords(q.file("log")); len(records) > 0 {
			in.note("%s has opened a database with two names", q.name)
		}
	}
	c.mu.Unlock()
	in.Keeps, in.Bound, in.To = b.Term, c.TTL/4, bootTime()
	if err := os.Remove(name); err != nil {
		return err
	}
	c.awaitAll(ctx)
	return nil
}

// awaitAll waits until every process is up: one that is being started would
// make a new file, should the next fault move this one away.
func (c *Cluster) awaitAll(ctx context.Context) {
	c.await(ctx, c.settleLimit(), func() bool {
		up := 0
		for _, p := range c.running() {
			if records, _ := readRecords(p.file("log")); len(records) > 0 {
				up++
			}
		}
		return up == c.Processes
	})
}

func victimSlot(p *process) int {
	if p == nil {
		return 0
	}
	return p.slot
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
	if !c.await(ctx, c.TTL, func() bool {
		now, leads := p.leads()
		return !leads || now.Term != b.Term
	}) {
		in.note("%s still leads a TTL after its path leads to another folder", p.name)
	}
	c.sleep(ctx, c.outage())
	if now, leads := c.leader(); now != nil {
		in.note("%s leads in term %d although its path leads to another folder", now.name,
			leads.Term)
	}
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
