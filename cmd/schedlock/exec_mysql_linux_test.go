package main

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/mytest"
)

func TestExecOnMariaDB(t *testing.T) {
	t.Parallel()
	databaseURL := mytest.Shared(t).Database(t) // the first call makes the tables
	marker := filepath.Join(folder(t), "ran")
	r := finish(t, execOf(t, databaseURL, "sh", "-c",
		`echo "$SCHEDLOCK_TERM" >> "`+marker+`"; exit 7`))
	require.Equal(t, 7, r.code, r)
	r = finish(t, execOf(t, databaseURL, "--name", "nightly", "--once-per", "1h",
		"echo", "once"))
	require.Equal(t, exitDone, r.code, r)
	require.Equal(t, "once\n", r.out)
	r = finish(t, execOf(t, databaseURL, "--name", "nightly", "--once-per", "1h",
		"--no-wait", "echo", "twice"))
	require.NotContains(t, r.out, "twice")
	require.Contains(t, expect(t, exitDone, "history", "--db", databaseURL), "released")
	require.Contains(t, expect(t, exitDone, "locks", "--db", databaseURL), "nightly")
}
