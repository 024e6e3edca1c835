//go:build linux

package main

import (
	"fmt"
	"strings"
	"time"
	"unicode/utf8"
)

// A writer writes Markdown.
type writer struct{ strings.Builder }

func (w *writer) say(format string, args ...any) {
	fmt.Fprintln(w, wrapped(fmt.Sprintf(format, args...), ""))
	fmt.Fprintln(w)
}

// columns is the most that a line of prose has.
const columns = 100

// wrapped breaks a text into lines, and indents all but the first.
func wrapped(text, indent string) string {
	var lines strings.Builder
	width := 0
	for _, word := range strings.Fields(text) {
		n := utf8.RuneCountInString(word)
		switch {
		case width == 0:
		case width+1+n > columns:
			lines.WriteString("\n" + indent)
			width = len(indent)
		default:
			lines.WriteByte(' ')
			width++
		}
		lines.WriteString(word)
		width += n
	}
	return lines.String()
}

// table writes a table; all columns but the first are numbers, aligned right,
// unless words is set.
func (w *writer) table(words bool, head []string, rows [][]string) {
	if len(rows) == 0 {
		w.say("Not measured in this run.")
		return
	}
	align := make([]string, len(head))
	for i := range align {
		if align[i] = "---"; i > 0 && !words {
			align[i] = "---:"
		}
	}
	for _, row := range append([][]string{head, align}, rows...) {
		for len(row) < len(head) {
			row = append(row, "")
		}
		fmt.Fprintln(w, "| "+strings.Join(row, " | ")+" |")
	}
	fmt.Fprintln(w)
}

func (w *writer) histogram(title string, s sample) {
	if len(s) > 0 {
		fmt.Fprintf(w, "%s, %d rounds:\n\n```\n%s```\n\n", title, len(s), s.histogram())
	}
}

// dayOf is how long so many heartbeats take at their default interval.
func dayOf(n int) string {
	d := time.Duration(n) * 10 * time.Second
	return digits(d.Hours()) + " hours"
}

func count(n int, what string) string {
	if n != 1 {
		what += "s"
	}
	return thousands(n) + " " + what
}

// thousands writes 1000000 as 1,000,000.
func thousands(n int) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
