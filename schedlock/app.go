package schedlock

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"sync"

	"example.com/schedlock/internal/names"
	"example.com/schedlock/internal/rules"
	"example.com/schedlock/schedlock/driver"
)

// WithApp names the app that this replica belongs to, so that two apps that share
// a lock by mistake notice it: the jobs of one of them would never run. If both
// were named, and differ, the second one refuses to start: Acquire, Wait and Run
// return an error that wraps driver.ErrPermanent. Else a warning says so.
//
// All replicas of an app have one name, whatever their binaries are called.
// Without WithApp it is the program's, so that a new release of one program is
// never taken for another app. A name has 1 to 200 bytes of UTF-8 without control
// characters.
func WithApp(name string) Option {
	return func(l *Lock) error {
		if name == "" {
			return errors.New("app name is empty")
		}
		l.app.Name = name
		return names.Check("app name", name)
	}
}

// program is what this process runs. The path of the main package tells two apps
// apart whose binaries are both called server, and is the same for one app whose
// binary has another name in the next release.
var program = sync.OnceValue(func() string {
	name := ""
	if info, ok := debug.ReadBuildInfo(); ok && info.Path != "command-line-arguments" {
		name = info.Path
	}
	if name == "" && len(os.Args) > 0 {
		name = strings.TrimSuffix(filepath.Base(os.Args[0]), ".exe")
	}
	name = strings.ToValidUTF8(name, "\uFFFD")
	if names.Check("", name) != nil {
		return ""
	}
	return name
})

// separate is how to keep two apps apart.
const separate = `give each app a lock of its own: ` +
	`postgres.WithSchema("...") on PostgreSQL, another database on MariaDB, another file on SQLite`

// other is the row of another app that leads with our lock, nil if none does.
// What has no fresh heartbeat may be left from an app that is gone: a standby
// takes over from it as from any other.
func (l *Lock) other(v driver.Snapshot, j rules.Judgement) *driver.Row {
	if r := v.Row; r != nil && j.Verdict == rules.Wait && rules.Fresh(v, j.TTL) &&
		l.app.Differs(r.App) {
		return r
	}
	return nil
}

// sayOther warns, once, of another app that leads with our lock.
func (l *Lock) sayOther(r *driver.Row) {
	if r != nil && isNews(l, &l.otherSaid, r.App) {
		l.log.Warn("another app leads with this lock: no job of this one runs",
			"app", l.app.Name, "holder_app", r.App.Name, "holder_pid", r.PID, "holder_host",
			r.Hostname, "holder_term", r.Term, "to_do", separate)
	}
}

// refused is why a campaign ends: two apps that were both named share the lock.
func (l *Lock) refused(r *driver.Row) error {
	if r == nil || !l.app.Named() || !r.App.Named() {
		return nil
	}
	return fmt.Errorf("%w: scheduler lock: %s", driver.ErrPermanent, l.otherWords(r))
}

// CheckApp looks at the lock once, and returns the error with which Wait would
// end because another app leads. It returns nil if none does, or if the lock
// cannot be read: a campaign goes on looking. Package startup asks it, so that an
// app that stands by in the background refuses to start.
func (l *Lock) CheckApp(ctx context.Context) error {
	if !l.app.Named() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, l.opTimeout())
	defer cancel()
	v, err := l.store.Look(ctx)
	if err != nil {
		return nil
	}
	return l.refused(l.other(v, rules.Judge(v, driver.Term{}, l.timing.TTL)))
}

func (l *Lock) otherWords(r *driver.Row) string {
	return fmt.Sprintf("another app, %q, leads with this lock (pid %d on host %q, term %d), "+
		"so no job of this one, %q, runs: %s",
		r.App.Name, r.PID, r.Hostname, r.Term, l.app.Name, separate)
}
