// Package message makes the texts of programs fit to be shown: on one line,
// and without what may be a part of a password. Nothing is removed from a text:
// what may be one is not put into it.
package message

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/spf13/pflag"
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

var password = regexp.MustCompile(`(?i)p\w{0,3}[sw]\w*=`)

// FlagError is an error of package pflag, which shows all that was given, with the rule of the
// flag. others are the arguments.
func FlagError(err error, others ...string) string {
	const hidden = "and not shown, as it may have a password"
	var (
		unknown *pflag.NotExistError
		value   *pflag.InvalidValueError
		none    *pflag.ValueRequiredError
	)
	switch {
	case errors.As(err, &unknown):
		name, dashes := unknown.GetSpecifiedName(), "--"
		if short := unknown.GetSpecifiedShortnames(); short != "" {
			name, dashes = short, "-"
		}
		if isShown(name, others) {
			return "there is no flag " + dashes + name
		}
	case errors.As(err, &none):
		return "flag --" + none.GetFlag().Name + " needs a value"
	case errors.As(err, &value):
		f := value.GetFlag()
		if isShown(value.GetValue(), others) {
			return fmt.Sprintf("--%s %q is not %s", f.Name, value.GetValue(), Wanted(f))
		}
		return "the value of --" + f.Name + " is wrong, " + hidden
	}
	return "a flag is written wrongly, " + hidden
}

func isShown(value string, others []string) bool { return Argument(value, others...) != hidden }

// Wanted says what a flag takes.
func Wanted(f *pflag.Flag) string {
	switch f.Value.Type() {
	case "duration":
		return "a duration such as 10s or 1m30s"
	case "int":
		return "a whole number"
	case "bool":
		return "true or false"
	}
	return "valid"
}
