package mysql_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/mytest"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/mysql"
)

// The opener names each right that is missing, and with all of them the lock works.
func TestAMissingRightIsNamed(t *testing.T) {
	t.Parallel()
	server := mytest.Shared(t)
	url := migrated(t)
	database := mytest.Name(url)
	user := "'narrow_" + database + "'@'127.0.0.1'"
	server.Exec(t, "CREATE USER "+user)
	narrow := strings.Replace(url, "root@", "narrow_"+database+"@", 1)
	grants := map[string]string{
		"SELECT, INSERT, UPDATE, DELETE": "scheduler_lock scheduler_terms scheduler_runs",
		"SELECT, INSERT, UPDATE":         "scheduler_jobs scheduler_pauses",
		"SELECT, INSERT, DELETE": "scheduler_fence scheduler_fenced scheduler_requests " +
			"scheduler_audit scheduler_attempts",
		"SELECT": "scheduler_gate scheduler_replicas scheduler_lock_schema",
	}
	for rights, tables := range grants {
		for table := range strings.FieldsSeq(tables) {
			server.Exec(t, fmt.Sprintf("GRANT %s ON %s.%s TO %s", rights, database, table, user))
		}
	}
	s, err := mysql.Opener(narrow).Open(ctx)
	require.NoError(t, err)
	ref := acquire(t, s)
	heartbeat(t, s, ref)
	release(t, s, ref)
	require.NoError(t, s.Close())

	server.Exec(t, fmt.Sprintf("REVOKE INSERT, DELETE ON %s.scheduler_fence FROM %s", database, user))
	server.Exec(t, fmt.Sprintf("REVOKE UPDATE ON %s.scheduler_jobs FROM %s", database, user))
	_, err = mysql.Opener(narrow)(ctx)
	require.ErrorIs(t, err, driver.ErrPermanent)
	require.ErrorContains(t, err, fmt.Sprintf("a right is missing: "+
		"GRANT INSERT, DELETE ON `%[1]s`.scheduler_fence TO %[2]s; "+
		"GRANT UPDATE ON `%[1]s`.scheduler_jobs TO %[2]s", database, user))
}

func TestAUserThatIsNotLetInIsToldWhy(t *testing.T) {
	t.Parallel()
	server := mytest.Shared(t)
	url := migrated(t)
	user := "refused_" + mytest.Name(url)
	address := strings.Replace(url, "root@", user+":x@", 1)
	for _, tc := range []struct{ user, says string }{
		{"IDENTIFIED BY 'y'", "check the password of user"},
		{"IDENTIFIED VIA unix_socket", "signs in by a plugin"},
		{"IDENTIFIED BY 'x' ACCOUNT LOCK", "ACCOUNT UNLOCK"},
	} {
		server.Exec(t, fmt.Sprintf("CREATE OR REPLACE USER '%s'@'127.0.0.1' %s", user, tc.user))
		_, err := mysql.Open(ctx, address)
		require.ErrorIs(t, err, driver.ErrPermanent)
		require.ErrorContains(t, err, tc.says)
	}
}

// A server that becomes read-only between two looks ends no start.
func TestTheOpenerOfAReadOnlyServerWaits(t *testing.T) {
	t.Parallel()
	server := mytest.Start(t)
	url := server.Database(t)
	s, err := mysql.Opener(url).Open(ctx)
	require.NoError(t, err)
	require.NoError(t, s.Close())
	server.Exec(t, "SET GLOBAL read_only = ON")
	server.Exec(t, "CREATE USER 'app'@'127.0.0.1'")
	server.Exec(t, "GRANT ALL ON "+mytest.Name(url)+".* TO 'app'@'127.0.0.1'")
	s, err = mysql.Opener(strings.Replace(url, "root@", "app@", 1)).Open(ctx)
	require.NoError(t, err)
	require.NoError(t, s.Close())
}
