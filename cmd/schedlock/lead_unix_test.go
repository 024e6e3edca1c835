//go:build unix

package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	sqlite3driver "github.com/ncruces/go-sqlite3/driver"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/missing"
	"example.com/schedlock/internal/servertest"
)

// A beside is a running schedlock lead.
type beside struct {
	t      testing.TB
	cmd    *exec.Cmd
	addr   string
	client *http.Client
	errOut io.ReadCloser
	said   bytes.Buffer // its standard error, whole once it has ended
	ended  chan struct{}
}

func startLead(t testing.TB, dsn, listen string, args ...string) *beside {
	t.Helper()
	b := &beside{t: t, ended: make(chan struct{})}
	b.cmd = process(t, append([]string{"lead", "--db", dsn, "--listen", listen}, args...)...)
	var err error
	b.errOut, err = b.cmd.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, b.cmd.Start())
	lines := bufio.NewScanner(b.errOut)
	for lines.Scan() {
		b.said.WriteString(lines.Text() + "\n")
		if _, addr, ok := strings.Cut(lines.Text(), "schedlock: lead: answers on "); ok {
			b.addr = addr
			break
		}
	}
	go func() {
		for lines.Scan() {
			b.said.WriteString(lines.Text() + "\n")
		}
		_ = b.cmd.Wait()
		close(b.ended)
	}()
	t.Cleanup(b.kill)
	if b.addr == "" {
		b.kill()
		require.FailNow(t, "it does not answer", b.said.String())
	}
	b.client = &http.Client{Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			network := "tcp"
			if strings.HasPrefix(b.addr, "/") {
				network = "unix"
			}
			return (&net.Dialer{}).DialContext(ctx, network, b.addr)
		}}}
	return b
}

func (b *beside) kill() {
	_ = b.cmd.Process.Kill()
	<-b.ended
}

// tell sends a signal.
func (b *beside) tell(sig syscall.Signal) { require.NoError(b.t, b.cmd.Process.Signal(sig)) }

// told returns the exit code after SIGTERM.
func (b *beside) told() int {
	b.tell(syscall.SIGTERM)
	<-b.ended
	return b.cmd.ProcessState.ExitCode()
}

func (b *beside) ask(method, path string, form url.Values, head ...string) (int, string) {
	req, err := http.NewRequest(method, "http://localhost"+path, strings.NewReader(form.Encode()))
	require.NoError(b.t, err)
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	for i := 0; i < len(head); i += 2 {
		if head[i] == "Host" {
			req.Host = head[i+1]
		}
		req.Header.Set(head[i], head[i+1])
	}
	r, err := b.client.Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer r.Body.Close()
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return 0, err.Error()
	}
	return r.StatusCode, string(body)
}

func (b *beside) get(path string) (int, string) { return b.ask("GET", path, nil) }

// leader is the answer to GET /leader. asked and answered are around it.
func (b *beside) leader() (l leaderJSON, asked, answered time.Time) {
	asked = time.Now()
	status, body := b.get("/leader")
	answered = time.Now()
	if status == 0 {
		return l, asked, answered
	}
	require.NoError(b.t, json.Unmarshal([]byte(body), &l), body)
	require.Equal(b.t, l.Leader, status == http.StatusOK, body)
	require.Equal(b.t, l.Leader, l.ValidForMS > 0, body)
	require.Equal(b.t, l.Leader, l.Term > 0, body)
	return l, asked, answered
}

// awaitLead waits until it leads, and returns the first answer that says so.
func (b *beside) awaitLead() (l leaderJSON) {
	b.t.Helper()
	eventually(b.t, "it leads", func() bool {
		l, _, _ = b.leader()
		return l.Leader
	})
	return l
}

func TestSidecarsTellWhoLeads(t *testing.T) {
	missing.Long(t, "takes seconds")
	inBoth(t, func(t *testing.T, dsn string) {
		// At each change of the leader the other waits until no answer is valid any more.
		a := startLead(t, dsn, "127.0.0.1:0", "--valid-for", "1s")
		first := a.awaitLead()
		require.LessOrEqual(t, first.ValidForMS, int64(1000))
		b := startLead(t, dsn, "127.0.0.1:0", "--valid-for", "1s")
		for _, s := range []*beside{a, b} {
			for _, path := range []string{"/livez", "/readyz"} {
				status, body := s.get(path)
				require.Equal(t, 200, status, body)
			}
			status, body := s.get("/lock")
			require.Equal(t, 200, status)
			var lock struct {
				Held bool
				Lock struct {
					PID  int
					Term int64
				}
				Self struct{ Leader bool }
			}
			require.NoError(t, json.Unmarshal([]byte(body), &lock), body)
			require.True(t, lock.Held)
			require.Equal(t, a.cmd.Process.Pid, lock.Lock.PID)
			require.Equal(t, first.Term, lock.Lock.Term)
			require.Equal(t, s == a, lock.Self.Leader)
			_, body = s.get("/metrics")
			require.Contains(t, body, "\nschedlock_leader "+map[bool]string{true: "1",
				false: "0"}[s == a]+"\n")
		}
		l, _, _ := b.leader()
		require.False(t, l.Leader)
		status, body := b.ask("POST", "/release", nil)
		require.Equal(t, 409, status, body)

		status, body = a.ask("POST", "/release", url.Values{"by": {"ann"}, "reason": {"a deploy"}})
		require.Equal(t, 202, status, body)
		l, _, _ = a.leader()
		require.False(t, l.Leader, "it says so at once")
		second := b.awaitLead()
		require.Greater(t, second.Term, first.Term)
		require.Contains(t, call(t, "history", "-o", "wide", "--db", dsn).out, "ann: a deploy")
		require.Zero(t, b.told())
		third := a.awaitLead()
		require.Greater(t, third.Term, second.Term)
		require.Zero(t, a.told())
		require.Equal(t, exitNothing, call(t, "status", "--db", dsn).code)
	})
}

