// Package message makes the texts of programs fit to be shown: on one line,
// and without what may be a part of a password. Nothing is removed from a text:
// what may be one is not put into it.
package message

import (
	"fmt"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"
)

// OneLine puts a message of several lines, such as pgx has, into one.
func OneLine(s string) string {
	var b strings.Builder
	for line := range strings.Lines(strings.TrimSpace(s)) {
		switch before := b.String(); {
		case before == "":
		case strings.HasSuffix(before, ":"):
			b.WriteByte(' ')
		default:
			b.WriteString("; ")
		}
		b.WriteString(strings.TrimSpace(line))
	}
	return b.String()
}

// Harmless reports whether a value that was given where it is wrong may be shown:
// it is no part of the address of a database, which may have a password.
func Harmless(value string) bool {
	return !strings.ContainsAny(value, "@=(") && !strings.Contains(value, "://")
}

// Shown is a value in quotes if it is harmless.
func Shown(value string) string {
	if Harmless(value) {
		return fmt.Sprintf("%.80q", value)
	}
	return hidden
}

const hidden = "a value that is not shown, as it may have a password,"

// Argument is Shown for an argument that nobody has asked for, by the rule of IsShown.
func Argument(value string, others ...string) string {
	if !IsShown(value, others...) {
		return hidden
	}
	return fmt.Sprintf("%q", value)
}

// IsShown reports whether an argument that nobody has asked for may be shown. The pairs of an
// address that were not quoted come as arguments of their own, so among them
// nothing is shown: others are what else was given.
func IsShown(value string, others ...string) bool {
	if !isWord(value) {
		return false
	}
	for _, o := range others {
		uri := strings.Contains(o, "://") || strings.HasPrefix(o, "file:")
		if strings.Contains(o, "=") && !strings.HasPrefix(o, "-") &&
			(!uri || password.MatchString(o)) {
			return false
		}
	}
	return true
}

// isWord reports whether a value has at most 40 letters, numbers, and . _ + -.
func isWord(value string) bool {
	return utf8.RuneCountInString(value) <= 40 && !strings.ContainsFunc(value, func(r rune) bool {
		return !unicode.IsLetter(r) && !unicode.IsNumber(r) && !strings.ContainsRune("._+-", r)
	})
}

var password = regexp.MustCompile(`(?i)p\w{0,3}[sw]\w*=`)
