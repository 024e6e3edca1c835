// Package message makes the texts of programs fit to be shown: on one line,
// and without what may be a part of a password. Nothing is removed from a text:
// what may be one is not put into it.
package message

import (
	"flag"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"
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

// Argument is Shown for an argument that nobody has asked for. The pairs of an
// address that were not quoted come as arguments of their own, so among them
// nothing is shown: others are what else was given.
func Argument(value string, others ...string) string {
	if !isWord(value) {
		return hidden
	}
	for _, o := range others {
		uri := strings.Contains(o, "://") || strings.HasPrefix(o, "file:")
		if strings.Contains(o, "=") && !strings.HasPrefix(o, "-") &&
			(!uri || password.MatchString(o)) {
			return hidden
		}
	}
	return fmt.Sprintf("%q", value)
}

// isWord reports whether a value has at most 40 letters, numbers, and . _ + -.
func isWord(value string) bool {
	return utf8.RuneCountInString(value) <= 40 && !strings.ContainsFunc(value, func(r rune) bool {
		return !unicode.IsLetter(r) && !unicode.IsNumber(r) && !strings.ContainsRune("._+-", r)
	})
}

var (
	password   = regexp.MustCompile(`(?i)p\w{0,3}[sw]\w*=`)
	noSuchFlag = regexp.MustCompile(`^flag provided but not defined: -(.*)$`)
	noArgument = regexp.MustCompile(`^flag needs an argument: -(.*)$`)
	wrongValue = regexp.MustCompile(
		`(?s)^invalid (?:boolean )?value (".*") for (?:flag )?-([a-z-]+): `)
)

// FlagError is an error of package flag, which shows all that was given, with the rule of the
// flag in place of "parse error". others are the arguments.
func FlagError(flags *flag.FlagSet, err error, others ...string) string {
	text := harmless(err, others)
	before, unknown := strings.CutSuffix(text, ": parse error")
	if m := wrongValue.FindStringSubmatch(text); unknown && m != nil {
		return before + ": it is not " + Wanted(flags.Lookup(m[2]))
	}
	return text
}

func harmless(err error, others []string) string {
	text := err.Error()
	if m := noSuchFlag.FindStringSubmatch(text); m != nil && Argument(m[1], others...) != hidden {
		return text
	}
	if m := noArgument.FindStringSubmatch(text); m != nil && Argument(m[1], others...) != hidden {
		return text
	}
	if m := wrongValue.FindStringSubmatch(text); m != nil {
		if value, err := strconv.Unquote(m[1]); err == nil && Argument(value, others...) != hidden {
			return text
		}
		return "the value of -" + m[2] + " is wrong, and not shown, as it may have a password"
	}
	return "a flag is written wrongly, and not shown, as it may have a password"
}

// Wanted says what a flag takes.
func Wanted(f *flag.Flag) string {
	if g, ok := f.Value.(flag.Getter); ok {
		switch g.Get().(type) {
		case time.Duration:
			return "a duration such as 10s or 1m30s"
		case int:
			return "a whole number"
		case bool:
			return "true or false"
		}
	}
	return "valid"
}
