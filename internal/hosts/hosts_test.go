package hosts

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// request is one for a host, on a connection that has come to an address.
func request(host, local string) *http.Request {
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.Host = host
	if local != "" {
		to, err := net.ResolveTCPAddr("tcp", local)
		if err != nil {
			panic(err)
		}
		r = r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey, net.Addr(to)))
	}
	return r
}

func TestOnlyHostsOfTheListAreAllowed(t *testing.T) {
	l, err := New("app.example", "Other.Example.:443", "192.0.2.7", "[2001:db8::7]:80",
		"2001:db8::8")
	require.NoError(t, err)
	for _, tc := range []struct {
		host, local string
		want        bool
	}{
		{"localhost", "", true},
		{"LOCALHOST.:8080", "", true},
		{"127.0.0.1:8080", "", true},
		{"127.1.2.3", "", true},
		{"[::1]:8080", "", true},
		{"::1", "", true},
		{"[::ffff:127.0.0.1]", "", true},
		{"0.0.0.0:8080", "", true},
		{"app.example", "", true},
		{"App.Example:8080", "", true},
		{"other.example:1", "", true},
		{"192.0.2.7:8080", "", true},
		{"[2001:db8:0::7]", "", true},
		{"[2001:db8::8]:1", "", true},
		{"10.1.2.3:8080", "10.1.2.3:8080", true},
		{"10.1.2.3", "[::ffff:10.1.2.3]:8080", true},
		{"[fe80::1]:8080", "[fe80::1%lo]:8080", true},

		{"10.1.2.4:8080", "10.1.2.3:8080", false},
		{"10.1.2.3", "", false},
		{"evil.example", "127.0.0.1:8080", false},
		{"evil.app.example", "", false},
		{"app.example.evil", "", false},
		{"localhost.evil", "", false},
		{"example", "", false},
		{"127.0.0.1.nip.io", "", false},
		{"2130706433", "", false},
		{"0x7f.1", "", false},
		{"127.1", "", false},
		{"", "", false},
		{":8080", "", false},
		{"*", "", false},
		{"[::1", "", false},
		{"localhost:port", "", false},
		{"localhost\x00", "", false},
		{"localhost/evil", "", false},
		{"user@localhost", "", false},
		{"localhost localhost", "", false},
		{"localhost..", "", false},
		{".localhost", "", false},
		{"löcalhost", "", false},
		{strings.Repeat("a.", 200), "", false},
	} {
		assert.Equal(t, tc.want, l.Allows(request(tc.host, tc.local)), "%q to %q", tc.host,
			tc.local)
	}
	all, err := New("*")
	require.NoError(t, err)
	assert.True(t, all.Allows(request("evil.example", "")))
	assert.False(t, List{}.Allows(request("evil.example", "")))
}

func TestWhatIsNoHostIsNotPutOnTheList(t *testing.T) {
	for _, name := range []string{"", " ", "http://app.example", "app.example/path", "*.example",
		"a b", "app..example", "app:port", "[::1"} {
		_, err := New("fine.example", name)
		assert.ErrorContains(t, err, "is not a host name or an IP address", "%q", name)
	}
}

func TestARefusalIsOneLineOfPlainText(t *testing.T) {
	h := List{}.Handler(http.NotFoundHandler(), "name it in HOSTS")
	for _, host := range []string{"evil.example", "<script>alert(1)</script>", "a\r\nb",
		"\x1b[31m\u202e", strings.Repeat("ü", 10_000)} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, request(host, ""))
		assert.Equal(t, http.StatusMisdirectedRequest, w.Code)
		text := w.Body.String()
		assert.Equal(t, 1, strings.Count(text, "\n"))
		assert.Less(t, len(text), 1000)
		assert.Contains(t, text, "name it in HOSTS")
		assert.Contains(t, w.Header().Get("Content-Type"), "text/plain")
		assert.Equal(t, "nosniff", w.Header().Get("X-Content-Type-Options"))
		for _, r := range text[:len(text)-1] {
			assert.True(t, r >= ' ' && r < 0x7f || r == '…', "%q in %q", r, text)
		}
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, request("localhost", ""))
	assert.Equal(t, http.StatusNotFound, w.Code)
}
