package main

import (
	"context"
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"example.com/schedlock/internal/build"
	"example.com/schedlock/migrations"
)

const whatItDoes = "show who holds the scheduler lock of a fleet, and let operators act"

const exitHelp = `         0                     1                          2
status   held                  free                       stale, dead, or no row
release  ended, or accepted    nothing to release
resume   resumed               was not paused
run      asked; --wait: done   failed, skipped, abandoned
locks    listed, or revoked    nobody holds the lock
queue    done                  nothing to requeue
doctor   nothing to do         warnings                   errors
others   done
exec     that of its command, 128+N if signal N has ended it; 75 it did not have
         the lock; 125 exec has failed; 126 the command cannot be started;
         127 there is none
all      4 cannot tell, cannot do it, or not in time; 64 called wrongly, or
         without a --force that is needed: then nothing was done
`

func version(t *tool, _ *pflag.FlagSet) func(context.Context) (int, error) {
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
		t.say(v, "schedlock %s (%s), tables of version %d", v.Version, v.Go, v.SchemaVersion)
		return exitDone, nil
	}
}

type versionJSON struct {
	Version       string `json:"version"`
	Revision      string `json:"revision"` // "": not built from a repository
	Go            string `json:"go"`
	SchemaVersion int64  `json:"schema_version"` // newest tables that this program knows
}

const manHelp = `It prints the manual page, schedlock(1), made from the texts of help.

Examples:
  schedlock man | man -l -
  schedlock man > /usr/local/share/man/man1/schedlock.1
`

func man(t *tool, _ *pflag.FlagSet) action {
	return func(context.Context) (int, error) {
		root := (&tool{}).root() // with nothing of this call
		fmt.Fprint(t.out, manPage(root))
		return exitDone, nil
	}
}

func manPage(root *cobra.Command) string {
	var b strings.Builder
	text := func(s string) { b.WriteString(roff(strings.TrimRight(s, "\n")) + "\n") }
	asIs := func(s string) {
		if s != "" {
			b.WriteString(".PP\n.nf\n")
			text(s)
			b.WriteString(".fi\n")
		}
	}
	fmt.Fprintf(&b, ".TH SCHEDLOCK 1 \"\" %q\n", "schedlock "+build.Version())
	b.WriteString(".SH NAME\nschedlock \\- " + roff(whatItDoes) + "\n.SH SYNOPSIS\n")
	text(root.UseLine())
	b.WriteString(".SH COMMANDS\n")
	var describe func(*cobra.Command)
	describe = func(cmd *cobra.Command) {
		_, use, _ := strings.Cut(cmd.UseLine(), " ")
		b.WriteString(".SS " + roff(use) + "\n")
		text(strings.ToUpper(cmd.Short[:1]) + cmd.Short[1:] + ".")
		asIs(cmd.Long)
		asIs(cmd.LocalFlags().FlagUsagesWrapped(80))
		asIs(cmd.Example)
		for _, part := range cmd.Commands() {
			describe(part)
		}
	}
	for _, cmd := range root.Commands() {
		describe(cmd)
	}
	b.WriteString(".SH FLAGS\n")
	asIs(root.PersistentFlags().FlagUsagesWrapped(80))
	b.WriteString(".SH EXIT STATUS\n")
	asIs(exitHelp)
	b.WriteString(".SH ENVIRONMENT\n.TP\n.B " + databaseVariable + "\n")
	text("The database, if --db is not given.")
	b.WriteString(".TP\n.B NO_COLOR\n")
	text("If it is set, there are no colours.")
	return b.String()
}

// roff is a text as troff takes it: no backslash, no hyphen that it may change, and
// no line that looks like a request.
func roff(text string) string {
	text = strings.NewReplacer(`\`, `\e`, "-", `\-`, "…", `\[u2026]`, "¾", `\[34]`,
		"→", `\[->]`).Replace(text)
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		if strings.HasPrefix(line, ".") || strings.HasPrefix(line, "'") {
			lines[i] = `\&` + line
		}
	}
	return strings.Join(lines, "\n")
}
