package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"example.com/schedlock/internal/datasource"
	"example.com/schedlock/internal/filesystem"
	"example.com/schedlock/schedlock/sqlite"
)

// checkPath finds the file, and returns where it lies once links are resolved.
func checkPath(f *findings, dsn string) (resolved string, ok bool) {
	no := func(found, do string) (string, bool) {
		f.fail("path", found, do)
		return "", false
	}
	if err := sqlite.CheckDSN(dsn); err != nil {
		f.name("a SQLite database")
		return no(err.Error(), "give a path, a file: URI or a postgres:// URL")
	}
	path, _, err := datasource.SplitFile(dsn)
	if err == nil {
		path, err = filepath.Abs(path)
	}
	if err != nil {
		return no(err.Error(), "run it in a folder that exists, or give an absolute path")
	}
	f.name(path)
	switch _, err := os.Lstat(path); {
	case errors.Is(err, fs.ErrNotExist):
		folder := "its folder " + filepath.Dir(path) + " exists"
		if _, err := os.Stat(filepath.Dir(path)); err != nil {
			folder = "its folder " + filepath.Dir(path) + " does not exist either"
		}
		return no("no such file: "+path+"; "+folder,
			"the file is made at the first start of the app; if the app runs, "+
				"it uses another path: compare its settings and the folder that it runs in")
	case err != nil:
		return no(err.Error(),
			"run it as the app's user; each folder of the path needs the right x for it")
	}
	if resolved, err = filepath.EvalSymlinks(path); err != nil {
		return no("the symbolic link "+path+" leads nowhere: "+err.Error(),
			"correct the link, or put the database back")
	}
	info, err := os.Stat(resolved)
	switch {
	case err != nil:
		return no(err.Error(), "run it as the app's user")
	case info.IsDir():
		return no(resolved+" is a directory, not a file",
			"give the path of the database file in it")
	case !info.Mode().IsRegular():
		return no(resolved+" is not a regular file but "+filesystem.Special(info.Mode()),
			"give the path of the database file")
	}
	found := fmt.Sprintf("%s, %s", path, size(info.Size()))
	if resolved != path {
		found = fmt.Sprintf("%s leads to %s, %s", path, resolved, size(info.Size()))
	}
	if n := links(info); n > 1 {
		f.warn("path", fmt.Sprintf("%s; the file has %d names (hard links)", found, n),
			"SQLite makes a -wal file for each name, and replicas that use different names "+
				"do not see each other, so none starts: remove all names but one "+
				"(find DIR -samefile "+resolved+" shows them)")
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
		f.note("permissions",
			"this program runs as root, which may do everything: "+
				"run it as the app's user to see what that may do")
	}
	info, err := os.Stat(path)
	if err != nil {
		f.fail("permissions", err.Error(), "run it again")
		return false
	}
	if err := mayRead(path); err != nil {
		f.fail("permissions", fmt.Sprintf("%s (%s) cannot read it: %v", who, describe(info), err),
			"run it as the app's user; if this is the app's user, change the file's owner or mode")
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
		if _, err := os.Lstat(path + suffix); err == nil &&
			(mayRead(path+suffix) != nil || mayWrite(path+suffix) != nil) {
			missing = append(missing, filepath.Base(path)+suffix+describeFile(path+suffix))
		}
	}
	do := "the app's user must be able to write the file, its -wal, -shm and -lease, " +
		"and the folder in which they are made"
	switch {
	case len(missing) > 0 && owns(info):
		f.fail("permissions", who+", the owner of the file, cannot write "+
			strings.Join(missing, ", "), do)
	case len(missing) > 0:
		f.warn("permissions", who+" cannot write "+strings.Join(missing, ", "),
			do+"; run this as that user to be sure")
	default:
		f.ok("permissions", fmt.Sprintf("%s can read and write the file (%s) and its folder%s", who,
			describe(info), describeFile(folder)))
	}
	// What a shell run by root leaves behind locks the app's own user out.
	for _, suffix := range siblings {
		other, err := os.Lstat(path + suffix)
		if err == nil && !sameOwner(info, other) && !writableByAll(other) {
			f.warn("permissions", fmt.Sprintf("%s (%s) has another owner than the database (%s)",
				filepath.Base(path)+suffix, describe(other), describe(info)),
				"if the app's user cannot write it, give it to the owner of the database: "+
					"chown --reference="+path+" "+path+suffix)
		}
	}
	return true
}

// checkLockFiles looks at what others lock beside the database: whoever may open
// such a file may lock it too.
func checkLockFiles(f *findings, path string) {
	const check = "lock files"
	db, err := os.Stat(path)
	if err != nil {
		return
	}
	clean := true
	for _, suffix := range []string{"-lease", "-migrate.lock"} {
		info, err := filesystem.CheckRegular(path + suffix)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			continue
		case err != nil && suffix == "-lease": // checkLease says it
		case err != nil:
			f.fail(check, err.Error(), "until it is gone no start can migrate the database")
		case suffix == "-migrate.lock" && info.Size() > 0:
			f.fail(check, path+suffix+" is not empty, so schedlock has not made it",
				"remove it: until it is gone no start can migrate the database")
		case checksAccess && info.Mode().Perm()&^filesystem.Mode(db) != 0:
			f.warn(check,
				fmt.Sprintf("%s (%s) can be opened, and so locked, by users who may not write "+
					"the database (%s)",
					filepath.Base(path)+suffix, describe(info), describe(db)),
				fmt.Sprintf("chmod %o %s", filesystem.Mode(db), path+suffix))
		default:
			continue
		}
		clean = false
	}
	if clean {
		f.ok(check, "only who may write the database can lock what lies beside it")
	}
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
	f.warn("wal", fmt.Sprintf("the -wal file has %s, more than %s%s", size(info.Size()),
		size(limits.largeWAL), users(path)),
		"a reader that never ends keeps it from being copied back: "+
			"look for a transaction or a result set that is left open in the app, a backup, "+
			"a forgotten shell; end it, then run PRAGMA wal_checkpoint(TRUNCATE)")
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
