package app

import (
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// refused runs the program, which must refuse its configuration in one line, in a folder with one
// file.
func refused(t *testing.T, args []string, words ...string) {
	t.Helper()
	var said strings.Builder
	require.Equal(t, exitBadConfig, Main(args, &said))
	require.Equal(t, 1, strings.Count(said.String(), "\n"), said.String())
	for _, w := range words {
		require.Contains(t, said.String(), w)
	}
	require.NotContains(t, said.String(), "secret")
	files, err := os.ReadDir(".")
	require.NoError(t, err)
	require.Len(t, files, 1, "the database is not even created")
}

func TestWrongConfigurationIsRefusedInOneLine(t *testing.T) {
	t.Chdir(t.TempDir())
	require.NoError(t, os.WriteFile("file", nil, 0o600))
	for _, tc := range []struct {
		env   string
		words []string // value and rule
	}{
		{"ADDR=nonsense", []string{`"nonsense"`, "not host:port"}},
		{"ADDR=:70000", []string{`"70000"`, "0 to 65535"}},
		{"DATABASE_URL=mysql://u:sec/ret@h/db", []string{`"mysql://…"`, "%2F"}},
		{"DATABASE_URL=postgres://u:secret@h:port/db", []string{`"postgres://…"`,
			"is not postgres://user:password@host:port/database", "invalid port"}},
		{"DATABASE_URL=postgresql://u:sec/ret#secret@h/db",
			[]string{`"postgresql://…"`, "%XX", "%2F"}},
		{"LOCK_DATABASE_URL=postgres://u:secret@h/db?sslmode=sometimes",
			[]string{`"postgres://…"`, "sslmode"}},
		{"LOCK_DATABASE_URL=postgres://h/db?password=secret&pool_max_conns=few",
			[]string{"pool_max_conns"}},
		{"DATABASE_URL=postgres://u:secret", []string{`"postgres://…"`, "invalid port"}},
		{"DATABASE_URL=host=127.0.0.1 password = secret sslmode = sometimes", nil},
		{"DATABASE_URL=Host=127.0.0.1;Pwd=secret", nil},
		{"DATABASE_URL=app:secret@127.0.0.1/app", nil},
		{"DATABASE_URL=mysql://app:x@secret@127.0.0.1/app", nil},
		{"DATABASE_URL=postgres://app:x@secret@127.0.0.1/app", nil},
		{"DATABASE_URL=file:postgres://app:secret@127.0.0.1/app", nil},
		{"ADDR=postgres://u:secret@h/db", []string{`"…"`, "not host:port"}},
		{"TICK=postgres://u:secret@h/db", []string{"not shown", "not a duration"}},
		{"HOSTS=http://app.example", []string{`"…"`, "write host names"}},
		{"HOSTS=a..b", []string{`"a..b"`, "write host names"}},
		{"DATABASE_URL=:memory:", []string{`":memory:"`, "in memory"}},
		{"DATABASE_URL=file://host/x.db", []string{`"file://host/x.db"`, "has no host"}},
		{"LOCK_DATABASE_URL=redis://u:secret@h/0", []string{"redis://",
			"only file: URIs, postgres:// URLs and mysql:// URLs are supported"}},
		{"MODE=solo", []string{`"solo"`, `neither "standby" nor "strict"`}},
		{"LOCK_TTL=sixty", []string{`"sixty"`, "not a duration such as"}},
		{"LOCK_TTL=60", []string{`"60"`, "not a duration such as"}},
		{"LOCK_TTL=10s", []string{"10s", "not above the heartbeat interval"}},
		{"LOCK_TTL=25h", []string{"25h", "above 24h"}},
		{"LOCK_HEARTBEAT=-1s", []string{"-1s", "below 10ms"}},
		{"LOCK_HEARTBEAT=30s", []string{"30s",
			"renew deadline 45s is below 3 × heartbeat interval"}},
		{"WORKERS=four", []string{`"four"`, "not a whole number"}},
		{"WORKERS=-1", []string{"-1", "below 0"}},
		{"WORKERS=4 & MODE=strict", []string{"4", "more than one worker in strict mode",
			"DEMOAPP_MODE=standby"}},
		{"TICK=1ms", []string{"1ms", "at least 100ms"}},
		{"TICK=1.0000001s", []string{"1.0000001s", "whole number of microseconds"}},
		{"JOB_DURATION=-1s", []string{"-1s", "below 0"}},
		{"TICK_CATCHUP=some", []string{`"some"`,
			`neither "latest" nor "skip" nor a number from 1 to 1000`}},
		{"TICK_CATCHUP=0", []string{`"0"`, "a number from 1 to 1000"}},
		{"TICK_CATCHUP=1001", []string{`"1001"`, "a number from 1 to 1000"}},
		{"TICK_OVERLAP=never", []string{`"never"`, `neither "skip" nor "queue" nor "allow"`}},
		{"TICK_ATTEMPTS=few", []string{`"few"`, "not a whole number"}},
		{"TICK_ATTEMPTS=0", []string{"0", "not a number from 1 to 1000"}},
		{"TICK_ATTEMPTS=1001", []string{"1001", "not a number from 1 to 1000"}},
		{"TICK_ATTEMPTS=2 & TICK_AT_MOST_ONCE=true", []string{"2",
			"DEMOAPP_TICK_AT_MOST_ONCE=true", "never repeated"}},
		{"TICK_AT_MOST_ONCE=maybe", []string{`"maybe"`, "not true or false"}},
		{"TICK_TIMEOUT=-1s", []string{"-1s", "below 0"}},
		{"TICK_TIMEOUT=long", []string{`"long"`, "not a duration such as"}},
		{"TICK_FAIL=-1", []string{"-1", "below 0"}},
		{"CONTROL=perhaps", []string{`"perhaps"`, "not true or false"}},
		{"DRAIN=0s", []string{"0s", "not above 0"}},
		{"BLOCKLISTS=./file", []string{`"./file"`, "not a folder"}},
		{"LOG=xml", []string{`"xml"`, `neither "text" nor "json"`}},
	} {
		t.Run(strings.ReplaceAll(tc.env, "/", "."), func(t *testing.T) {
			for v := range strings.SplitSeq(tc.env, " & ") {
				name, value, _ := strings.Cut(v, "=")
				t.Setenv(envPrefix+name, value)
			}
			name, _, _ := strings.Cut(tc.env, "=")
			refused(t, nil, append(tc.words, envPrefix+name+"=")...)
		})
	}
	refused(t, []string{"--lock-ttl=sixty"}, "-lock-ttl")
	refused(t, []string{"--nonsense"}, "-nonsense")
}

// checked runs the command of a healthcheck.
func checked(addr string) (code int, said string) {
	var out strings.Builder
	code = Main([]string{"healthcheck", "--addr", addr}, &out)
	return code, out.String()
}

func TestAHealthcheckAsksThisMachine(t *testing.T) {
	// Whoever sets a proxy for all containers does not mean this request.
	t.Setenv("HTTP_PROXY", "http://127.0.0.1:9")
	t.Setenv("http_proxy", "http://127.0.0.1:9")
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(http.ResponseWriter, *http.Request) {})
	server := httptest.NewServer(mux)
	defer server.Close()
	_, port, err := net.SplitHostPort(server.Listener.Addr().String())
	require.NoError(t, err)
	for _, host := range []string{"127.0.0.1", "0.0.0.0", "", "localhost"} {
		code, said := checked(net.JoinHostPort(host, port))
		require.Zero(t, code, "%q: %s", host, said)
		require.Empty(t, said)
	}
}

func TestAHealthcheckThatFailsSaysWhy(t *testing.T) {
	t.Parallel()
	sick := httptest.NewServer(http.NotFoundHandler())
	defer sick.Close()
	silent, err := net.Listen("tcp", "127.0.0.1:0") // it accepts, and says nothing
	require.NoError(t, err)
	defer silent.Close()
	for addr, why := range map[string]string{
		"127.0.0.1:1": "connection refused", "no port": variable("addr"),
		sick.Listener.Addr().String(): "404", silent.Addr().String(): "deadline exceeded",
	} {
		code, said := checked(addr)
		require.Equal(t, exitFailed, code, "the engine knows 0 and 1 alone")
		require.Contains(t, said, why)
	}
}
