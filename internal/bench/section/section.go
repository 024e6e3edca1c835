// Package section keeps the section of docs/benchmarks.md that internal/bench/peers
// writes, while internal/bench/measure writes the others.
package section

import "strings"

// Heading is the one of the section.
const Heading = "## Beside the peers\n"

// Of returns the section's text, without its heading; "" if the page has none.
func Of(page string) string {
	_, text, found := strings.Cut(page, Heading)
	if !found {
		return ""
	}
	text, _, _ = strings.Cut(text, "\n## ")
	return strings.TrimSpace(text) + "\n"
}

// Replace returns the page with another text in the section. A page without one
// gets it at the end.
func Replace(page, text string) string {
	before, after, _ := strings.Cut(page, Heading)
	if _, next, found := strings.Cut(after, "\n## "); found {
		after = "\n## " + next
	} else {
		after = ""
	}
	return strings.TrimSpace(before) + "\n\n" + Heading + "\n" + strings.TrimSpace(text) + "\n" + after
}
