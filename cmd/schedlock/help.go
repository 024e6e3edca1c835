package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"runtime"
	"runtime/debug"
	"strings"

	"example.com/schedlock/internal/build"
	"example.com/schedlock/migrations"
)

func (t *tool) usage(w io.Writer) {
	fmt.Fprint(w, "schedlock shows who holds the scheduler lock, and lets an operator act.\n\n"+
		"Usage: schedlock [flags] command [flags] [arguments]\n\nCommands:\n")
	for _, c := range commands {
		fmt.Fprintf(w, "  %-18s %s\n", c.name+strings.TrimRight(" "+c.args, " "), c.summary)
	}
	fmt.Fprint(w, "\n"+globalHelp+
		"  --version       without a command: what the command version says\n\nExamples:\n"+
		"  schedlock --db /srv/app/app.db status\n"+
		"  "+databaseVariable+"=postgres://app@db/app schedlock history -n 5\n\n"+
		"Exit codes: 0 done, 4 cannot tell, 64 called wrongly; "+
		"those of a command: schedlock help COMMAND\n")
}

const globalHelp = `Flags of every command, before or behind it:
  --db DSN        path of a SQLite file, file: URI, or postgres:// URL (default: ` +
	databaseVariable + `)
  --schema NAME   the app's schema on PostgreSQL, if it has one: postgres.WithSchema
  --json          answer in JSON
  --timeout 5s    how long the database may take to answer; migrate: 1m
  --no-color      no colours (also: NO_COLOR)
`

func (t *tool) help(args []string) (int, error) {
	if len(args) == 0 {
		t.usage(t.out)
		return exitDone, nil
	}
	cmd := findCommand(args[0])
	if cmd == nil {
		t.json = t.json || asksForJSON(args)
		return 0, &usageError{"", fmt.Sprintf("command %s is unknown", t.shown(args[0]))}
	}
	if cmd.setUp == nil {
		t.usage(t.out)
		return exitDone, nil
	}
	fmt.Fprintf(t.out, "Usage: schedlock %s [flags]%s\n\n%s: %s.\n\n%s\n%s",
		cmd.name, strings.TrimRight(" "+cmd.args, " "), cmd.name, cmd.summary, cmd.help, globalHelp)
	return exitDone, nil
}

const versionHelp = `Exit codes: 0 done
`

func version(t *tool, _ *flag.FlagSet) func(context.Context) (int, error) {
	return func(context.Context) (int, error) {
		v := versionJSON{Version: build.Version(), Go: runtime.Version(),
			SchemaVersion: migrations.Latest}
		if info, ok := debug.ReadBuildInfo(); ok {
			for _, s := range info.Settings {
				if s.Key == "vcs.revision" {
					v.Revision = s.Value
				}
			}
		}
		if t.json {
			t.encode(v)
			return exitDone, nil
		}
		fmt.Fprintf(t.out, "schedlock %s (%s), tables of version %d\n", v.Version, v.Go,
			v.SchemaVersion)
		return exitDone, nil
	}
}

type versionJSON struct {
	Version       string `json:"version"`
	Revision      string `json:"revision"` // "": not built from a repository
	Go            string `json:"go"`
	SchemaVersion int64  `json:"schema_version"` // newest tables that this program knows
}
