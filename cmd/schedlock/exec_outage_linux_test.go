package main

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/missing"
	"example.com/schedlock/internal/pgtest"
	"example.com/schedlock/internal/servertest"
)

// An outage ends the command, not exec.
func TestExecOutlivesAnOutageOfItsServer(t *testing.T) {
	missing.Long(t, "starts a server")
	t.Parallel()
	server := pgtest.Start(t)
	var workers []*worker
	for _, flags := range [][]string{nil, {"--name", "nightly"}} {
		workers = append(workers, startExec(t, server.URL("postgres"), append(flags, "--ttl", "3s",
			"sh", "-c", "echo up; exec sleep 1000")...))
	}
	for _, w := range workers {
		w.line()
	}
	server.Stop(t, "immediate")
	for _, w := range workers {
		eventually(t, "the command was stopped", func() bool {
			return strings.Contains(w.err.String(), "the command was stopped")
		})
	}
	eventually(t, "the named lock cannot be taken", func() bool {
		select {
		case <-workers[1].ended:
			return true // which is wrong
		default:
			return strings.Contains(workers[1].err.String(), "the lock cannot be taken")
		}
	})
	server.StartAgain(t)
	for _, w := range workers {
		require.Equal(t, "up", w.line())
	}
}

func TestExecWaitsForAServerNoLongerThanItMay(t *testing.T) {
	missing.Long(t, "takes seconds")
	t.Parallel()
	hangs, dsn := servertest.Through(t, "postgres://app@127.0.0.1:1/app?connect_timeout=600")
	hangs.Become(servertest.Network{Hole: true})
	begun := time.Now()
	r := finish(t, execOf(t, dsn, "--timeout", "1s", "--skip-ok", "true"))
	require.Equal(t, exitTemporary, r.code, r)
	require.Less(t, time.Since(begun), openLimit)
}

// The lock is free, but the database takes no writes: that is no other machine that does the work.
func TestExecDoesNotSkipWhatNobodyDoes(t *testing.T) {
	missing.Long(t, "takes seconds")
	t.Parallel()
	path := filepath.Join(folder(t), "app.db")
	require.Zero(t, finish(t, execOf(t, path, "true")).code)
	r := finish(t, execOf(t, "file:"+path+"?_pragma=query_only(1)", "--timeout", "1s", "--skip-ok",
		"true"))
	require.Equal(t, exitTemporary, r.code, r)
	require.NotContains(t, r.err, "is held")
}

// After a fail-over nobody may take a lock, but nobody is known to hold it either.
func TestExecDoesNotSkipWhatAFailOverMayHaveForgotten(t *testing.T) {
	missing.Long(t, "starts a server")
	t.Parallel()
	dsn := migratedServer(t)
	once := []string{"--name", "nightly", "--once-per", "23h", "--skip-ok", "true"}
	require.Equal(t, result{}, finish(t, execOf(t, dsn, once...)))
	execute(t, dsn, `UPDATE named_locks_floor SET timeline = '00000000'`)
	r := finish(t, execOf(t, dsn, once...))
	require.Zero(t, r.code, "it is known who has run it: %+v", r)
	once[1] = "another"
	r = finish(t, execOf(t, dsn, once...))
	require.Equal(t, exitTemporary, r.code, r)
	require.Contains(t, r.err, "the database server has failed over")
}
