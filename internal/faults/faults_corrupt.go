//go:build linux

package faults

import (
	"context"
	"math/rand/v2"
	"os"

	"github.com/ncruces/go-sqlite3/driver"
)

// CorruptHeader: the first page of the file is overwritten. Nobody need lead
// afterwards, but nobody may lead twice, and the processes live on.
func CorruptHeader(ctx context.Context, c *Cluster, in *Injection) error {
	return c.corrupt(ctx, in, func(file *os.File, random *rand.ChaCha8, _ int64) error {
		return scribble(file, random, 0, 4096)
	})
}

// CorruptPages: pages all over the file are overwritten. As CorruptHeader.
func CorruptPages(ctx context.Context, c *Cluster, in *Injection) error {
	return c.corrupt(ctx, in, func(file *os.File, random *rand.ChaCha8, size int64) error {
		for at := int64(4096); at+4096 <= size; at += 4096 {
			if random.Uint64()%2 == 0 {
				if err := scribble(file, random, at, 4096); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

func scribble(file *os.File, random *rand.ChaCha8, at, n int64) error {
	garbage := make([]byte, n)
	_, _ = random.Read(garbage)
	_, err := file.WriteAt(garbage, at)
	return err
}

func (c *Cluster) corrupt(ctx context.Context, in *Injection,
	do func(*os.File, *rand.ChaCha8, int64) error) error {
	f, err := c.file()
	if err != nil {
		return err
	}
	in.Silent = true
	// So that the pages are read from the file, not from the WAL.
	db, err := driver.Open("file:" + f.path + "?mode=rw&_pragma=busy_timeout(1000)")
	if err != nil {
		return err
	}
	_, _ = db.ExecContext(ctx, `PRAGMA wal_checkpoint(TRUNCATE)`)
	db.Close()
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
	var seed [32]byte
	for i := range seed {
		seed[i] = byte(c.random.Uint32())
	}
	if err := do(file, rand.NewChaCha8(seed), info.Size()); err != nil {
		return err
	}
	c.sleep(ctx, 2*c.TTL)
	for _, p := range before {
		if !p.alive() {
			in.note("%s did not survive: %s", p.name, tail(p.file("stderr"), 1000))
		}
	}
	return nil
}
