package ledger

import (
	"fmt"
	"unicode/utf8"
)

// MaxText is how many bytes of a text of the app, such as the error of a run, a
// table keeps.
const MaxText = 16 << 10

// Cut returns a text as it is if it has at most [MaxText] bytes, else its
// beginning, cut between two letters, and a note of how long it was.
func Cut(text string) string {
	if len(text) <= MaxText {
		return text
	}
	note := fmt.Sprintf(" … (cut: it had %d bytes)", len(text))
	end := MaxText - len(note)
	// What is not UTF-8 is cut anywhere.
	for i := 0; i < utf8.UTFMax && !utf8.RuneStart(text[end]); i++ {
		end--
	}
	return text[:end] + note
}
