package flags

import (
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/assert"
)

func TestAFlagErrorShowsNoMoreThanItMay(t *testing.T) {
	for _, tc := range []struct{ args, want string }{
		{"--nonsense", "there is no flag --nonsense"},
		{"-x", "there is no flag -x"},
		{"-nx", "-n, --limit \"x\" is not a whole number"},
		{"--wait=sixty", `--wait "sixty" is not a duration such as 10s or 1m30s`},
		{"--wait", "flag --wait needs a value"},
		{"-n", "flag -n, --limit needs a value"},
		{"--all=maybe", `--all "maybe" is not true or false`},
		{"--limit=few", `-n, --limit "few" is not a whole number`},
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
		text := Explain(fs.Parse([]string{tc.args}), tc.args)
		assert.Contains(t, text, tc.want)
		assert.NotContains(t, text, "geheim")
	}
}
