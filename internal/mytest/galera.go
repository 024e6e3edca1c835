package mytest

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"example.com/schedlock/internal/tempserver"
)

// galeraLibrary is where packages of Galera 4 have it.
const galeraLibrary = "/usr/lib/galera/libgalera_smm.so"

// cluster is the identity of each cluster: no two share a port.
const cluster = "6f6f6f6f-0000-11ee-8000-000000000001"

// Galera returns the nodes of a cluster of the test's own, in synchrony. All begin with the same
// data, so that none of them needs a state transfer. No node may be started again.
func Galera(t testing.TB, nodes int) []*Server {
	t.Helper()
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
		for deadline := time.Now().Add(tempserver.Patience); ; time.Sleep(10 * time.Millisecond) {
			if s.status(t, "wsrep_ready") == "ON" &&
				s.status(t, "wsrep_cluster_size") == fmt.Sprint(len(all)) {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("node %d is not ready after %v", len(all), tempserver.Patience)
			}
		}
	}
	return all
}

// join lets the server, whose port is chosen, begin a cluster or join one at a position.
func (s *Server) join(others []string, position string) error {
	s.settings = []string{"--binlog-format=ROW", "--innodb-autoinc-lock-mode=2", "--wsrep-on=ON",
		"--wsrep-provider=" + galeraLibrary, "--wsrep-sst-method=skip",
		"--wsrep-cluster-address=gcomm://" + strings.Join(others, ","),
		"--wsrep-node-address=127.0.0.1",
		"--wsrep-start-position=" + cluster + ":" + position,
		"--wsrep-provider-options=gmcast.listen_addr=tcp://" + s.galeraAddress() +
			";gcache.size=16M"}
	if len(others) == 0 {
		s.settings = append(s.settings, "--wsrep-new-cluster")
	}
	return s.process.Run("/bin/sh", "-c", `printf '# GALERA saved state\nversion: 2.1\n`+
		`uuid:    %s\nseqno:   %s\nsafe_to_bootstrap: 1\n' "$1" "$2" > data/grastate.dat`,
		"sh", cluster, position)
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
