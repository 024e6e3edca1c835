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
	fmt.Fprint(w, "schedlock: "+whatItDoes+".\n\n"+
		"Usage: schedlock [flags] command [flags] [arguments]\n\nCommands:\n")
	for _, c := range commands {
		name := c.name + strings.TrimRight(" "+c.args, " ")
		if len(name) > 18 {
			name += "\n" + strings.Repeat(" ", 20)
		}
		fmt.Fprintf(w, "  %-18s %s\n", name, c.summary)
	}
	fmt.Fprint(w, "\n"+globalHelp+
		"  --version       without a command: what the command version says\n\nExamples:\n"+
		"  schedlock --db /srv/app/app.db status\n"+
		"  "+databaseVariable+"=postgres://app@db/app schedlock history -n 5\n\n"+
		"Exit codes:\n"+exitHelp)
}

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

const globalHelp = `Flags of every command, before or behind it:
  --db DSN        path of a SQLite file, file: URI, postgres:// or mysql:// URL;
                  default: the environment variable ` + databaseVariable + `
  --schema NAME   the app's schema on PostgreSQL (postgres.WithSchema), if any
  -o json|wide    JSON (also: --json); or tables with all columns, uncut
  --local         times of this machine's zone instead of UTC, except in JSON
  --timeout 5s    how long the database may take to answer; migrate: 1m
  --no-color      no colours (also: NO_COLOR)
`

func (t *tool) help(args []string) (int, error) {
	flags := t.flagSet("help")
	if err := t.parse(flags, args); err != nil {
		return t.flagError(nil, flags, args, err)
	}
	switch len(t.args) {
	case 0:
		return t.helpFor(nil)
	case 1:
		if cmd := findCommand(t.args[0]); cmd != nil {
			return t.helpFor(cmd)
		}
		return 0, t.unknown(t.args[0])
	}
	return 0, wrong("help does not take %s", t.shown(t.args[1]))
}

// helpFor is the help for a command, or for all; nil: none.
func (t *tool) helpFor(cmd *command) (int, error) {
	if cmd == nil || cmd.setUp == nil {
		t.usage(t.out)
		return exitDone, nil
	}
	fmt.Fprintf(t.out, "Usage: schedlock %s [flags]%s\n\n%s: %s.\n\n", cmd.name,
		strings.TrimRight(" "+cmd.args, " "), cmd.name, cmd.summary)
	if cmd.help != "" {
		fmt.Fprintln(t.out, cmd.help)
	}
	fmt.Fprintln(t.out, "Flags of every command, and exit codes: schedlock help")
	return exitDone, nil
}

// unknown says that there is no such command, and which one may be meant.
func (t *tool) unknown(name string) error {
	shown, meant := t.shown(name), ""
	if strings.Contains(shown, name) { // else nothing near it is, either
		meant = didYouMean(name, "", convert(commands, func(c command) string { return c.name }))
	}
	return wrong("command %s is unknown%s", shown, meant)
}

// didYouMean is what an error adds about a word that is none of the known ones: the one that
// may be meant, behind a prefix, or "".
func didYouMean(word, prefix string, known []string) string {
	if meant := nearest(word, known); meant != "" {
		return "; did you mean " + prefix + meant + "?"
	}
	return ""
}

// nearest is the known word that a slip may have made the given one of; "": none is near.
func nearest(word string, known []string) (meant string) {
	best := min(3, len(word)) // more than a slip
	for _, k := range known {
		if d := distance(word, k); d < best {
			best, meant = d, k
		}
	}
	return meant
}

// distance is how many letters have to be added, removed or changed to make b of a.
func distance(a, b string) int {
	row := make([]int, len(b)+1) // from what of a was seen, to each beginning of b
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		before := row[0]
		row[0] = i + 1
		for j := range len(b) {
			changed := before
			if a[i] != b[j] {
				changed++
			}
			before = row[j+1]
			row[j+1] = min(changed, before+1, row[j]+1)
		}
	}
	return row[len(b)]
}

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

func man(t *tool, _ *flag.FlagSet) func(context.Context) (int, error) {
	return func(context.Context) (int, error) {
		fmt.Fprint(t.out, manPage())
		return exitDone, nil
	}
}

func manPage() string {
	var b strings.Builder
	text := func(s string) { b.WriteString(roff(strings.TrimRight(s, "\n")) + "\n") }
	asIs := func(s string) {
		b.WriteString(".nf\n")
		text(s)
		b.WriteString(".fi\n")
	}
	fmt.Fprintf(&b, ".TH SCHEDLOCK 1 \"\" %q\n", "schedlock "+build.Version())
	b.WriteString(".SH NAME\nschedlock \\- " + roff(whatItDoes) + "\n.SH SYNOPSIS\n")
	text("schedlock [flags] command [flags] [arguments]")
	b.WriteString(".SH COMMANDS\n")
	for _, c := range commands {
		b.WriteString(".SS " + roff(c.name+strings.TrimRight(" "+c.args, " ")) + "\n")
		text(strings.ToUpper(c.summary[:1]) + c.summary[1:] + ".")
		if c.help != "" {
			b.WriteString(".PP\n")
			asIs(c.help)
		}
	}
	b.WriteString(".SH FLAGS\n")
	asIs(globalHelp)
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
