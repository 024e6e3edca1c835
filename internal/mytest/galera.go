package mytest

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"example.com/schedlock/internal/missing"
	"example.com/schedlock/internal/tempserver"
)

// galeraLibrary is where packages of Galera 4 have it.
const galeraLibrary = "/usr/lib/galera/libgalera_smm.so"

// cluster is the identity of each cluster: no two share a port.
const cluster = "6f6f6f6f-0000-11ee-8000-000000000001"

// Galera returns the nodes of a cluster of the test's own, in synchrony. All begin with the same
// data, so that none of them needs a state transfer. Only [Server.Restart] may start a node again.
func Galera(t testing.TB, nodes int) []*Server {
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
		s, err := createIn(nil, false, func(s *Server) error { return s.join(addresses, position) })
		tempserver.Need(t, err)
		t.Cleanup(s.remove)
		all, addresses = append(all, s), append(addresses, s.galeraAddress())
		inSynchrony(t, all)
	}
	return all
}

// inSynchrony waits until nodes are all of a cluster, and none of them has missed anything.
func inSynchrony(t testing.TB, nodes []*Server) {
	t.Helper()
	for i, s := range nodes {
		for deadline := time.Now().Add(tempserver.Patience); ; time.Sleep(10 * time.Millisecond) {
			if s.status(t, "wsrep_ready") == "ON" &&
				s.status(t, "wsrep_local_state_comment") == "Synced" &&
				s.status(t, "wsrep_cluster_size") == fmt.Sprint(len(nodes)) {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("node %d is not ready after %v", i+1, tempserver.Patience)
			}
		}
	}
}

// join lets the server, whose port is chosen, begin a cluster or join one at a position.
func (s *Server) join(others []string, position string) error {
	s.settings = []string{"--binlog-format=ROW", "--innodb-autoinc-lock-mode=2", "--wsrep-on=ON",
		"--wsrep-provider=" + galeraLibrary, "--wsrep-sst-method=skip",
		"--wsrep-cluster-address=gcomm://" + strings.Join(others, ","),
		"--wsrep-node-address=127.0.0.1",
		"--wsrep-start-position=" + cluster + ":" + position,
		"--wsrep-provider-options=gmcast.listen_addr=tcp://" + s.galeraAddress() +
			fmt.Sprintf(";gcache.size=16M;ist.recv_addr=tcp://127.0.0.1:%d", s.port-9500)}
	if len(others) == 0 {
		s.settings = append(s.settings, "--wsrep-new-cluster")
	}
	return s.process.Run("/bin/sh", "-c", `printf '# GALERA saved state\nversion: 2.1\n`+
		`uuid:    %s\nseqno:   %s\nsafe_to_bootstrap: 1\n' "$1" "$2" > data/grastate.dat`,
		"sh", cluster, position)
}

// Restart ends a node in order, calls away, and lets the node join the others again. It
// gets what it has missed from one of them.
func (s *Server) Restart(t testing.TB, others []*Server, away func()) {
	t.Helper()
	tempserver.Need(t, s.process.Stop(syscall.SIGTERM))
	away()
	var addresses []string
	for _, other := range others {
		addresses = append(addresses, other.galeraAddress())
	}
	kept := slices.DeleteFunc(s.settings, func(setting string) bool {
		return setting == "--wsrep-new-cluster" ||
			strings.HasPrefix(setting, "--wsrep-start-position=")
	})
	s.settings = append(kept, "--wsrep-sst-method=rsync",
		"--wsrep-cluster-address=gcomm://"+strings.Join(addresses, ","),
		fmt.Sprintf("--wsrep-sst-receive-address=127.0.0.1:%d", s.port-9000))
	tempserver.Need(t, s.start())
	inSynchrony(t, append([]*Server{s}, others...))
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