// Whoever relies on an answer may go on for so long, whatever becomes of the process
// that gave it.
func TestNobodyLeadsWhileAnAnswerOfAnotherIsValid(t *testing.T) {
	t.Parallel()
	missing.Long(t, "takes seconds")
	for name, end := range map[string]func(b *beside, dsn string){
		"killed": func(b *beside, _ string) { b.tell(syscall.SIGKILL) },
		"told":   func(b *beside, _ string) { b.tell(syscall.SIGTERM) },
		"handed over": func(b *beside, _ string) {
			status, body := b.ask("POST", "/release", nil)
			require.Equal(b.t, 202, status, body)
		},
		"row deleted by hand": func(b *beside, dsn string) {
			alter(b.t, dsn, `DELETE FROM scheduler_lock`)
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBoth(t, func(t *testing.T, dsn string) {
				a := startLead(t, dsn, "127.0.0.1:0", "--ttl", "4s", "--valid-for", "2s")
				a.awaitLead()
				b := startLead(t, dsn, "127.0.0.1:0", "--ttl", "4s")
				l, asked, _ := a.leader()
				require.True(t, l.Leader)
				end(a, dsn)
				var answered time.Time
				eventually(t, "there is another term", func() bool {
					for _, s := range []*beside{a, b} { // a only if its row was deleted
						var next leaderJSON
						if next, _, answered = s.leader(); next.Term > l.Term {
							return true
						}
					}
					return false
				})
				require.Greater(t, answered.Sub(asked), time.Duration(l.ValidForMS)*time.Millisecond)
			})
		})
	}
}

// With a database that cannot be written the answers of a leader end together.
func TestNoAnswerIsValidPastTheRenewDeadline(t *testing.T) {
	t.Parallel()
	missing.Long(t, "takes seconds")
	dsn := filepath.Join(folder(t), "app.db")
	a := startLead(t, dsn, "127.0.0.1:0", "--ttl", "4s")
	a.awaitLead()
	db, err := sqlite3driver.Open("file:" + dsn + "?_pragma=busy_timeout(5000)&_txlock=immediate")
	require.NoError(t, err)
	defer db.Close()
	writer, err := db.Begin()
	require.NoError(t, err)
	l, until, answered := leaderJSON{Leader: true}, time.Time{}, time.Time{}
	for begun := time.Now(); l.Leader; time.Sleep(10 * time.Millisecond) {
		require.Less(t, time.Since(begun), patience, "it still leads")
		var asked time.Time
		if l, asked, answered = a.leader(); l.Leader {
			until = asked.Add(time.Duration(l.ValidForMS) * time.Millisecond)
		}
	}
	require.False(t, until.IsZero())
	require.False(t, until.After(answered), "the last answer was to be valid for %v more",
		until.Sub(answered))
	require.NoError(t, writer.Rollback())
	a.awaitLead()
	require.Zero(t, a.told())
}

func TestASidecarThatWasStoppedPastItsTTLSaysSoFirst(t *testing.T) {
	missing.Long(t, "stops a process for its TTL")
	inBoth(t, func(t *testing.T, dsn string) {
		a := startLead(t, dsn, "127.0.0.1:0", "--ttl", "2s")
		a.awaitLead()
		b := startLead(t, dsn, "127.0.0.1:0", "--ttl", "2s")
		var answers sync.WaitGroup
		// Stopped inside a transaction of SQLite it would block all others.
		eventually(t, "another leads", func() bool {
			a.tell(syscall.SIGSTOP)
			for end := time.Now().Add(4 * time.Second); time.Now().Before(end); {
				if l, _, _ := b.leader(); l.Leader {
					return true
				}
				time.Sleep(10 * time.Millisecond)
			}
			a.tell(syscall.SIGCONT)
			return false
		})
		for range 20 {
			answers.Go(func() {
				l, _, _ := a.leader()
				assert.False(t, l.Leader)
			})
		}
		a.tell(syscall.SIGCONT)
		answers.Wait()
	})
}

