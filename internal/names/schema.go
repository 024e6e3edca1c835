package names

import (
	"fmt"
	"strings"
)

// maxSchema leaves room for what stands before the name in that of a channel: the
// server cuts identifiers at 63 bytes.
const maxSchema = 48

// CheckSchema is the rule for the name of a PostgreSQL schema of our own: it returns an
// error unless name has 1 to 48 of a-z, 0-9 and _, does not
// begin with a digit, and is none of the server's own. It needs no care in a
// shell then, and stands the same in logs, GRANTs and channels.
func CheckSchema(name string) error {
	var rule string
	switch {
	case name == "":
		rule = "it is empty"
	case len(name) > maxSchema:
		rule = fmt.Sprintf("it has %d bytes, %d are allowed", len(name), maxSchema)
	case strings.ContainsFunc(name, odd):
		rule = "only a-z, 0-9 and _ are allowed"
	case name[0] >= '0' && name[0] <= '9':
		rule = "it begins with a digit"
	case strings.HasPrefix(name, "pg_") || name == "information_schema":
		rule = "PostgreSQL keeps this name for itself"
	default:
		return nil
	}
	return fmt.Errorf("schema %.60q: %s", name, rule)
}

func odd(r rune) bool {
	return r != '_' && (r < 'a' || r > 'z') && (r < '0' || r > '9')
}

// QuoteSchema returns the name of a schema as an identifier: user, for example, is a word of SQL.
func QuoteSchema(name string) string { return `"` + strings.ReplaceAll(name, `"`, `""`) + `"` }
