package main

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock/driver"
)

func TestAFenceIsMadeOfWhatWasCheckedOnly(t *testing.T) {
	t.Parallel()
	token := driver.NewToken().String()
	for _, tc := range []struct{ dsn, inside, token, term, kind, name, says, is string }{
		{term: "7", kind: "lock", name: "n", says: "SCHEDLOCK_TOKEN has no token"},
		{token: token, term: "0", kind: "lock", name: "n",
			says: `SCHEDLOCK_TERM="0" is not a term`},
		{token: token, term: "-7", kind: "lock", name: "n", says: "is not a term"},
		{token: token, term: "7 OR 1", kind: "lock", name: "n", says: "is not a term"},
		{token: token, term: "7", kind: "lock", says: `SCHEDLOCK_NAME="" is not the name`},
		{token: token, term: "7", kind: "lock", name: "it's", is: "UPDATE named_locks SET " +
			"token = token WHERE kind = 'lock' AND name = 'it''s' AND token = '" + token +
			"' AND term = 7"},
		{token: token, term: "7", kind: "scheduler", is: "UPDATE scheduler_lock SET " +
			"beat = beat WHERE id = 1 AND token = '" + token + "' AND term = 7"},
		{dsn: "postgres://h/db", inside: "locks", token: token, term: "7", kind: "scheduler",
			is: `SELECT term FROM "locks".scheduler_lock WHERE id = 1 AND token = '` + token +
				"' AND term = 7 FOR KEY SHARE"},
	} {
		tool := &tool{dsn: tc.dsn, inside: tc.inside, lookup: func(name string) (string, bool) {
			v, ok := map[string]string{variableToken: tc.token, variableTerm: tc.term,
				variableKind: tc.kind, variableName: tc.name}[name]
			return v, ok
		}}
		got, err := tool.fence()
		assert.Equal(t, tc.is, got)
		if tc.says == "" {
			require.NoError(t, err)
		} else {
			require.ErrorContains(t, err, tc.says)
		}
	}
}