func TestASidecarAnswersItsOwnHostsAndTakesNoOrdersOfOtherSites(t *testing.T) {
	t.Parallel()
	a := startLead(t, filepath.Join(folder(t), "app.db"), "127.0.0.1:0", "--host", "lead.internal")
	first := a.awaitLead()
	require.LessOrEqual(t, first.ValidForMS, int64(5000), "unless --valid-for says another")
	for _, c := range []struct {
		method, path string
		want         int
		head         []string
	}{
		{"GET", "/leader", 200, []string{"Host", "lead.internal:7070"}},
		{"GET", "/leader", 421, []string{"Host", "evil.example"}},
		{"GET", "/livez", 200, []string{"Host", "evil.example"}},
		{"POST", "/release", 421, []string{"Host", "evil.example"}},
		{"POST", "/release", 403, []string{"Origin", "http://evil.example"}},
		{"POST", "/release", 403, []string{"Sec-Fetch-Site", "cross-site"}},
		{"GET", "/release", 405, nil},
		{"POST", "/leader", 405, nil},
		{"POST", "/livez", 405, nil},
		{"GET", "/", 404, nil},
	} {
		status, body := a.ask(c.method, c.path, nil, c.head...)
		assert.Equal(t, c.want, status, "%v: %s", c, body)
	}
	status, body := a.ask("POST", "/release", url.Values{"by": {strings.Repeat("x", 300)}})
	assert.Equal(t, 400, status, body)
	status, body = a.ask("POST", "/release", url.Values{"by": {"ann"}}, "Content-Type",
		"application/json")
	assert.Equal(t, 400, status, body)
	assert.Contains(t, body, "send by and reason as the fields of a form")
	l, _, _ := a.leader()
	assert.True(t, l.Leader, "none of these has handed over")
	status, body = a.ask("POST", "/release?by=ann&reason=a+deploy", nil)
	assert.Equal(t, 202, status, body)
	assert.Contains(t, body, `"by":"ann","reason":"a deploy"`)
}

func TestASidecarOnASocket(t *testing.T) {
	t.Parallel()
	dir := folder(t)
	dsn, socket := filepath.Join(dir, "app.db"), filepath.Join(dir, "lead.sock")
	a := startLead(t, dsn, "unix:"+socket)
	a.awaitLead()
	info, err := os.Stat(socket)
	require.NoError(t, err)
	require.Equal(t, fs.FileMode(0o600), info.Mode().Perm())
	r := finish(t, process(t, "lead", "--db", dsn, "--listen", "unix:"+socket))
	require.Equal(t, exitUnknown, r.code)
	require.Contains(t, r.err, "another process answers there")
	r = finish(t, process(t, "lead", "--db", dsn, "--listen", "unix:"+dsn))
	require.Equal(t, exitUnknown, r.code)
	require.Contains(t, r.err, "address already in use")
	require.FileExists(t, dsn, "only sockets are replaced")
	a.kill()
	require.FileExists(t, socket)
	b := startLead(t, dsn, "unix:"+socket)
	status, body := b.get("/livez")
	require.Equal(t, 200, status, body)
	require.Zero(t, b.told())
	require.NotContains(t, b.said.String(), "level=WARN", "nothing needs a look")
	require.NoFileExists(t, socket)
}

func TestASidecarOutlivesItsDatabase(t *testing.T) {
	t.Parallel()
	missing.Long(t, "takes seconds")
	dsn := filepath.Join(folder(t), "app.db")
	a := startLead(t, dsn, "127.0.0.1:0", "--ttl", "2s")
	a.awaitLead()
	require.NoError(t, os.Rename(dsn, dsn+".away"))
	eventually(t, "it is not ready", func() bool {
		status, _ := a.get("/readyz")
		return status == http.StatusServiceUnavailable
	})
	eventually(t, "it does not lead", func() bool {
		l, _, _ := a.leader()
		return !l.Leader
	})
	status, body := a.get("/lock")
	require.Equal(t, http.StatusServiceUnavailable, status)
	require.NotContains(t, body, dsn)
	status, body = a.get("/livez")
	require.Equal(t, 200, status, body)
	require.NoError(t, os.Rename(dsn+".away", dsn))
	a.awaitLead()
	require.Zero(t, a.told())
}

// What the store notes for an app is no output of the command: here that a proxy is in between.
func TestTheStoreOfMariaDBIsSilent(t *testing.T) {
	t.Parallel()
	_, through := servertest.Through(t, migratedMaria(t))
	for _, command := range [][]string{{"status"}, {"locks"}, {"pause", "--all"}} {
		r := finish(t, process(t, append(command, "--db", through)...))
		assert.Empty(t, r.err, command)
	}
	a := startLead(t, through, "127.0.0.1:0", "--valid-for", "100ms")
	a.awaitLead()
	require.Zero(t, a.told())
	assert.NotContains(t, a.said.String(), "INFO")
}
