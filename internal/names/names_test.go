package names

import (
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestWhatTheReaderCannotSeeIsNoName(t *testing.T) {
	for _, name := range []string{
		"a\x00b", "a\nb", "a\rb", "a\tb", "\x1b[31m", "a\x7f", "a\u0085b", "a\u009bb", "a\u061cb",
		"a\u200eb", "a\u200fb",
		"a\u202ab", "a\u202bb", "a\u202cb", "a\u202db", "a\u202eb", "a\u2066b", "a\u2067b",
		"a\u2068b", "a\u2069b",
		"a\u2028b", "a\u2029b", "\xff", "a\xc3", "\xed\xa0\x80", "a" + strings.Repeat("b", 100) +
			"\x00",
	} {
		err := Check("the name", name)
		assert.ErrorContains(t, err, "the name "+strconv.Quote(name)[:3])
		assert.ErrorContains(t, err, "is not UTF-8, or contains NUL")
		for _, r := range err.Error() {
			assert.True(t, strconv.IsPrint(r), "%q in %q", r, err)
		}
	}
	for _, name := range []string{"a", "a b", "Ä", "日本🦀", "שלום", "a'\"\\%_{}<&>", "👩‍🚀", "a ",
		strings.Repeat("x", Max)} {
		assert.NoError(t, Check("the name", name), name)
	}
	assert.ErrorContains(t, Check("the name", strings.Repeat("世", 67)),
		"has 201 bytes, 200 are allowed")
	for _, reason := range []string{"", "line 1\nline 2\r\n\tline 3",
		strings.Repeat("x", MaxReason)} {
		assert.NoError(t, CheckReason(reason), reason)
	}
	for _, reason := range []string{"a\x00", "\x1b[31m", "a\u202eb", "\xff",
		strings.Repeat("x", MaxReason+1)} {
		assert.ErrorContains(t, CheckReason(reason), "the reason")
	}
}

func TestOnlyPlainNamesAreAllowedForASchema(t *testing.T) {
	for _, name := range []string{"billing", "user", "_a1", "a", strings.Repeat("a", 48)} {
		require.NoError(t, CheckSchema(name), name)
	}
	for name, rule := range map[string]string{
		"":                           "it is empty",
		strings.Repeat("a", 49):      "it has 49 bytes, 48 are allowed",
		"Billing":                    "only a-z, 0-9 and _ are allowed",
		"bill-ing":                   "only a-z, 0-9 and _ are allowed",
		`x"; DROP SCHEMA public; --`: "only a-z, 0-9 and _ are allowed",
		"a.b":                        "only a-z, 0-9 and _ are allowed",
		"rechnungsübersicht":         "only a-z, 0-9 and _ are allowed",
		"a\x00":                      "only a-z, 0-9 and _ are allowed",
		"1a":                         "it begins with a digit",
		"pg_catalog":                 "PostgreSQL keeps this name for itself",
		"information_schema":         "PostgreSQL keeps this name for itself",
	} {
		err := CheckSchema(name)
		require.ErrorContains(t, err, rule, name)
		if len(name) < 40 && !strings.ContainsAny(name, "\"\x00") {
			require.ErrorContains(t, err, `schema "`+name+`"`)
		}
	}
	require.Equal(t, `"a""b"`, QuoteSchema(`a"b`))
}
