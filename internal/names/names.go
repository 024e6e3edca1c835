// Package names has the one rule for the names that people and programs give:
// those of jobs, locks, queues and tasks, of who asks for something, and reasons.
package names

import (
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Max is how many bytes a name may have.
const Max = 200

// MaxReason is how many bytes a reason may have.
const MaxReason = 1000

// Check returns an error unless name has at most 200 bytes of UTF-8, without
// characters that the reader does not see but that change what is read: control
// characters, separators of lines, and those that set the direction of writing.
// They would break a line of a log, steer a terminal, or let "nimda" be read as
// "admin". what says in the error what it is; that a name is not empty each caller
// checks in words of its own.
func Check(what, name string) error { return check(what, name, Max, hidden) }

// CheckReason is Check for a reason, which may have 1,000 bytes in several lines.
func CheckReason(reason string) error {
	return check("the reason", reason, MaxReason, func(r rune) bool {
		return r != '\n' && r != '\r' && r != '\t' && hidden(r)
	})
}

// CheckOrder returns an error unless by says who gives an order, and reason why. who says in the
// error what by is.
func CheckOrder(who, by, reason string) error {
	var errs []error
	if strings.TrimSpace(by) == "" {
		errs = append(errs, errors.New("it does not say by whom"))
	}
	return errors.Join(append(errs, Check(who, by), CheckReason(reason))...)
}

func check(what, value string, most int, hidden func(rune) bool) error {
	var errs []error
	if len(value) > most {
		errs = append(errs, fmt.Errorf("%s has %d bytes, %d are allowed: %.40q…",
			what, len(value), most, value))
	}
	if !utf8.ValidString(value) || strings.ContainsFunc(value, hidden) {
		errs = append(errs,
			fmt.Errorf("%s %.80q is not UTF-8, or contains NUL, another control character, "+
				"or one that breaks lines or sets the direction of writing", what, value))
	}
	return errors.Join(errs...)
}

func hidden(r rune) bool {
	return unicode.In(r, unicode.Cc, unicode.Zl, unicode.Zp, unicode.Bidi_Control)
}
