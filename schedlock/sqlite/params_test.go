package sqlite

import (
	"cmp"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ncruces/go-sqlite3/vfs"
	_ "github.com/ncruces/go-sqlite3/vfs/memdb"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/missing"
)

// breaking are parameters of a DSN with which two replicas could lead, or none,
// and what the error names.
var breaking = map[string][]string{
	"nolock=1":                        {"nolock=1", "remove it"},
	"nolock=TRUE":                     {"nolock=TRUE"},
	"nolock=7":                        {"nolock=7"},
	"%6eolock=yes":                    {"nolock=yes"},
	"nolock=0&nolock=1":               {"nolock=1"},
	"nolock%00x=1":                    {"NUL"},
	"immutable=1":                     {"immutable=1", "remove it"},
	"immutable=on":                    {"immutable=on"},
	"vfs=memdb":                       {"in memory"},
	"vfs=other":                       {"vfs=other", "remove it"},
	"vfs=os&vfs=other":                {"vfs=other"},
	"vfs=os&vfs=memdb":                {"in memory"},
	"vfs=adiantum&textkey=hush":       {"vfs=adiantum", "sqlite.Use"},
	"mode=rw&mode=memory":             {"in memory"},
	"_pragma=locking_mode(exclusive)": {"locking_mode(exclusive)", "remove it"},
	"_pragma=Locking_Mode%20%3D%20'EXCLUSIVE'":                {"Locking_Mode = 'EXCLUSIVE'"},
	"_pragma=main.locking_mode=exclusive":                     {"main.locking_mode=exclusive"},
	`_pragma=%22locking_mode%22(%22exclusive%22)`:             {`locking_mode`},
	"_pragma=locking_mode/**/=/**/exclusive":                  {"locking_mode"},
	"_pragma=cache_size(9)%3BPRAGMA%20locking_mode=exclusive": {"locking_mode"},
	"_pragma=journal_mode(delete)": {"journal_mode(delete)", "WAL",
		"remove it"},
	"_pragma=journal_mode=TRUNCATE":       {"journal_mode=TRUNCATE"},
	"_pragma=journal_mode(persist)":       {"journal_mode(persist)"},
	"_pragma=journal_mode(memory)":        {"journal_mode(memory)"},
	"_pragma=%20Journal_Mode%20=%20'off'": {"Journal_Mode"},
	"_pragma=main.journal_mode(off)":      {"main.journal_mode(off)"},
}

func TestADSNThatBreaksThePromiseIsRefusedAtOnce(t *testing.T) {
	t.Parallel()
	existing, dir := newStore(t), t.TempDir()
	for params, wants := range breaking {
		t.Run(params, func(t *testing.T) {
			for name, path := range map[string]string{
				"new": filepath.Join(dir, "app.db"), "in use": existing.Path(),
			} {
				ctx := lasting(t, 20*time.Second)
				s, err := Open(ctx, "file:"+path+"?"+params)
				require.Nil(t, s, name)
				require.NoError(t, ctx.Err(), "it waited: %v", err)
				for _, want := range wants {
					assert.ErrorContains(t, err, want, name)
				}
				assert.ErrorContains(t, err, path)
				assert.NotContains(t, err.Error(), "hush", "a key is no part of an error")
				assert.Equal(t, err, CheckDSN("file:"+path+"?"+params))
				if name == "new" {
					assert.NoFileExists(t, path)
				}
			}
		})
	}
}

func TestAPathThatIsTooLongIsRefused(t *testing.T) {
	folder := t.TempDir()
	for len(folder) < 800 {
		folder = filepath.Join(folder, strings.Repeat("d", 100))
	}
	longest := filepath.Join(folder, strings.Repeat("n", 1000-len(folder)-1))
	s, err := Opener(longest).Open(bg)
	require.NoError(t, err)
	acquire(t, s)
	require.NoError(t, s.Close())
	const says = "its path has 1001 bytes, 1000 are allowed"
	_, err = Opener(longest + "n").Open(bg)
	require.ErrorContains(t, err, says)
	link := filepath.Join(t.TempDir(), "app.db") // what counts is where it leads
	require.NoError(t, os.Symlink(longest+"n", link))
	require.NoError(t, os.WriteFile(longest+"n", nil, 0o600))
	_, err = Opener(link).Open(bg)
	require.ErrorContains(t, err, says)
	require.ErrorContains(t, Read(bg, link, nil), says)
}

