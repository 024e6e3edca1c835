// Package flags says what is wrong with the flags of a program.
package flags

import (
	"errors"
	"fmt"

	"github.com/spf13/pflag"

	"example.com/schedlock/internal/message"
)

// Explain is an error of package pflag, which shows all that was given, with the rule of the
// flag. others are the arguments.
func Explain(err error, others ...string) string {
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
		if message.IsShown(name, others...) {
			return "there is no flag " + dashes + name
		}
	case errors.As(err, &none):
		return "flag " + spelt(none.GetFlag()) + " needs a value"
	case errors.As(err, &value):
		f := value.GetFlag()
		if message.IsShown(value.GetValue(), others...) {
			return fmt.Sprintf("%s %q is not %s", spelt(f), value.GetValue(), Wanted(f))
		}
		return "the value of " + spelt(f) + " is wrong, " + hidden
	}
	return "a flag is written wrongly, " + hidden
}

// spelt is every name of a flag: package pflag does not tell which of them was given.
func spelt(f *pflag.Flag) string {
	if f.Shorthand != "" {
		return "-" + f.Shorthand + ", --" + f.Name
	}
	return "--" + f.Name
}

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
