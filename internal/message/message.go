// Package message makes the texts of programs fit to be shown: on one line,
// and without passwords.
package message

import (
	"net/url"
	"strings"
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

// WithoutPassword is the URL of a database as it may be shown. Of one that
// cannot be parsed only what follows the last @ is no password for sure.
func WithoutPassword(dsn string) string {
	u, err := url.Parse(dsn)
	if err != nil {
		scheme, rest, _ := strings.Cut(dsn, "://")
		at := strings.LastIndex(rest, "@")
		if at < 0 {
			return scheme + "://…"
		}
		host, _, _ := strings.Cut(rest[at:], "?")
		return scheme + "://…" + host
	}
	query := u.Query()
	for key := range query {
		if strings.Contains(strings.ToLower(key), "password") {
			query.Set(key, "xxxxx")
		}
	}
	u.RawQuery = query.Encode()
	return u.Redacted()
}
