//go:build linux

package faults

import (
	"context"
	"os"
)

// CorruptHeader: the first page of the file is overwritten. Nobody need lead
// afterwards, but nobody may lead twice, and the processes live on.
var CorruptHeader = corrupt(func(c *Cluster, file *os.File, _ int64) error {
	return c.scribble(file, 0)
})

// CorruptPages: pages all over the file are overwritten. As CorruptHeader.
var CorruptPages = corrupt(func(c *Cluster, file *os.File, size int64) error {
	for at := int64(page); at+page <= size; at += page {
		if c.random.IntN(2) == 0 {
			if err := c.scribble(file, at); err != nil {
				return err
			}
		}
	}
	return nil
})

const page = 4096

// scribble overwrites a page.
func (c *Cluster) scribble(file *os.File, at int64) error {
	garbage := make([]byte, page)
	for i := range garbage {
		garbage[i] = byte(c.random.Uint32())
	}
	_, err := file.WriteAt(garbage, at)
	return err
}

func corrupt(do func(c *Cluster, file *os.File, size int64) error) inject {
	return onDB(func(ctx context.Context, c *Cluster, in *Injection, f *sqliteFile) error {
		in.Silent = true
		f.emptyWAL(ctx) // so that the pages are read from the file
		before := c.running()
		file, err := os.OpenFile(f.path, os.O_RDWR, 0)
		if err != nil {
			return err
		}
		defer file.Close()
		info, err := file.Stat()
		if err != nil {
			return err
		}
		if err := do(c, file, info.Size()); err != nil {
			return err
		}
		sleep(ctx, 2*c.TTL)
		for _, p := range before {
			if !p.alive() {
				in.note("%s did not survive: %s", p.name, tail(p.file("stderr"), 1000))
			}
		}
		return nil
	})
}
