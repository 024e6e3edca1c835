package bans

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"path"
	"strings"
	"time"
)

// BanDuration is how long a ban lasts after a list last named it.
const BanDuration = 7 * 24 * time.Hour

// Import reads the block lists of a folder, in the order of their names, and
// upserts their networks. A list is a file that ends in .txt, .ipset, .netset or
// .list and does not begin with a dot; folders below are not read. A file that
// cannot be read is reported and the others go on. For a folder on a disk give a
// Folder, which opens regular files only. The lists count as seen at now: a ban that
// was seen then or later counts as a duplicate and stays as it is.
//
// Each write transaction holds at most 1,000 networks and begins with fence (nil
// for none). If fence or the database fails, or ctx ends, Import returns that
// error, wrapped; the batches before it stay, and the report counts just these.
func (s *Store) Import(ctx context.Context, fsys fs.FS, fence Fence,
	now time.Time) (Report, error) {
	entries, err := fs.ReadDir(fsys, ".")
	if err != nil {
		return Report{}, fmt.Errorf("import block lists: read the folder: %w", err)
	}
	var report Report
	for _, entry := range entries {
		if entry.IsDir() || !isList(entry.Name()) {
			continue
		}
		im := importer{store: s, fence: fence, now: now, file: FileReport{Name: entry.Name()}}
		err := im.importFile(ctx, fsys)
		report.Files = append(report.Files, im.file)
		if err != nil {
			return report, fmt.Errorf("import %s: %w", entry.Name(), err)
		}
	}
	return report, nil
}

func isList(name string) bool {
	if strings.HasPrefix(name, ".") {
		return false
	}
	switch path.Ext(name) {
	case ".txt", ".ipset", ".netset", ".list":
		return true
	}
	return false
}

// importer imports one file.
type importer struct {
	store *Store
	fence Fence
	now   time.Time
	file  FileReport
	// The networks of the next transaction. Each is there once: PostgreSQL refuses
	// to upsert a row twice in one statement.
	batch   []string
	inBatch map[netip.Prefix]struct{}
}

// importFile returns an error only for what must end the whole import; that the
// file cannot be read goes into the report.
func (im *importer) importFile(ctx context.Context, fsys fs.FS) error {
	r, err := fsys.Open(im.file.Name)
	if err != nil {
		im.file.Err = err
		return ctx.Err()
	}
	defer r.Close()

	scanner := NewScanner(&contextReader{ctx: ctx, r: r})
	im.inBatch = make(map[netip.Prefix]struct{}, batchRows)
	for scanner.Scan() {
		prefix := scanner.Prefix()
		if _, ok := im.inBatch[prefix]; ok {
			im.file.Duplicates++
			continue
		}
		im.inBatch[prefix] = struct{}{}
		im.batch = append(im.batch, prefix.String())
		if len(im.batch) == batchRows {
			im.count(scanner)
			if err := im.writeBatch(ctx); err != nil {
				return err
			}
		}
	}
	im.count(scanner)
	if err := ctx.Err(); err != nil {
		return err // and not a file that cannot be read
	}
	im.file.Err = scanner.Err()
	if len(im.batch) == 0 {
		return nil
	}
	return im.writeBatch(ctx)
}

func (im *importer) count(scanner *Scanner) {
	im.file.Lines, im.file.Garbage, im.file.FirstBad = scanner.Lines(), scanner.Garbage(),
		scanner.FirstBad()
}

// writeBatch upserts the batch in one transaction and empties it.
func (im *importer) writeBatch(ctx context.Context) error {
	networks, err := json.Marshal(im.batch)
	if err != nil {
		return err
	}
	dialect := im.store.dialect
	seen, expires := dialect.timeArg(im.now), dialect.timeArg(im.now.Add(BanDuration))

	var written int
	err = im.store.write(ctx, im.fence, func(tx *sql.Tx) error {
		written = 0
		for _, query := range []string{dialect.update, dialect.upsert} {
			if query == "" {
				continue
			}
			n, err := affected(tx.ExecContext(ctx, query, string(networks), im.file.Name, seen,
				expires))
			if err != nil {
				return err
			}
			written += n
		}
		return nil
	})
	if err != nil {
		return err
	}
	im.file.Bans += written
	im.file.Duplicates += len(im.batch) - written
	im.batch = im.batch[:0]
	clear(im.inBatch)
	return nil
}

// contextReader ends with its context, however long the file or a line of it is.
type contextReader struct {
	ctx context.Context
	r   io.Reader
}

func (c *contextReader) Read(p []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	return c.r.Read(p)
}
