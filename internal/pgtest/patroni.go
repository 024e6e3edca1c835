//go:build unix

package pgtest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"example.com/schedlock/internal/tempserver"
)

// Patroni is etcd, three PostgreSQL servers under Patroni, and HAProxy, which
// leads to the primary. All of them are stopped at the end of the test.
type Patroni struct {
	t     testing.TB
	nodes []*patroniNode
	proxy int // HAProxy's port
}

type patroniNode struct {
	name      string
	process   *tempserver.Process // of Patroni
	rest, own int                 // ports of Patroni and of PostgreSQL
}

// patroniPatience bounds each step of a cluster: Patroni's own limit is 20 s, and
// a server that comes back may have to be copied.
const patroniPatience = 2 * time.Minute

// StartPatroni starts a cluster. If it is synchronous, a commit waits for one of
// the two standbys, and only that one is promoted.
func StartPatroni(t testing.TB, synchronous bool) *Patroni {
	t.Helper()
	long(t)
	for _, name := range []string{"etcd", "patroni", "haproxy"} {
		if _, err := tempserver.Find(name); err != nil {
			tempserver.Need(t, err)
		}
	}
	bin, err := binaries()
	tempserver.Need(t, err)
	p := &Patroni{t: t}
	ports := freePorts(t, 9)
	p.proxy = ports[2]
	etcd := []string{"--data-dir", "etcd", "--unsafe-no-fsync",
		"--listen-client-urls", address(ports[0]), "--advertise-client-urls", address(ports[0]),
		"--listen-peer-urls", address(ports[1]), "--initial-advertise-peer-urls", address(ports[1]),
		"--initial-cluster", "default=" + address(ports[1])}
	p.serve("etcd", "", ports[0], etcd...)
	var backends strings.Builder
	for i := range 3 {
		n := &patroniNode{name: fmt.Sprint("n", i), rest: ports[3+2*i], own: ports[4+2*i]}
		n.process = logged(t)
		tempserver.Need(t, os.WriteFile(filepath.Join(n.process.Dir, "patroni.yml"),
			n.settings(ports[0], bin, synchronous), 0o644))
		p.nodes = append(p.nodes, n)
		t.Cleanup(func() { p.kill(n, true) })
		p.start(n)
		fmt.Fprintf(&backends, "  server %s 127.0.0.1:%d check port %d\n", n.name, n.own, n.rest)
	}
	p.serve("haproxy", `defaults
  mode tcp
  timeout connect 2s
  timeout check 2s
  timeout client 1h
  timeout server 1h
listen primary
  bind 127.0.0.1:`+strconv.Itoa(p.proxy)+`
  option httpchk OPTIONS /primary
  default-server inter 300ms fall 2 rise 1 on-marked-down shutdown-sessions
`+backends.String(), p.proxy, "-db", "-f", "conf")
	p.AwaitWhole(synchronous)
	return p
}

func address(port int) string { return fmt.Sprint("http://127.0.0.1:", port) }

// settings is Patroni's configuration. JSON is YAML.
func (n *patroniNode) settings(etcd int, bin string, synchronous bool) []byte {
	type m map[string]any
	user := m{"username": "postgres"}
	local := fmt.Sprint("127.0.0.1:", n.own)
	rest := fmt.Sprint("127.0.0.1:", n.rest)
	text, err := json.MarshalIndent(m{
		"scope": "test", "name": n.name,
		"restapi": m{"listen": rest, "connect_address": rest},
		"etcd3":   m{"hosts": fmt.Sprint("127.0.0.1:", etcd)},
		"bootstrap": m{"dcs": m{"ttl": 20, "loop_wait": 1, "retry_timeout": 3,
			"maximum_lag_on_failover": 64 << 20, "primary_start_timeout": 0,
			"synchronous_mode": synchronous, "postgresql": m{"use_pg_rewind": true,
				"parameters": m{"wal_log_hints": "on", "max_connections": 60,
					"shared_buffers": "16MB", "wal_keep_size": "128MB", "fsync": "off"}}},
			"initdb": []m{{"encoding": "UTF8"}}},
		"postgresql": m{"listen": local, "connect_address": local, "bin_dir": bin,
			"data_dir": n.data(), "pgpass": filepath.Join(n.process.Dir, "pgpass"),
			"authentication": m{"superuser": user, "replication": user, "rewind": user},
			"parameters":     m{"unix_socket_directories": n.process.Dir},
			"pg_hba": []string{"local all all trust", "host all all 127.0.0.1/32 trust",
				"host replication all 127.0.0.1/32 trust"}},
	}, "", "  ")
	if err != nil {
		panic(err)
	}
	return text
}

