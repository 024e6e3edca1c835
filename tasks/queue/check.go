package queue

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"example.com/schedlock/internal/names"
	"example.com/schedlock/schedlock/driver/taskqueue"
)

func checkName(what, name string) error {
	if name == "" {
		return fmt.Errorf("%s is empty", what)
	}
	return names.Check(what, name)
}

// clean makes a text one that every database can keep: UTF-8 without NUL, and at
// most 1,000 characters; it says if it was cut.
func clean(text string) string {
	had := len(text)
	text = text[:min(had, utf8.UTFMax*(taskqueue.MaxError+1))] // no character beyond is kept
	cut := len(text) < had
	text = strings.ReplaceAll(strings.ToValidUTF8(text, "\uFFFD"), "\x00", "\uFFFD")
	note := fmt.Sprintf(" … (cut: it had %d bytes)", had)
	n, keep := 0, len(text)
	for i := range text {
		if n == taskqueue.MaxError-utf8.RuneCountInString(note) {
			keep = i
		}
		if n++; n > taskqueue.MaxError {
			cut = true
			break
		}
	}
	if cut {
		return text[:keep] + note
	}
	return text
}
