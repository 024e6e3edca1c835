package message

import (
	"strconv"
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

func TestWhatMayHaveAPasswordIsNotShown(t *testing.T) {
	for _, value := range []string{"sixty", "./file", ":70000", "file:x.db", "some words"} {
		assert.Equal(t, strconv.Quote(value), Shown(value))
	}
	for _, value := range []string{"postgres://h", "ann:geheim@h", "password=geheim", "= geheim"} {
		assert.Equal(t, hidden, Shown(value))
		assert.Equal(t, hidden, Argument(value))
	}
	assert.Equal(t, `"stauts"`, Argument("stauts", "--db=x", "app.db", "-n=3", "postgres://h?a=b"))
	assert.Equal(t, hidden, Argument("geheim", "host=h", "password="))
	assert.Equal(t, hidden, Argument("ann:geheim"))
}
