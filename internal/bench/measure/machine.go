//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/ncruces/go-sqlite3/driver"

	"example.com/schedlock/internal/bench/page"
)

// moduleRoot returns the folder with go.mod.
func moduleRoot() (string, error) {
	out, err := exec.Command("go", "env", "GOMOD").Output()
	mod := strings.TrimSpace(string(out))
	if err != nil || filepath.Base(mod) != "go.mod" {
		return "", errors.Join(err,
			errors.New("run it inside the module: go run ./internal/bench/measure"))
	}
	return filepath.Dir(mod), nil
}

// facts are what the figures depend on: names and values.
func (m *measurer) facts(ctx context.Context) [][]string {
	list := [][]string{
		{"processor", firstMatch("/proc/cpuinfo", `(?m)^model name\s*:\s*(.*)$`,
			"unknown") + virtual()},
		{"cores", fmt.Sprint(runtime.NumCPU())},
		{"memory", memory()},
		{"kernel", "Linux " + firstMatch("/proc/sys/kernel/osrelease",
			`(.*)`, "of an unknown version")},
		{"file system", fileSystem(m.dir)},
		{"Go", strings.TrimPrefix(runtime.Version(), "go")},
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, dep := range info.Deps {
			for _, name := range []string{"github.com/ncruces/go-sqlite3",
				"github.com/jackc/pgx/v5", "github.com/go-co-op/gocron/v2"} {
				if dep.Path == name {
					list = append(list, []string{"`" + name + "`", dep.Version})
				}
			}
		}
	}
	if db, err := driver.Open(":memory:"); err == nil {
		var version string
		if db.QueryRowContext(ctx, `SELECT sqlite_version()`).Scan(&version) == nil {
			list = append(list, []string{dbSQLite, version})
		}
		db.Close()
	}
	for _, db := range databases {
		if server := m.servers[db]; server != nil && server.version != "" {
			list = append(list, []string{db, server.version})
		}
	}
	return append(list, []string{"commit", m.commit()})
}

// postgresVersion asks a server for it.
func postgresVersion(url string) string {
	conn, err := pgx.Connect(context.Background(), url)
	if err != nil {
		panic(err)
	}
	defer conn.Close(context.Background())
	return conn.PgConn().ParameterStatus("server_version")
}

func firstMatch(path, pattern, otherwise string) string {
	text, _ := os.ReadFile(path)
	if found := regexp.MustCompile(pattern).FindSubmatch(text); found != nil {
		return strings.Join(strings.Fields(string(found[1])), " ")
	}
	return otherwise
}

func virtual() string {
	if firstMatch("/proc/cpuinfo", `\b(hypervisor)\b`, "") != "" {
		return ", in a virtual machine"
	}
	return ""
}

func memory() string {
	kilobytes, err := procField("/proc/meminfo", "MemTotal:")
	if err != nil {
		return "unknown"
	}
	return page.Bytes(float64(kilobytes) * 1024)
}

// fileSystem names the kind of file system that a folder is on.
func fileSystem(dir string) string {
	out, err := exec.Command("findmnt", "-no", "FSTYPE", "-T", dir).Output()
	if err != nil {
		return "unknown"
	}
	name := strings.TrimSpace(string(out))
	if name == "tmpfs" {
		name += ": nothing is written to a disk, so what is flushed costs nothing"
	}
	return name
}

// commit names the commit, and says if the code differs from it.
func (m *measurer) commit() string {
	git := func(args ...string) (string, error) {
		cmd := exec.Command("git", args...)
		cmd.Dir = m.root
		out, err := cmd.Output()
		return strings.TrimSpace(string(out)), err
	}
	hash, err := git("rev-parse", "--short=12", "HEAD")
	if err != nil {
		return "unknown"
	}
	if changed, err := git("status", "--porcelain", "--", "*.go", "go.mod", "*.sql"); err != nil ||
		changed != "" {
		hash += ", with changes that are not committed"
	}
	return hash
}
