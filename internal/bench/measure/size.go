//go:build linux

package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// A built program, and its size as it is built and with -ldflags "-s -w".
type built struct {
	Name           string
	Size, Stripped int64
}

// The programs whose size is measured. The last two are the same small web app.
var programs = []struct{ name, path string }{
	{"`cmd/demoapp`: SQLite, PostgreSQL, page, metrics", "./cmd/demoapp"},
	{"`cmd/schedlock`, the command", "./cmd/schedlock"},
	{"a minimal web app with this module, on SQLite", "./internal/bench/measure/apps/with"},
	{"the same app with the SQLite driver alone", "./internal/bench/measure/apps/without"},
}

func (m *measurer) sizes(ctx context.Context) error {
	for i, p := range programs {
		b := built{Name: p.name}
		for flags, size := range map[string]*int64{"": &b.Size, "-s -w": &b.Stripped} {
			out := filepath.Join(m.dir, fmt.Sprint("program", i))
			cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags="+flags, "-o",
				out, p.path)
			cmd.Dir = m.root
			cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
			if text, err := cmd.CombinedOutput(); err != nil {
				return fmt.Errorf("go build %s: %w: %s", p.path, err, text)
			}
			info, err := os.Stat(out)
			if err != nil {
				return err
			}
			*size = info.Size()
		}
		m.report.Sizes = append(m.report.Sizes, b)
	}
	return nil
}
