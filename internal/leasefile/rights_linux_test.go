package leasefile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
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
	require.NoError(t, err)
	f := openFor(t, leasefiletest.NewDatabase(t))
	defer func(name string) { filesystem.Local[kind] = name }(filesystem.Local[kind])
	delete(filesystem.Local, kind)
	_, err = Open(dbPath, nil)
	assert.ErrorIs(t, err, errors.ErrUnsupported)
	wantFiles(t, filepath.Dir(dbPath), "app.db")
	_, err = f.id()
	assert.ErrorIs(t, err, errors.ErrUnsupported)
	_, err = f.Hold(tokenAt(0))
	assert.ErrorIs(t, err, errors.ErrUnsupported)
}

func TestTheLeaseFileIsOpenToThoseOnlyWhoMayWriteTheDatabase(t *testing.T) {
	defer syscall.Umask(syscall.Umask(0o077))
	root := os.Geteuid() == 0
	for _, tc := range []struct{ db, lease, want fs.FileMode }{
		{0o640, 0, 0o600}, // who may not write it may not lock it
		{0o666, 0, 0o666},
		{0o644, 0o644, 0o600}, // one of an earlier release is closed
		{0o664, 0o644, 0o660}, // and opened to those who may
		{0o666, 0o600, 0o666},
		{0o640, 0o666, 0o600},
	} {
		path, id := leasefiletest.NewDatabase(t), ""
		if root {
			require.NoError(t, os.Chown(path, 1234, 2345))
		}
		if tc.lease != 0 {
			id = mustID(t, openFor(t, path))
			require.NoError(t, os.Chmod(path+"-lease", tc.lease))
		}
		require.NoError(t, os.Chmod(path, tc.db))
		f := openFor(t, path)
		info, err := os.Stat(path + "-lease")
		require.NoError(t, err)
		assert.Equal(t, tc.want, info.Mode(), "%+v", tc)
		assert.Contains(t, mustID(t, f), id, "it is the same still")
		if st := info.Sys().(*syscall.Stat_t); root {
			assert.Equal(t, [2]uint32{1234, 2345}, [2]uint32{st.Uid, st.Gid}, "%+v", tc)
		}
	}
}

func TestALeaseFileThatHasAnotherNameIsLeftAsItIs(t *testing.T) {
	path := leasefiletest.NewDatabase(t)
	openFor(t, path)
	require.NoError(t, os.Chmod(path+"-lease", 0o644))
	require.NoError(t, os.Link(path+"-lease", path+"-other"))
	openFor(t, path)
	info, err := os.Stat(path + "-other")
	require.NoError(t, err)
	assert.Equal(t, fs.FileMode(0o644), info.Mode(), "it may be anybody's")
}

func TestOthersMayProveNothing(t *testing.T) {
	missing.Root(t)
	for _, tc := range []struct {
		name string
		mode fs.FileMode // of the database and its lease file; 0: there is none
	}{
		{"may write", 0o666},
		{"may read", 0o644},
		{"may not read", 0o600},
		{"folder is read-only", 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dbPath := leasefiletest.NewDatabase(t)
			leasefiletest.LetIn(t, filepath.Dir(dbPath))
			if tc.mode != 0 {
				require.NoError(t, os.Chmod(dbPath, tc.mode))
				openFor(t, dbPath)
			}
			got := child.Start(t, "lease nobody", dbPath).Line()
			if tc.mode == 0o666 {
				assert.Equal(t, "ok", got)
				return
			}
			assert.Regexp(t, "^open: .*"+dbPath+"-lease.*permission denied", got)
			if tc.mode == 0 {
				wantFiles(t, filepath.Dir(dbPath), "app.db")
			}
		})
	}
}
