// Package section keeps the sections of docs/benchmarks.md that are written alone: the one
// of internal/bench/peers, and that of MariaDB, while internal/bench/measure writes the others.
package section

import "strings"

// The headings of these sections.
const (
	Peers   = "## Beside the peers\n"
	MariaDB = "## MariaDB\n"
)

// Of returns a section's text, without its heading; "" if the page has none.
func Of(page, heading string) string {
	_, text, found := strings.Cut(page, heading)
	if !found {
		return ""
	}
	text, _, _ = strings.Cut(text, "\n## ")
	return strings.TrimSpace(text) + "\n"
}

// Replace returns the page with another text in a section. A page without one
// gets it at the end.
func Replace(page, heading, text string) string {
	before, after, _ := strings.Cut(page, heading)
	if _, next, found := strings.Cut(after, "\n## "); found {
		after = "\n## " + next
	} else {
		after = ""
	}
	return strings.TrimSpace(before) + "\n\n" + heading + "\n" + strings.TrimSpace(text) + "\n" + after
}
