package app

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"
)

func encoded(t *testing.T, v any) string {
	text, err := json.Marshal(v)
	require.NoError(t, err)
	return string(text)
}

func TestAQueryThatWouldBeDroppedIsRefused(t *testing.T) {
	t.Parallel()
	for query, want := range map[string]string{
		"limit=1;job=tick": `query "limit=1;job=tick": invalid semicolon separator in query: ` +
			"write it as in ?NAME=VALUE, with & between parameters",
		"limit=1%zz": `query "limit=1%zz": invalid URL escape "%zz": ` +
			"write it as in ?NAME=VALUE, with & between parameters",
		"limt=1": `parameter "limt" is not known: use limit or job`,
	} {
		w := httptest.NewRecorder()
		new(app).serveRuns(w, httptest.NewRequest(http.MethodGet, "/runs?"+query, nil))
		require.Equal(t, http.StatusBadRequest, w.Code, query)
		require.JSONEq(t, encoded(t, errorJSON{want}), w.Body.String())
	}
	r := httptest.NewRequest(http.MethodGet, "/runs?job=tick&limit=7", nil)
	require.NoError(t, checkQuery(r, []string{"limit", "job"}))
}
