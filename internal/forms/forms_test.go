package forms

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestABodyIsAFormOrRefused(t *testing.T) {
	const part = "--x\r\nContent-Disposition: form-data; name=\"by\"\r\n\r\nann\r\n--x--\r\n"
	for _, tc := range []struct{ kind, body, by, wrong string }{
		{"", "", "", ""},
		{"application/json", "", "", ""},
		{"application/x-www-form-urlencoded", "by=ann", "ann", ""},
		{"Application/X-WWW-Form-URLencoded ;charset=utf-8", "by=ann", "ann", ""},
		{"multipart/form-data; boundary=x", part, "ann", ""},
		{"multipart/form-data; boundary=y", part, "", "form: "},
		{"application/x-www-form-urlencoded", "by=%zz", "", "form: "},
		{"application/json", `{"by":"ann"}`, "", `content type "application/json": send by and`},
		{"", "by=ann", "", `content type "": send by and reason as the fields of a form`},
	} {
		r := httptest.NewRequest(http.MethodPost, "/?reason=why", strings.NewReader(tc.body))
		r.Header.Set("Content-Type", tc.kind)
		err := Parse(r, 1<<10)
		if tc.wrong != "" {
			assert.ErrorContains(t, err, tc.wrong, "%+v", tc)
			continue
		}
		assert.NoError(t, err, "%+v", tc)
		assert.Equal(t, tc.by, r.FormValue("by"), "%+v", tc)
		assert.Equal(t, "why", r.FormValue("reason"))
	}
}

func TestAQueryThatCannotBeReadIsRefused(t *testing.T) {
	for _, raw := range []string{"limit=1;job=tick", "limit=1%zz"} {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.URL.RawQuery = raw
		_, err := Query(r)
		assert.ErrorContains(t, err, "write it as in ?NAME=VALUE, with & between parameters")
		assert.ErrorContains(t, err, raw[:7])
	}
}
