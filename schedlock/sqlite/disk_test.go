package sqlite

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/ncruces/go-sqlite3"
	"github.com/ncruces/go-sqlite3/vfs"
	"github.com/stretchr/testify/require"
)

// A disk records what SQLite does with the files of one folder, and tells what a
// power cut after any step may leave of it. It takes from a file system only what POSIX
// promises: what was written is there after fsync(2) of the file, and the name of a
// file after fsync(2) of its folder. Everything else may be there, or not, or in part.
//
// SQLite works on real files all the while, through the default VFS, so that locks and
// shared memory are the real ones. The -shm file is not recorded, as SQLite never syncs
// it and makes it anew from the -wal file; nor is the lease file, which says nothing after
// a restart.
type disk struct {
	vfs.VFS
	name string // as a VFS

	mu     sync.Mutex
	folder string
	nodes  map[fileID]int
	names  map[string]int // as they are now
	start  state          // before the first step
	steps  []step

	failAt int // which of the things that can fail does; 0: none
	killAt int // the process ends before this one; 0: it lives
	tried  int // how many there were
}

type stepKind int

const (
	write stepKind = iota
	truncate
	syncFile
	link
	unlink
	syncNames
)

// A step is one thing that was done. Of a file it has the node, as an inode number is
// used again.
type step struct {
	kind stepKind
	node int
	name string
	at   int64 // of a write; of a truncation the size
	data []byte
}

// A state is what there is: files, and the names that lead to them.
type state struct {
	files map[int][]byte
	names map[string]int
}

var (
	disks  atomic.Int64
	diskOf sync.Map // folder: *disk
)

func init() {
	really := syncFolder
	syncFolder = func(folder string) error {
		d, ok := diskOf.Load(folder)
		if ok && d.(*disk).fails() {
			return fmt.Errorf("sync the folder %s: %w", folder, syscall.EIO)
		}
		err := really(folder)
		if ok && err == nil {
			d.(*disk).record(step{kind: syncNames})
		}
		return err
	}
}

// newDisk begins with what lies in the folder, which is durable.
func newDisk(t testing.TB, folder string) *disk {
	t.Helper()
	d, err := makeDisk(folder)
	require.NoError(t, err)
	t.Cleanup(func() { vfs.Unregister(d.name); diskOf.Delete(folder) })
	return d
}

func makeDisk(folder string) (*disk, error) {
	d := &disk{VFS: vfs.Find("os"), name: fmt.Sprintf("disk%d", disks.Add(1)), folder: folder,
		nodes: map[fileID]int{}, names: map[string]int{},
		start: state{files: map[int][]byte{}, names: map[string]int{}}}
	entries, err := os.ReadDir(folder)
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // it may be made later
		return nil, err
	}
	for _, e := range entries {
		path := filepath.Join(folder, e.Name())
		id, err := identify(path)
		if err != nil {
			return nil, err
		}
		node := len(d.nodes)
		d.nodes[id], d.names[e.Name()], d.start.names[e.Name()] = node, node, node
		if d.start.files[node], err = os.ReadFile(path); err != nil {
			return nil, err
		}
	}
	vfs.Register(d.name, d)
	diskOf.Store(folder, d)
	return d, nil
}

// open is Open by way of the disk.
func (d *disk) open(file string) (*Store, error) {
	src, err := parseDSN(filepath.Join(d.folder, file))
	if err != nil {
		return nil, err
	}
	src.dsn += "&vfs=" + d.name
	src.create += "&vfs=" + d.name
	return openSource(bg, src)
}

func (d *disk) record(s step) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.steps = append(d.steps, s)
}

// fails counts what can fail, and reports whether this one does.
func (d *disk) fails() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.tried++
	if d.tried == d.killAt {
		if self, err := os.FindProcess(os.Getpid()); err == nil {
			_ = self.Kill()
		}
		select {}
	}
	return d.tried == d.failAt
}

// now is how many steps there were.
func (d *disk) now() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.steps)
}