func (n *patroniNode) data() string { return filepath.Join(n.process.Dir, "data") }

// serve starts a program that answers on a port.
func (p *Patroni) serve(name, conf string, port int, args ...string) {
	p.t.Helper()
	made := logged(p.t)
	tempserver.Need(p.t, os.WriteFile(filepath.Join(made.Dir, "conf"), []byte(conf), 0o644))
	path, err := tempserver.Find(name)
	tempserver.Need(p.t, err)
	tempserver.Need(p.t, made.Start(func() bool { return tempserver.Answers(port) }, path,
		args...))
}

func freePorts(t testing.TB, n int) (ports []int) {
	t.Helper()
	var listeners []net.Listener
	for range n {
		tempserver.Need(t, tempserver.OnFreePort(func(port int) error {
			l, err := net.Listen("tcp4", fmt.Sprint("127.0.0.1:", port))
			if err == nil {
				listeners, ports = append(listeners, l), append(ports, port)
			}
			return err
		}))
	}
	for _, l := range listeners {
		_ = l.Close()
	}
	return ports
}

func (p *Patroni) start(n *patroniNode) {
	p.t.Helper()
	path, err := tempserver.Find("patroni")
	tempserver.Need(p.t, err)
	tempserver.Need(p.t, n.process.Start(func() bool { return true }, path, "patroni.yml"))
}

// Server is the primary, whichever it is, through HAProxy: only its URL and Port
// may be asked for.
func (p *Patroni) Server() *Server { return &Server{port: p.proxy} }

// member is what Patroni says of a server.
type member struct{ Name, Role, State string }

// members are what the first Patroni that answers says.
func (p *Patroni) members() (all []member) {
	client := http.Client{Timeout: 2 * time.Second}
	for _, n := range p.nodes {
		answer, err := client.Get(address(n.rest) + "/cluster")
		if err != nil {
			continue
		}
		var cluster struct{ Members []member }
		err = json.NewDecoder(answer.Body).Decode(&cluster)
		_ = answer.Body.Close()
		if err == nil {
			return cluster.Members
		}
	}
	return nil
}

func (p *Patroni) await(what string, ready func() bool) {
	p.t.Helper()
	for deadline := time.Now().Add(patroniPatience); !ready(); time.Sleep(100 * time.Millisecond) {
		if time.Now().After(deadline) {
			p.t.Fatalf("not within %v: %s; Patroni says %+v", patroniPatience, what, p.members())
		}
	}
}

// AwaitWhole waits until two standbys follow the primary, one of them
// synchronously if that is asked for, and HAProxy leads to it.
func (p *Patroni) AwaitWhole(synchronous bool) {
	p.t.Helper()
	p.await("a primary and two standbys", func() bool {
		primaries, standbys, sync := 0, 0, 0
		for _, m := range p.members() {
			switch {
			case m.Role == "leader" && m.State == "running":
				primaries++
			case m.State == "running" || m.State == "streaming":
				standbys++
				if m.Role == "sync_standby" {
					sync++
				}
			}
		}
		return primaries == 1 && standbys == 2 && (sync > 0) == synchronous &&
			p.answers("SELECT pg_is_in_recovery() OR 2 > count(*) FROM pg_stat_replication "+
				"WHERE state = 'streaming'")
	})
}

// AwaitPrimary waits until HAProxy leads to a primary that writes.
func (p *Patroni) AwaitPrimary() {
	p.t.Helper()
	p.await("a primary behind HAProxy", func() bool {
		return p.answers("SELECT pg_is_in_recovery()")
	})
}