func TestADSNThatSaysTheSameInOtherWordsIsAccepted(t *testing.T) {
	missing.Long(t, "makes ten databases")
	t.Parallel()
	for _, params := range []string{
		"nolock=0", "immutable=false", "vfs=os", "cache=shared", "_pragma=journal_mode(WAL)",
		"_pragma=journal_mode%20=%20'wal'", "_pragma=temp.journal_mode(memory)",
		"_pragma=locking_mode(normal)", "_pragma=locking_mode", "_pragma=journal_mode",
	} {
		t.Run(params, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "app.db")
			a := mustOpen(t, "file:"+path+"?"+params)
			require.NoError(t, a.Migrate(bg))
			b := mustOpen(t, "file:"+path+"?"+params)
			ref := acquire(t, a)
			require.Equal(t, ref.Token, look(t, b).Row.Token)
		})
	}
}

func TestUseRefusesAPoolThatBreaksThePromise(t *testing.T) {
	vfs.Register("other", wrappingVFS{vfs.Find("os"), func(f vfs.File) vfs.File {
		return foreignFile{f}
	}})
	defer vfs.Unregister("other")
	for params, want := range map[string]string{
		"nolock=1":                        "nolock=1",
		"immutable=1":                     "immutable=1",
		"vfs=other":                       "VFS",
		"_pragma=locking_mode(exclusive)": "locking_mode",
		"_pragma=locking_mode/**/=exclusive&_pragma=journal_mode(wal)": "locking_mode",
		"_pragma=journal_mode(off)":                                    "journal mode",
		"_pragma=journal_mode(memory)":                                 "journal mode",
	} {
		t.Run(params, func(t *testing.T) {
			path := unused(t)
			if strings.Contains(params, "nolock") || strings.Contains(params, "journal_mode(") {
				// a database in WAL mode cannot be opened like that
				require.NoError(t, os.WriteFile(path, nil, 0o600))
			}
			db := appPool(t, "file:"+path+"?"+params)
			if !strings.Contains(params, "&") { // else the app itself can have no second one
				app, err := db.Conn(bg) // in use already
				require.NoError(t, err)
				defer app.Close()
				_, _ = app.ExecContext(bg, `CREATE TABLE t (x)`)
			}
			ctx := lasting(t, 20*time.Second)
			s, err := openOn(ctx, db)
			require.Nil(t, s)
			require.NoError(t, ctx.Err(), "it waited: %v", err)
			require.ErrorContains(t, err, want)
			assert.ErrorContains(t, err, path)
		})
	}
}

// A wrappingVFS wraps the files of the default one. A foreignFile hides what it wraps;
// a wrappingFile, as those that encrypt, says so.
type (
	wrappingVFS struct {
		vfs.VFS
		wrap func(vfs.File) vfs.File
	}
	foreignFile  struct{ vfs.File }
	wrappingFile struct{ vfs.File }
)

func (v wrappingVFS) OpenFilename(n *vfs.Filename,
	flags vfs.OpenFlag) (vfs.File, vfs.OpenFlag, error) {
	f, flags, err := v.VFS.(vfs.VFSFilename).OpenFilename(n, flags)
	return v.wrap(f), flags, err
}

func (f wrappingFile) Unwrap() vfs.File { return f.File }

func (f wrappingFile) SharedMemory() vfs.SharedMemory {
	return f.File.(vfs.FileSharedMemory).SharedMemory()
}

func TestUseAcceptsWhatKeepsThePromise(t *testing.T) {
	vfs.Register("wrapping", wrappingVFS{vfs.Find("os"), func(f vfs.File) vfs.File {
		return wrappingFile{f}
	}})
	defer vfs.Unregister("wrapping")
	for _, params := range []string{
		"", "_pragma=journal_mode(wal)", "_pragma=journal_mode(delete)", "cache=shared",
		"vfs=wrapping", "vfs=wrapping&_pragma=journal_mode(wal)",
	} {
		// Else the name of its folder would have a #, which ends a path in a URI.
		t.Run(cmp.Or(params, "none"), func(t *testing.T) {
			s := storeOn(t, appPool(t, "file:"+filepath.Join(t.TempDir(), "app.db")+"?"+params))
			require.NoError(t, s.Migrate(bg))
			acquire(t, s)
		})
	}
}
