//go:build unix

package migrations_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/missing"
	"example.com/schedlock/migrations"
)

// Two users without rights of their own.
const stranger, appUser, appGroup = 65534, 1234, 2345

// letIn opens the test's own folders to others, and gives the last to the app.
func letIn(t *testing.T, dir string) {
	t.Helper()
	require.NoError(t, os.Chown(dir, appUser, appGroup))
	for _, d := range []string{dir, filepath.Dir(dir)} {
		require.NoError(t, os.Chmod(d, 0o755))
	}
}

// emptyFor is an empty database file of the app's user.
func emptyFor(t *testing.T, mode os.FileMode) string {
	t.Helper()
	missing.Root(t)
	path := newPath(t)
	letIn(t, filepath.Dir(path))
	require.NoError(t, os.WriteFile(path, nil, 0o600))
	require.NoError(t, os.Chmod(path, mode))
	require.NoError(t, os.Chown(path, appUser, appGroup))
	return path
}

func lockFile(t *testing.T, path string) (mode os.FileMode, uid, gid uint32) {
	t.Helper()
	info, err := os.Lstat(path + "-migrate.lock")
	require.NoError(t, err)
	st := info.Sys().(*syscall.Stat_t)
	return info.Mode(), st.Uid, st.Gid
}

func init() {
	roles["lock as a stranger"] = func(path string) error { return lockAs(stranger, path) }
	roles["up as the app"] = func(dsn string) error {
		if err := become(appUser); err != nil {
			return err
		}
		return replica("up", dsn)
	}
	roles["lock as the app"] = func(path string) error { return lockAs(appUser, path) }
}

func become(uid int) error {
	return errors.Join(syscall.Setgroups(nil), syscall.Setgid(uid), syscall.Setuid(uid))
}

// lockAs takes the migration lock as a user who opens the file for reading only,
// if he may, and keeps it until its standard input ends.
func lockAs(uid int, path string) error {
	if err := become(uid); err != nil {
		return err
	}
	fd, err := syscall.Open(path, syscall.O_RDONLY, 0)
	if err == nil {
		err = syscall.Flock(fd, syscall.LOCK_EX|syscall.LOCK_NB)
	}
	fmt.Println("locked:", err)
	_, _ = io.Copy(io.Discard, os.Stdin)
	return nil
}

func TestWhoMayOnlyReadCannotKeepOthersFromMigrating(t *testing.T) {
	path := emptyFor(t, 0o644)
	require.NoError(t, migrations.Up(t.Context(), open(t, ours(path)), migrations.SQLite))
	reader := newReplica(t, "lock as a stranger", path+"-migrate.lock")
	assert.Contains(t, reader.line(t), "permission denied")

	// there is something to do
	exec1(t, open(t, ours(path)), `DROP TABLE scheduler_lock_schema`)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	err := migrations.Up(ctx, open(t, ours(path)), migrations.SQLite)
	assert.ErrorContains(t, err, "edited by hand", "it got as far as that")
	require.NoError(t, reader.start.Close())
}

func TestTheLockFileBelongsToTheDatabasesUserAlsoIfRootWasFirst(t *testing.T) {
	for mode, want := range map[os.FileMode]os.FileMode{0o600: 0o600, 0o644: 0o600, 0o660: 0o660,
		0o666: 0o666} {
		t.Run(mode.String(), func(t *testing.T) {
			path := emptyFor(t, mode)
			db, err := sql.Open("sqlite3", ours(path))
			require.NoError(t, err)
			require.NoError(t, migrations.Up(t.Context(), db, migrations.SQLite))
			exec1(t, db, `DROP TABLE scheduler_lock_schema`)
			require.NoError(t, db.Close()) // and with it root's -wal
			got, uid, gid := lockFile(t, path)
			assert.Equal(t, want, got)
			assert.Equal(t, []uint32{appUser, appGroup}, []uint32{uid, gid})
			app := newReplica(t, "lock as the app", path+"-migrate.lock")
			assert.Equal(t, "locked: <nil>", app.line(t))
			require.NoError(t, app.start.Close())
		})
	}
}

func TestALockFileThatIsSomebodyElsesIsNamed(t *testing.T) {
	path := emptyFor(t, 0o600)
	require.NoError(t, os.WriteFile(path+"-migrate.lock", nil, 0o600)) // root's
	app := newReplica(t, "up as the app", ours(path))
	require.Equal(t, "ready", app.line(t))
	require.NoError(t, app.start.Close())
	require.Error(t, app.cmd.Wait())
	assert.Contains(t, app.stderr.String(), path+
		"-migrate.lock: permission denied: give it to the owner of the database")

	// It may be anybody's by the time that root looks, so root does not give it away.
	require.NoError(t, migrations.Up(t.Context(), open(t, ours(path)), migrations.SQLite))
	_, uid, _ := lockFile(t, path)
	assert.EqualValues(t, os.Geteuid(), uid)
}

// What else may lie there: see CheckRegular of package filesystem.
func TestAnOddFileInTheWayOfTheLockFile(t *testing.T) {
	for wants, put := range map[string]func(path string) error{
		"is a symbolic link, which is not followed": func(path string) error {
			return os.Symlink("other", path)
		},
		"is a named pipe, which is not waited for": func(path string) error {
			return syscall.Mkfifo(path, 0o666)
		},
		"is not empty": func(path string) error { return os.WriteFile(path, []byte("x"), 0o644) },
	} {
		t.Run(wants, func(t *testing.T) {
			path := newPath(t)
			require.NoError(t, put(path+"-migrate.lock"))
			before, err := os.Lstat(path + "-migrate.lock")
			require.NoError(t, err)
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			done := make(chan error, 1)
			go func() { done <- migrations.Up(ctx, open(t, ours(path)), migrations.SQLite) }()
			select {
			case err = <-done:
			case <-time.After(40 * time.Second):
				t.Fatal("it waits for what is not a file")
			}
			require.NoError(t, ctx.Err(), "it waited")
			require.ErrorContains(t, err, path+"-migrate.lock "+wants)
			assert.ErrorContains(t, err, "remove it")
			after, err := os.Lstat(path + "-migrate.lock")
			require.NoError(t, err)
			assert.True(t, os.SameFile(before, after))
			assert.Equal(t, before.Mode(), after.Mode())
			assert.NoFileExists(t, filepath.Join(filepath.Dir(path), "other"))

			require.NoError(t, os.Remove(path+"-migrate.lock"))
			require.NoError(t, migrations.Up(t.Context(), open(t, ours(path)), migrations.SQLite))
		})
	}
}
