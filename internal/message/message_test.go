package message

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestOneLine(t *testing.T) {
	for text, want := range map[string]string{
		"a":                     "a",
		"a\nb":                  "a; b",
		"tried:\n\thost a\n\tb": "tried: host a; b",
		" \n a \n":              "a",
		"":                      "",
	} {
		assert.Equal(t, want, OneLine(text), "%q", text)
	}
}

func TestWithoutPassword(t *testing.T) {
	for dsn, want := range map[string]string{
		"postgres://u:secret@h:5/d":                       "postgres://u:xxxxx@h:5/d",
		"postgres://u@h/d?password=secret&sslmode=off":    "postgres://u@h/d?password=xxxxx&sslmode=off",
		"postgres://u@h/d?sslpassword=secret&PassWord=s2": "postgres://u@h/d?PassWord=xxxxx&sslpassword=xxxxx",
		"postgres://u:se%cret@h:5/d?password=secret":      "postgres://…@h:5/d",
		"postgres://u:se cret@h:x/d":                      "postgres://…@h:x/d",
		"postgres://se%cret":                              "postgres://…",
		"postgres://h/d":                                  "postgres://h/d",
	} {
		assert.Equal(t, want, WithoutPassword(dsn), "%q", dsn)
	}
}
