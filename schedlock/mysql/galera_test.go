package mysql_test

import (
	"context"
	"database/sql"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/internal/missing"
	"example.com/schedlock/internal/mytest"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/locktest"
	"example.com/schedlock/schedlock/mysql"
)

// One cluster is for all: its start costs more than most of them.
func TestGalera(t *testing.T) {
	missing.Costly(t, "starts a cluster of three")
	t.Parallel()
	c := galera{nodes: mytest.Galera(t, 3)}
	c.nodes[0].Exec(t, "CREATE DATABASE app")
	for _, node := range c.nodes {
		c.urls = append(c.urls, node.URL("app"))
	}
	s := open(t, c.urls[0])
	require.NoError(t, s.Migrate(ctx))
	require.NoError(t, s.Close())
	t.Run("conformance", c.conformance)
	t.Run("of twenty claimants one wins", func(t *testing.T) {
		missing.OnlyFull(t, "takes half a minute; other tests have them on one server")
		twentyClaim(t, c.open(t, 0), c.urls)
	})
	t.Run("a fence holds across nodes", c.fenceHolds)
	t.Run("a fence on another node finds the acquisition", c.fenceFinds)
	t.Run("the nodes are one server", c.oneServer) // the last: it kills two
}

// A galera is a cluster: its nodes, with the URL of a database that has its tables on each.
type galera struct {
	nodes []*mytest.Server
	urls  []string
}

// open opens the database of a node for the test itself.
func (c galera) open(t testing.TB, node int) *sql.DB {
	return c.nodes[node].Open(t, c.urls[node], "time_zone='%2B00:00'", "interpolateParams=true",
		"wsrep_sync_wait=7")
}

// Each replica is on another node.
func (c galera) conformance(t *testing.T) {
	missing.OnlyFull(t, "takes a minute")
	var next atomic.Int64
	// A lock of GET_LOCK is known on its node only. A fence does not keep another node from taking
	// over: it keeps its own transaction from being committed after that.
	database := suite(c.open(t, 0), func(t testing.TB) driver.Store {
		return open(t, c.urls[next.Add(1)%int64(len(c.urls))])
	}, locktest.Hints, locktest.Fences)
	locktest.Run(t, func(t testing.TB) locktest.Database {
		d := database(t)
		d.Begin = nil
		return d
	})
}

// A fence on one node against a take-over on another: what is written under the fence is
// either there before the take-over, or never. In every other round its node has so much to
// do that it is behind: it commits what another node must refuse.
func (c galera) fenceHolds(t *testing.T) {
	here, there := open(t, c.urls[0]), open(t, c.urls[1])
	db, elsewhere := c.open(t, 0), c.open(t, 1)
	exec(t, db, `CREATE TABLE writes (term bigint PRIMARY KEY, n bigint NOT NULL)`)
	exec(t, db, `CREATE TABLE ballast (id bigint PRIMARY KEY, n bigint NOT NULL)`)
	exec(t, db, `INSERT INTO ballast SELECT seq, 0 FROM seq_1_to_10000`)
	var fenced, taken int
	for round := range rounds() {
		late := round%2 == 1
		ref := acquire(t, here)
		exec(t, db, `INSERT INTO writes VALUES (?, 0)`, ref.Term)
		taking := claim(look(t, there))
		done := make(chan error, 1)
		tx, err := db.BeginTx(ctx, nil)
		require.NoError(t, err)
		require.NoError(t, here.Fence(ctx, tx, ref))
		seen := -1
		if late {
			_, err = tx.Exec(`UPDATE writes SET n = n + 1 WHERE term = ?`, ref.Term)
			require.NoError(t, err)
			exec(t, elsewhere, `UPDATE ballast SET n = n + 1`)
		}
		go func() {
			_, err := there.Acquire(ctx, taking)
			if err == nil { // what the successor finds must stay as it is
				err = elsewhere.QueryRow(`SELECT n FROM writes WHERE term = ?`, ref.Term).Scan(&seen)
			}
			done <- err
		}()
		var lost error
		if late {
			lost = <-done
		} else {
			time.Sleep(time.Duration(round%5) * time.Millisecond)
			_, err = tx.Exec(`UPDATE writes SET n = n + 1 WHERE term = ?`, ref.Term)
		}
		if err == nil {
			err = tx.Commit()
		}
		_ = tx.Rollback()
		if err == nil {
			fenced++
		}
		if !late {
			lost = <-done
		}
		require.False(t, late && lost == nil && err == nil, "round %d: committed under a fence, "+
			"although another node had taken over", round)
		if lost == nil {
			taken++
			require.Equal(t, seen, value[int](t, db, `SELECT n FROM writes WHERE term = ?`, ref.Term),
				"round %d: an old write landed after the take-over", round)
		} else {
			require.True(t, errors.Is(lost, driver.ErrConflict) || errors.Is(lost, driver.ErrBlocked),
				"%v", lost)
		}
		exec(t, db, `DELETE FROM writes`)
		if row := look(t, there).Row; row != nil {
			release(t, there, row.Ref)
		}
	}
	t.Logf("of %d rounds %d fenced transactions were committed, and %d take-overs", rounds(),
		fenced, taken)
}

