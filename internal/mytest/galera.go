package mytest

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"example.com/schedlock/internal/missing"
	"example.com/schedlock/internal/tempserver"
)

// galeraLibrary is where packages of Galera 4 have it.
const galeraLibrary = "/usr/lib/galera/libgalera_smm.so"

// Quick are options with which the others are sure after two seconds that a node is gone.
var Quick = []string{"evs.keepalive_period=PT0.3S", "evs.inactive_check_period=PT0.2S",
	"evs.suspect_timeout=PT2S", "evs.inactive_timeout=PT4S", "evs.install_timeout=PT4S"}

// cluster is the identity of each cluster: no two share a port.
const cluster = "6f6f6f6f-0000-11ee-8000-000000000001"

// Galera returns the nodes of a cluster of the test's own, in synchrony, with options of the
// provider. All begin with the same data, so that none of them needs a state transfer. A node that
// has ended is started again by Rejoin.
func Galera(t testing.TB, nodes int, options ...string) []*Server {
	t.Helper()
	missing.Long(t, "starts MariaDB")
	if _, err := os.Stat(galeraLibrary); err != nil {
		tempserver.Need(t, &tempserver.MissingError{Message: "Galera 4, " + galeraLibrary})
	}
	var (
		all       []*Server
		addresses []string
	)
	for range nodes {
		position := "0"
		if len(all) > 0 {
			position = all[0].status(t, "wsrep_last_committed")
		}
		s := start(t, nil, false, func(s *Server) error {
			return s.join(addresses, position, options)
		})
		all, addresses = append(all, s), append(addresses, s.galeraAddress())
		for _, node := range all {
			node.awaitSynced(t, fmt.Sprint(len(all)))
		}
	}
	t.Cleanup(func() {
		for _, node := range all {
			if t.Failed() {
				t.Log(node.Log())
			}
		}
	})
	return all
}

// awaitSynced waits until the node takes part, with "" in a cluster of any size.
func (s *Server) awaitSynced(t testing.TB, size string) {
	t.Helper()
	for deadline := time.Now().Add(tempserver.Patience); ; time.Sleep(10 * time.Millisecond) {
		if s.status(t, "wsrep_ready") == "ON" &&
			s.status(t, "wsrep_local_state_comment") == "Synced" &&
			(size == "" || s.status(t, "wsrep_cluster_size") == size) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("a node is not ready after %v", tempserver.Patience)
		}
	}
}

// join lets the server, whose port is chosen, begin a cluster or join one at a position.
func (s *Server) join(others []string, position string, options []string) error {
	s.options = append([]string{"gmcast.listen_addr=tcp://" + s.galeraAddress(),
		"gcache.size=16M"}, options...)
	s.gather(others, position)
	if len(others) == 0 {
		s.settings = append(s.settings, "--wsrep-new-cluster")
	}
	return s.process.Run("/bin/sh", "-c", `printf '# GALERA saved state\nversion: 2.1\n`+
		`uuid:    %s\nseqno:   %s\nsafe_to_bootstrap: 1\n' "$1" "$2" > data/grastate.dat`,
		"sh", cluster, position)
}

// gather sets what the node needs to find the others.
func (s *Server) gather(others []string, position string) {
	s.settings = []string{"--binlog-format=ROW", "--innodb-autoinc-lock-mode=2", "--wsrep-on=ON",
		"--wsrep-provider=" + galeraLibrary,
		// By skip a node would take it that it lacks nothing.
		"--wsrep-sst-method=rsync",
		fmt.Sprintf("--wsrep-sst-receive-address=127.0.0.1:%d", s.port-10000+2),
		"--wsrep-cluster-address=gcomm://" + strings.Join(others, ","),
		"--wsrep-node-address=127.0.0.1",
		"--wsrep-start-position=" + cluster + ":" + position,
		"--wsrep-provider-options=" + strings.Join(s.options, ";")}
}

// Rejoin starts a node that has ended, and waits until it has what the others have committed
// meanwhile. They keep it in memory: some 10 MB, of what they have seen since they were started.
func (s *Server) Rejoin(t testing.TB, others ...*Server) {
	t.Helper()
	out, err := s.process.Output(s.program, s.args("--wsrep-recover")...)
	tempserver.Need(t, err)
	found := recovered.FindStringSubmatch(out)
	if found == nil {
		t.Fatalf("the position of the node is not known: %s", out)
	}
	var addresses []string
	for _, o := range others {
		addresses = append(addresses, o.galeraAddress())
	}
	s.gather(addresses, found[1])
	tempserver.Need(t, s.start())
	s.awaitSynced(t, "")
}

var recovered = regexp.MustCompile(`Recovered position: ` + cluster + `:(\d+)`)

// Signal sends the process of the server a signal, such as SIGSTOP.
func (s *Server) Signal(t testing.TB, signal syscall.Signal) {
	t.Helper()
	tempserver.Need(t, s.process.Signal(signal))
}

// galeraAddress is where the nodes talk to each other.
func (s *Server) galeraAddress() string { return fmt.Sprintf("127.0.0.1:%d", s.port-10000) }

func (s *Server) status(t testing.TB, name string) (value string) {
	t.Helper()
	if err := s.admin.QueryRow("SELECT variable_value FROM information_schema.global_status "+
		"WHERE variable_name = ?", name).Scan(&value); err != nil {
		t.Fatalf("status %s: %v", name, err)
	}
	return value
}
