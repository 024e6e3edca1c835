package leasefile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/child"
	"example.com/schedlock/internal/filesystem"
	"example.com/schedlock/internal/leasefile/leasefiletest"
	"example.com/schedlock/internal/missing"
)

func TestNetworkFileSystemGetsNoLeaseFile(t *testing.T) {
	dbPath := leasefiletest.NewDatabase(t)
	kind, err := filesystem.Type(dbPath)
	if err != nil {
		t.Fatal(err)
	}
	f := openFor(t, leasefiletest.NewDatabase(t))
	defer func(name string) { filesystem.Local[kind] = name }(filesystem.Local[kind])
	delete(filesystem.Local, kind)
	if _, err := Open(dbPath); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("Open: %v, want ErrUnsupported", err)
	}
	wantFiles(t, filepath.Dir(dbPath), "app.db")
	if _, err := f.id(); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("id: %v, want ErrUnsupported", err)
	}
	if _, err := f.Hold(tokenAt(0)); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("hold: %v, want ErrUnsupported", err)
	}
}

func TestLeaseFileIsUsableByTheDatabasesUsers(t *testing.T) {
	old := syscall.Umask(0o077)
	defer syscall.Umask(old)
	for _, mode := range []fs.FileMode{0o600, 0o640, 0o660, 0o666, 0o444} {
		dbPath := leasefiletest.NewDatabase(t)
		if err := os.Chmod(dbPath, mode); err != nil {
			t.Fatal(err)
		}
		if os.Geteuid() == 0 {
			if err := os.Chown(dbPath, 1234, 2345); err != nil {
				t.Fatal(err)
			}
		}
		openFor(t, dbPath)
		info, err := os.Stat(dbPath + "-lease")
		if err != nil {
			t.Fatal(err)
		}
		// Who may not write it may not lock it.
		if want := mode&0o222 | mode&0o222<<1 | 0o600; info.Mode() != want {
			t.Errorf("database %v: the lease file is %v", mode, info.Mode())
		}
		if st := info.Sys().(*syscall.Stat_t); os.Geteuid() == 0 &&
			(st.Uid != 1234 || st.Gid != 2345) {
			t.Errorf("the lease file belongs to %d:%d, not to the database's owner", st.Uid, st.Gid)
		}
	}
}

func TestALeaseFileOfAnEarlierReleaseIsClosedToThoseWhoMayNotWrite(t *testing.T) {
	for _, tc := range []struct{ db, lease, want fs.FileMode }{
		{0o644, 0o644, 0o600},
		{0o664, 0o644, 0o660}, // and opened to those who may
		{0o666, 0o600, 0o666},
		{0o640, 0o666, 0o600},
	} {
		path := leasefiletest.NewDatabase(t)
		openFor(t, path)
		require.NoError(t, os.Chmod(path, tc.db))
		require.NoError(t, os.Chmod(path+"-lease", tc.lease))
		id := mustID(t, openFor(t, path))
		info, err := os.Stat(path + "-lease")
		require.NoError(t, err)
		assert.Equal(t, tc.want, info.Mode(), "database %v, lease file %v", tc.db, tc.lease)
		assert.Equal(t, id, mustID(t, openFor(t, path)), "it is the same still")
	}
}

func TestOthersMayProveNothing(t *testing.T) {
	missing.Root(t)
	for _, tc := range []struct {
		name       string
		mode       fs.FileMode // of the database and its lease file; 0: there is none
		want, deny string
	}{
		{"may write", 0o666, "ok", ""},
		{"may read", 0o644, "open:", "permission denied"},
		{"may not read", 0o600, "open:", "permission denied"},
		{"folder is read-only", 0, "open:", "permission denied"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dbPath := leasefiletest.NewDatabase(t)
			leasefiletest.LetIn(t, filepath.Dir(dbPath))
			if tc.mode != 0 {
				if err := os.Chmod(dbPath, tc.mode); err != nil {
					t.Fatal(err)
				}
				openFor(t, dbPath)
			}
			got := child.Start(t, "lease nobody", dbPath).Line()
			if !strings.HasPrefix(got, tc.want) || !strings.Contains(got, tc.deny) ||
				tc.deny != "" && !strings.Contains(got, dbPath+"-lease") {
				t.Errorf("%q, want %s … %s", got, tc.want, tc.deny)
			}
			if tc.mode == 0 {
				wantFiles(t, filepath.Dir(dbPath), "app.db")
			}
		})
	}
}
