package main

import (
	"context"
	"flag"
	"fmt"
	"strings"

	"example.com/schedlock/internal/build"
)

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