// answers reports whether the answer of the server behind HAProxy is no.
func (p *Patroni) answers(query string) bool {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, databaseURL(p.proxy, "postgres"))
	if err != nil {
		return false
	}
	defer conn.Close(ctx)
	yes := true
	err = conn.QueryRow(ctx, query).Scan(&yes)
	return err == nil && !yes
}

// Primary names the primary.
func (p *Patroni) Primary() string {
	for _, m := range p.members() {
		if m.Role == "leader" {
			return m.Name
		}
	}
	return ""
}

// node returns the primary's node.
func (p *Patroni) node() (found *patroniNode) {
	p.t.Helper()
	p.await("a primary", func() bool {
		name := p.Primary()
		for _, n := range p.nodes {
			if n.name == name {
				found = n
			}
		}
		return found != nil
	})
	return found
}

// SwitchOver tells Patroni to make another server the primary, and waits until
// that one serves.
func (p *Patroni) SwitchOver() {
	p.t.Helper()
	old := p.node()
	client := http.Client{Timeout: patroniPatience}
	p.await("a switch-over", func() bool { // it may find no healthy standby at first
		body, err := json.Marshal(map[string]string{"leader": old.name})
		if err != nil {
			return false
		}
		answer, err := client.Post(address(old.rest)+"/switchover", "application/json",
			bytes.NewReader(body))
		if err != nil {
			return false
		}
		_ = answer.Body.Close()
		return answer.StatusCode == http.StatusOK || p.Primary() != old.name
	})
	p.awaitOther(old)
}

// KillPrimary is kill -9 of the primary and all its processes, with Patroni if
// the machine is to be gone. It waits until another one serves, and then starts
// what it has killed.
func (p *Patroni) KillPrimary(machine bool) {
	p.t.Helper()
	old := p.node()
	p.kill(old, machine)
	p.awaitOther(old)
	if machine {
		p.start(old)
	}
}

func (p *Patroni) awaitOther(old *patroniNode) {
	p.t.Helper()
	p.await("another primary than "+old.name, func() bool {
		name := p.Primary()
		return name != "" && name != old.name
	})
	p.AwaitPrimary()
}

// StopSending stops what sends the primary's log to the standbys: what it commits
// from now on is lost if it is killed.
func (p *Patroni) StopSending() {
	p.t.Helper()
	n := p.node()
	for _, pid := range n.processes() {
		line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)) // it may have ended
		if bytes.Contains(line, []byte("walsender")) {
			_ = syscall.Kill(pid, syscall.SIGSTOP)
		}
	}
}

// kill kills the server of a node. Patroni may not start it again meanwhile if it
// is to be gone with it.
func (p *Patroni) kill(n *patroniNode, machine bool) {
	if machine {
		if err := n.process.Stop(syscall.SIGKILL); err != nil {
			p.t.Errorf("kill Patroni: %v", err)
		}
	}
	pids := n.processes()
	if len(pids) == 0 {
		return
	}
	_ = syscall.Kill(pids[0], syscall.SIGSTOP) // it starts no new ones
	for _, pid := range append(n.processes(), pids[0]) {
		_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended
	}
}

// processes are those of the node's server, its postmaster first.
func (n *patroniNode) processes() []int {
	text, err := os.ReadFile(filepath.Join(n.data(), "postmaster.pid"))
	if err != nil {
		return nil
	}
	first, _, _ := strings.Cut(string(text), "\n")
	postmaster, err := strconv.Atoi(first)
	if err != nil {
		return nil
	}
	if line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", postmaster)); err != nil ||
		!bytes.Contains(line, []byte(n.data())) {
		return nil // the number is another process's by now
	}
	pids := []int{postmaster}
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range stats {
		text, err := os.ReadFile(path) // "pid (name) state parent …"
		end := bytes.LastIndexByte(text, ')')
		if err != nil || end < 0 {
			continue // it has ended
		}
		fields := strings.Fields(string(text[end+1:]))
		if len(fields) > 1 && fields[1] == first {
			if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path))); err == nil {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}
