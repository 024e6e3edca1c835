package names

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

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
