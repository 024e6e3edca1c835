package queue

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

const maxName = 200 // bytes, of the name of a queue and the id of a task

func checkName(what, name string) error {
	switch {
	case name == "":
		return fmt.Errorf("%s is empty", what)
	case len(name) > maxName:
		return fmt.Errorf("%s %.40q… has %d bytes, %d are allowed", what, name, len(name), maxName)
	case !utf8.ValidString(name), strings.ContainsRune(name, 0):
		return fmt.Errorf("%s %.40q is not UTF-8, or contains NUL", what, name)
	}
	return nil
}

// clean makes a text one that every database can keep: UTF-8 without NUL, its
// first 1,000 characters.
func clean(text string) string {
	text = strings.ReplaceAll(strings.ToValidUTF8(text, "\uFFFD"), "\x00", "\uFFFD")
	n := 0
	for i := range text {
		if n++; n > MaxError {
			return text[:i]
		}
	}
	return text
}