// The transactions of the app may be on another node than the lock's connection.
func (c galera) fenceFinds(t *testing.T) {
	missing.OnlyFull(t, "repeats what other tests try on the node of the lock")
	s, db := open(t, c.urls[0]), c.open(t, 1)
	for range rounds() * 10 {
		ref := acquire(t, s)
		tx, err := db.BeginTx(ctx, nil)
		require.NoError(t, err)
		require.NoError(t, s.Fence(ctx, tx, ref))
		require.NoError(t, tx.Commit())
	}
}

// The nodes are one server to the history; the session of a holder is of its node.
func (c galera) oneServer(t *testing.T) {
	all, urls := c.nodes, c.urls
	holder, beside, elsewhere := open(t, urls[0]), open(t, urls[0]), open(t, urls[1])
	require.Zero(t, holder.Setting(ctx, "wsrep_retry_autocommit"), "a node repeats a block, whose "+
		"answer is then malformed: twentyClaim may panic")
	ref, session := acquireWatched(t, holder)
	require.NotNil(t, session)
	require.False(t, look(t, elsewhere).FailedOver)
	require.Equal(t, ref, look(t, elsewhere).Row.Ref)
	killHolder(t, all[0].Open(t, urls[0]))
	require.Equal(t, driver.SignEnded, lookAtSession(t, beside).Sign)
	require.Equal(t, driver.SignNone, lookAtSession(t, elsewhere).Sign, "it cannot tell")
	heartbeat(t, holder, ref)
	short, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
	defer cancel()
	elsewhere.AwaitHint(short, look(t, elsewhere))
	require.Error(t, short.Err(), "no lock to wait for")
	release(t, holder, ref)
	free := claim(look(t, elsewhere))
	free.Watched, free.Grace = false, grace
	grant, err := elsewhere.Acquire(ctx, free)
	require.NoError(t, err, "a free lock is free on each node")
	free.Term = grant.Term

	// A node that is left alone is no leader's database, and is left, whether a heartbeat is the
	// holder's first on a new session, one of many, or the first that the session sends. That
	// has to be parsed, which the node refuses as if a row were locked.
	before := look(t, elsewhere)
	renewed, first, alone := open(t, urls[1]), open(t, urls[1]), all[1].Open(t, urls[1])
	heartbeat(t, renewed, free.Ref)
	killHolder(t, alone)
	eventually(t, "the holder has a new session", func() bool {
		_, err := elsewhere.Look(ctx)
		return err == nil
	})
	ready := func() string {
		return value[string](t, alone, `SELECT variable_value FROM information_schema.global_status
			WHERE variable_name = 'WSREP_READY'`)
	}
	require.Equal(t, "ON", ready())
	all[1].Exec(t, "SET GLOBAL wsrep_provider_options = 'evs.suspect_timeout=PT1S; "+
		"evs.inactive_timeout=PT2S; evs.install_timeout=PT2S'")
	all[0].Kill(t)
	all[2].Kill(t)
	require.Eventually(t, func() bool { return ready() == "OFF" }, 3*patience,
		100*time.Millisecond)
	for _, s := range []*mysql.Store{elsewhere, renewed, first} {
		_, lost := s.Heartbeat(ctx, free.Ref, driver.StateLeading)
		require.ErrorContains(t, lost, "primary component")
		require.NotErrorIs(t, lost, driver.ErrLost)
		require.NotErrorIs(t, lost, driver.ErrPermanent)
	}
	_, err = elsewhere.Look(ctx)
	require.Error(t, err)
	_, err = mysql.Open(ctx, urls[1])
	require.Error(t, err)

	// Made anew by hand, it has what it had, and each watch begins anew.
	all[1].Exec(t, "SET GLOBAL wsrep_provider_options = 'pc.bootstrap=YES'")
	require.Eventually(t, func() bool {
		_, err = elsewhere.Heartbeat(ctx, free.Ref, driver.StateLeading)
		return err == nil
	}, 3*patience, 100*time.Millisecond)
	require.NotEqual(t, before.Incarnation, look(t, elsewhere).Incarnation)
}
