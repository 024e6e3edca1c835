//go:build linux

package main

import (
	"os/exec"
	"path/filepath"
	"time"
)

// pythonLock is a lock of an app in Python, on SQLite: see baseline.py.
func pythonLock(name, design string, renew time.Duration, settings string) contestant {
	return contestant{name: name, here: onSQLite, renew: renew, poll: time.Second,
		settings: settings,
		command: func(env environment, lock string) *exec.Cmd {
			return exec.Command("python3", env.Script, design, filepath.Join(env.Dir, lock+".db"))
		}}
}
