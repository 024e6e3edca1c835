// Package page has what the two programs share that write docs/benchmarks.md: rows of tables,
// prose in lines, and the section that internal/bench/peers writes alone, while
// internal/bench/measure writes the others.
package page

import (
	"strings"
	"unicode/utf8"
)

// Peers is the heading of the last section.
const Peers = "## Beside the peers\n"

// Split returns what is before the last section, and its text; "" if there is none.
func Split(page string) (before, peers string) {
	before, peers, _ = strings.Cut(page, Peers)
	return strings.TrimSpace(before) + "\n", strings.TrimSpace(peers)
}

// Join puts the last section below the others.
func Join(before, peers string) string {
	return strings.TrimSpace(before) + "\n\n" + Peers + "\n" + strings.TrimSpace(peers) + "\n"
}

// Rows are those of a table, below its head. A table without rows says so.
func Rows(rows [][]string) string {
	if len(rows) == 0 {
		return "| not measured in this run |\n"
	}
	var lines strings.Builder
	for _, row := range rows {
		lines.WriteString("| " + strings.Join(row, " | ") + " |\n")
	}
	return lines.String()
}

// Columns is the most that a line of prose has.
const Columns = 100

// Wrap breaks prose into lines, and puts one empty line between paragraphs. Headings and tables
// stay as they are.
func Wrap(text string) string {
	var out strings.Builder
	for paragraph := range strings.SplitSeq(text, "\n\n") {
		paragraph = strings.TrimSpace(paragraph)
		switch {
		case paragraph == "":
			continue
		case strings.HasPrefix(paragraph, "|"), strings.HasPrefix(paragraph, "#"):
			out.WriteString(paragraph + "\n")
		default: // each item of a list on a line of its own
			for i, item := range strings.Split(paragraph, "\n- ") {
				if i > 0 {
					item = "- " + item
				}
				out.WriteString(wrapped(item) + "\n")
			}
		}
		out.WriteByte('\n')
	}
	return strings.TrimSpace(out.String()) + "\n"
}

// wrapped breaks a paragraph, or an item of a list, into lines.
func wrapped(text string) string {
	indent := ""
	if strings.HasPrefix(text, "- ") {
		indent = "  "
	}
	var lines strings.Builder
	width := 0
	for _, word := range strings.Fields(text) {
		n := utf8.RuneCountInString(word)
		switch {
		case width == 0:
		case width+1+n > Columns:
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