// OpenFilename implements vfs.VFSFilename.
func (d *disk) OpenFilename(name *vfs.Filename, flags vfs.OpenFlag) (vfs.File, vfs.OpenFlag, error) {
	if d.fails() {
		return nil, flags, sqlite3.CANTOPEN
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	file, flags, err := d.VFS.(vfs.VFSFilename).OpenFilename(name, flags)
	if err != nil || name == nil || filepath.Dir(name.String()) != d.folder {
		return file, flags, err
	}
	id, err := identify(name.String())
	if err != nil {
		return nil, flags, err
	}
	base := filepath.Base(name.String())
	node, known := d.nodes[id]
	if !known {
		node = len(d.start.files) + len(d.steps) // is no other's
		d.nodes[id] = node
	}
	if at, ok := d.names[base]; !ok || at != node {
		d.names[base] = node
		d.steps = append(d.steps, step{kind: link, name: base, node: node})
	}
	return &diskFile{file, d, node}, flags, nil
}

// Delete implements vfs.VFS.
func (d *disk) Delete(path string, sync bool) error {
	if d.fails() {
		return vfs.SystemError(syscall.EIO, sqlite3.IOERR_DELETE)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	id, _ := identify(path)
	if err := d.VFS.Delete(path, sync); err != nil {
		return err
	}
	delete(d.nodes, id)
	delete(d.names, filepath.Base(path))
	d.steps = append(d.steps, step{kind: unlink, name: filepath.Base(path)})
	if sync {
		d.steps = append(d.steps, step{kind: syncNames})
	}
	return nil
}

type diskFile struct {
	vfs.File
	disk *disk
	node int
}

func (f *diskFile) Unwrap() vfs.File { return f.File }

func (f *diskFile) SharedMemory() vfs.SharedMemory {
	if shared, ok := f.File.(vfs.FileSharedMemory); ok {
		return shared.SharedMemory()
	}
	return nil
}

func (f *diskFile) WriteAt(p []byte, at int64) (int, error) {
	fails := f.disk.fails()
	if fails {
		p = p[:len(p)/2]
	}
	n, err := f.File.WriteAt(p, at)
	if fails {
		err = vfs.SystemError(syscall.EIO, sqlite3.IOERR_WRITE)
	}
	f.disk.record(step{kind: write, node: f.node, at: at, data: bytes.Clone(p[:n])})
	return n, err
}

func (f *diskFile) Truncate(size int64) error {
	if f.disk.fails() {
		return vfs.SystemError(syscall.EIO, sqlite3.IOERR_TRUNCATE)
	}
	err := f.File.Truncate(size)
	if err == nil {
		f.disk.record(step{kind: truncate, node: f.node, at: size})
	}
	return err
}

func (f *diskFile) Sync(flags vfs.SyncFlag) error {
	if f.disk.fails() {
		return vfs.SystemError(syscall.EIO, sqlite3.IOERR_FSYNC)
	}
	err := f.File.Sync(flags)
	if err == nil {
		f.disk.record(step{kind: syncFile, node: f.node})
	}
	return err
}

// do changes content as a write or a truncation does.
func (s step) do(content []byte) []byte {
	if s.kind == truncate {
		return grown(content, s.at)[:s.at]
	}
	content = grown(content, s.at+int64(len(s.data)))
	copy(content[s.at:], s.data)
	return content
}

func grown(content []byte, size int64) []byte {
	if more := size - int64(len(content)); more > 0 {
		return append(content, make([]byte, more)...)
	}
	return content
}

// sector is what a disk writes whole or not at all.
const sector = 512

// torn is the step with each of its sectors done or not.
func (s step) torn(draw *rand.Rand, content []byte) []byte {
	if s.kind == truncate {
		if draw.IntN(2) == 0 {
			return content
		}
		return s.do(content)
	}
	for from := 0; from < len(s.data); {
		to := min(from+sector-int(s.at+int64(from))%sector, len(s.data))
		if draw.IntN(2) == 0 {
			content = step{at: s.at + int64(from), data: s.data[from:to]}.do(content)
		}
		from = to
	}
	return content
}

// A policy says what a cut leaves of what was not synced.
type policy int

const (
	nothing      policy = iota // neither content nor names
	everything                 // as if only the processes had died
	contentOnly                // no names
	namesOnly                  // no content
	firstDrawing               // each sector and each name by a drawing of its own, from here on
)

func (p policy) String() string {
	switch p {
	case nothing:
		return "nothing"
	case everything:
		return "everything"
	case contentOnly:
		return "content, no names"
	case namesOnly:
		return "names, no content"
	}
	return fmt.Sprintf("drawing %d", int(p-firstDrawing))
}

// A replay goes through the steps, and knows at each what is durable.
type replay struct {
	durable state
	content map[int][]step // that is not durable
	names   []step
	lies    bool // syncs of -wal files do nothing
	forgets bool // syncs of folders do nothing
	wals    map[int]bool
}

func (d *disk) replay() *replay {
	r := &replay{durable: state{map[int][]byte{}, maps.Clone(d.start.names)},
		content: map[int][]step{}, wals: map[int]bool{}}
	for node, content := range d.start.files {
		r.durable.files[node] = bytes.Clone(content)
	}
	return r
}

func (r *replay) step(s step) {
	switch s.kind {
	case write, truncate:
		r.content[s.node] = append(r.content[s.node], s)
	case syncFile:
		if r.lies && r.wals[s.node] {
			return
		}
		for _, s := range r.content[s.node] {
			r.durable.files[s.node] = s.do(r.durable.files[s.node])
		}
		delete(r.content, s.node)
	case link, unlink:
		r.wals[s.node] = r.wals[s.node] || s.kind == link && strings.HasSuffix(s.name, "-wal")
		r.names = append(r.names, s)
	case syncNames:
		if r.forgets {
			return
		}
		for _, s := range r.names {
			s.rename(r.durable.names)
		}
		r.names = nil
	}
}

func (s step) rename(names map[string]int) {
	if s.kind == unlink {
		delete(names, s.name)
	} else {
		names[s.name] = s.node
	}
}

// cut makes the folder as it may be found after a cut. A drawing is the same for the
// same number.
func (r *replay) cut(t testing.TB, p policy, n int, folder string) {
	t.Helper()
	draw := rand.New(rand.NewPCG(uint64(n), uint64(p)))
	names := maps.Clone(r.durable.names)
	stopped := map[string]bool{} // the changes of one name come in their order
	for _, s := range r.names {
		keep := p == everything || p == namesOnly
		if p >= firstDrawing && !stopped[s.name] {
			keep = draw.IntN(2) == 0
			stopped[s.name] = !keep
		}
		if keep {
			s.rename(names)
		}
	}
	for name, node := range names {
		content := bytes.Clone(r.durable.files[node])
		for _, s := range r.content[node] {
			switch {
			case p == everything || p == contentOnly:
				content = s.do(content)
			case p >= firstDrawing:
				content = s.torn(draw, content)
			}
		}
		require.NoError(t, os.WriteFile(filepath.Join(folder, name), content, 0o600))
	}
}
