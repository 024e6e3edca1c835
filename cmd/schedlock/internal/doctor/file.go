package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"example.com/schedlock/schedlock/sqlite"
)

// checkPath finds the file, and returns where it lies once links are resolved.
func checkPath(f *findings, dsn string) (resolved string, ok bool) {
	path, err := sqlite.DatabasePath(dsn)
	if err != nil {
		f.name("a SQLite database")
		f.fail("path", strings.ReplaceAll(err.Error(), strconv.Quote(dsn), "of the database"), "give a path, a file: URI or a postgres:// URL")
		return "", false
	}
	if path, err = filepath.Abs(path); err != nil {
		f.fail("path", err.Error(), "run it in a folder that exists, or give an absolute path")
		return "", false
	}
	f.name(path)
	switch _, err := os.Lstat(path); {
	case errors.Is(err, fs.ErrNotExist):
		folder := "its folder " + filepath.Dir(path) + " exists"
		if _, err := os.Stat(filepath.Dir(path)); err != nil {
			folder = "its folder " + filepath.Dir(path) + " does not exist either"
		}
		f.fail("path", "no such file: "+path+"; "+folder,
			"the file is made at the first start of the app; if the app runs, it uses another path: compare its settings and the folder that it runs in")
		return "", false
	case err != nil:
		f.fail("path", err.Error(), "run it as the app's user; each folder of the path needs the right x for it")
		return "", false
	}
	if resolved, err = filepath.EvalSymlinks(path); err != nil {
		f.fail("path", "the symbolic link "+path+" leads nowhere: "+err.Error(), "correct the link, or put the database back")
		return "", false
	}
	info, err := os.Stat(resolved)
	switch {
	case err != nil:
		f.fail("path", err.Error(), "run it as the app's user")
		return "", false
	case info.IsDir():
		f.fail("path", resolved+" is a directory, not a file", "give the path of the database file in it")
		return "", false
	case !info.Mode().IsRegular():
		f.fail("path", fmt.Sprintf("%s is not a regular file but %v", resolved, info.Mode().Type()), "give the path of the database file")
		return "", false
	}
	found := fmt.Sprintf("%s, %s", path, size(info.Size()))
	if resolved != path {
		found = fmt.Sprintf("%s leads to %s, %s", path, resolved, size(info.Size()))
	}
	if n := links(info); n > 1 {
		f.warn("path", fmt.Sprintf("%s; the file has %d names (hard links)", found, n),
			"SQLite makes a -wal file for each name, and replicas that use different names do not see each other: all must use one")
	} else {
		f.ok("path", found)
	}
	return resolved, true
}

// siblings are the files beside the database that belong to it.
var siblings = []string{"-wal", "-shm", "-lease"}

// checkPermissions asks what this user may do; it reports whether the file can
// be read.
func checkPermissions(f *findings, path string) bool {
	if !checksAccess {
		f.note("permissions", "not looked at on this system")
		return true
	}
	who, folder := thisUser(), filepath.Dir(path)
	if root() {
		f.note("permissions", "this program runs as root, which may do everything: run it as the app's user to see what that may do")
	}
	info, err := os.Stat(path)
	if err != nil {
		f.fail("permissions", err.Error(), "run it again")
		return false
	}
	if err := mayRead(path); err != nil {
		f.fail("permissions", fmt.Sprintf("%s (%s) cannot read it: %v", who, describe(info), err), "run it as the app's user; if this is the app's user, change the file's owner or mode")
		return false
	}
	var missing []string
	if mayWrite(path) != nil {
		missing = append(missing, fmt.Sprintf("the file (%s)", describe(info)))
	}
	if mayWriteFolder(folder) != nil {
		missing = append(missing, "the folder "+folder+describeFile(folder))
	}
	for _, suffix := range siblings {
		if _, err := os.Lstat(path + suffix); err == nil && (mayRead(path+suffix) != nil || mayWrite(path+suffix) != nil) {
			missing = append(missing, filepath.Base(path)+suffix+describeFile(path+suffix))
		}
	}
	switch do := "the app's user must be able to write the file, its -wal, -shm and -lease, and the folder in which they are made"; {
	case len(missing) > 0 && owns(info):
		f.fail("permissions", who+", the owner of the file, cannot write "+strings.Join(missing, ", "), do)
	case len(missing) > 0:
		f.warn("permissions", who+" cannot write "+strings.Join(missing, ", "), do+"; run this as that user to be sure")
	default:
		f.ok("permissions", fmt.Sprintf("%s can read and write the file (%s) and its folder%s", who, describe(info), describeFile(folder)))
	}
	// What a shell run by root leaves behind locks the app's own user out.
	for _, suffix := range siblings {
		other, err := os.Lstat(path + suffix)
		if err == nil && !sameOwner(info, other) && !writableByAll(other) {
			f.warn("permissions", fmt.Sprintf("%s (%s) has another owner than the database (%s)", filepath.Base(path)+suffix, describe(other), describe(info)),
				"if the app's user cannot write it, give it to the owner of the database: chown --reference="+path+" "+path+suffix)
		}
	}
	return true
}

func describeFile(path string) string {
	info, err := os.Stat(path)
	if err != nil {
		return ""
	}
	return " (" + describe(info) + ")"
}

// checkLog looks at the size of the -wal file.
func checkLog(f *findings, path string, limits bounds) {
	info, err := os.Stat(path + "-wal")
	if err != nil {
		return
	}
	if info.Size() <= limits.largeWAL {
		f.ok("wal", fmt.Sprintf("the -wal file has %s", size(info.Size())))
		return
	}
	f.warn("wal", fmt.Sprintf("the -wal file has %s, more than %s%s", size(info.Size()), size(limits.largeWAL), users(path)),
		"a reader that never ends keeps it from being copied back: look for a transaction or a result set that is left open in the app, a backup, a forgotten shell; "+
			"end it, then run PRAGMA wal_checkpoint(TRUNCATE)")
}

func size(bytes int64) string {
	const kib = 1 << 10
	switch {
	case bytes < kib:
		return fmt.Sprintf("%d bytes", bytes)
	case bytes < kib*kib:
		return fmt.Sprintf("%.1f KiB", float64(bytes)/kib)
	}
	return fmt.Sprintf("%.1f MiB", float64(bytes)/kib/kib)
}
