//go:build linux

package main

import (
	"context"
	"errors"
	"os/exec"
	"path/filepath"
	"time"
)

// python is a lock of an app in Python, on SQLite: see baseline.py.
type python struct {
	noSetup
	design string
}

func (c *python) about() about {
	a := about{name: "BanGUI's lock, Python", here: onSQLite,
		renew: 10 * time.Second, poll: time.Second,
		settings: "one row, TTL 60 s, heartbeat 10 s; whoever loses tries again after a second"}
	if c.design == "sayt2" {
		a.name, a.renew = "sayt2's lock, Python", 0
		a.settings = "one row a lock, expires after 60 s, no heartbeat; tried again every second"
	}
	return a
}

func (c *python) open(context.Context, environment, string, string) (replica, error) {
	return nil, errors.New("a program in Python")
}

func (c *python) command(env environment, lock, _ string) *exec.Cmd {
	return exec.Command("python3", env.Script, c.design, filepath.Join(env.Dir, lock+".db"))
}
