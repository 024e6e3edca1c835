package message

import (
	"strconv"
	"testing"

	"github.com/spf13/pflag"
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

func TestAFlagErrorShowsNoMoreThanItMay(t *testing.T) {
	for _, tc := range []struct{ args, want string }{
		{"--nonsense", "there is no flag --nonsense"},
		{"-x", "there is no flag -x"},
		{"-nx", "--limit \"x\" is not a whole number"},
		{"--wait=sixty", `--wait "sixty" is not a duration such as 10s or 1m30s`},
		{"--wait", "flag --wait needs a value"},
		{"-n", "flag --limit needs a value"},
		{"--all=maybe", `--all "maybe" is not true or false`},
		{"--limit=few", `--limit "few" is not a whole number`},
		{"--limit=99999999999999999999", "is not a whole number"},
		{"--wait=postgres://u:geheim@h", "the value of --wait is wrong, and not shown"},
		{"--all=postgres://u:geheim@h", "the value of --all is wrong, and not shown"},
		{"--postgres://u:geheim@h", "a flag is written wrongly, and not shown"},
		{"-postgres://u:geheim@h", "a flag is written wrongly, and not shown"},
		{"---geheim=x", "a flag is written wrongly, and not shown"},
	} {
		fs := pflag.NewFlagSet("", pflag.ContinueOnError)
		fs.Duration("wait", 0, "")
		fs.IntP("limit", "n", 0, "")
		fs.Bool("all", false, "")
		text := FlagError(fs.Parse([]string{tc.args}), tc.args)
		assert.Contains(t, text, tc.want)
		assert.NotContains(t, text, "geheim")
	}
}
