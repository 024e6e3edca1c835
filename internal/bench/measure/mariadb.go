//go:build linux

package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
	"syscall"
	"time"

	_ "github.com/go-sql-driver/mysql"

	"example.com/schedlock/internal/bench/host"
	"example.com/schedlock/internal/mytest"
)

const (
	dbMariaDB   = "MariaDB"
	mariaDBPart = "mariadb" // writes a section of its own
)

// mariaDB is what the section about MariaDB tells.
type mariaDB struct {
	Alone   bool   // nothing else was measured
	Missing string // why nothing was measured; "": it was
	Version string
	Noise   int // the first of its samples

	Handover *change
	Signs    *change // at the default TTL and session grace, with WithSessionSign
	Expired  *change // at expiredTTL, without

	Sizes   []int
	Idle    map[int]*idleCost
	Leaders map[string]idleLeader // by what it is
}

// An idleLeader is what a leader alone costs, which has no run to start.
type idleLeader struct {
	Window     time.Duration
	Statements float64 // a second, as the server counts
	CPU        float64 // part of one core, of its process
}

var mariaDBRuns = []benchRun{{"^Benchmark(Acquire|Heartbeat|Release|GetLockInfo)$/^mysql",
	"./internal/bench", []string{"-count=3", "-benchtime=0.5s"}}}

func (m *measurer) mariaDB(ctx context.Context) error {
	r := &mariaDB{Alone: m.alone, Noise: max(len(m.report.Noise)-1, 0), Idle: map[int]*idleCost{},
		Leaders: map[string]idleLeader{}}
	m.report.MariaDB = r
	var server *mytest.Server
	err := m.host.Try(func() {
		server = mytest.Durable(&m.host)
		server.Exec(&m.host, `CREATE USER standby@'127.0.0.1'`)
		server.Exec(&m.host, `CREATE USER leader@'127.0.0.1'`)
		server.Exec(&m.host, `GRANT ALL ON *.* TO standby@'127.0.0.1', leader@'127.0.0.1'`)
	})
	if missing := (*host.MissingError)(nil); errors.As(err, &missing) {
		r.Missing = missing.Error()
		return nil
	}
	if err != nil {
		return err
	}
	databases := 0
	database := func() string {
		databases++
		name := fmt.Sprint("measured_", databases)
		server.Exec(&m.host, "CREATE DATABASE "+name)
		return server.URL(name)
	}
	for _, measure := range []func(dsn string) error{
		func(string) error { return m.bench(ctx, mariaDBRuns) },
		func(dsn string) (err error) {
			r.Handover, err = rounds(ctx, newFleet(ctx, dsn), m.rounds(100), syscall.SIGTERM)
			return err
		},
		func(dsn string) (err error) {
			if !m.quick {
				f := newFleet(ctx, dsn)
				f.sign = true
				r.Signs, err = rounds(ctx, f, 20, syscall.SIGKILL)
			}
			return err
		},
		func(dsn string) (err error) {
			f := newFleet(ctx, dsn)
			f.ttl, f.heartbeat = expiredTTL, expiredHeartbeat
			r.Expired, err = rounds(ctx, f, m.rounds(10), syscall.SIGKILL)
			return err
		},
		func(dsn string) error { return m.idleOnMariaDB(ctx, database) },
	} {
		if err := measure(database()); err != nil {
			return err
		}
		m.noise(ctx, mariaDBPart)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	return m.host.Try(func() {
		db := server.Open(&m.host, server.URL(""))
		if err := db.QueryRowContext(ctx, `SELECT version()`).Scan(&r.Version); err != nil {
			panic(err)
		}
	})
}

func (m *measurer) idleOnMariaDB(ctx context.Context, database func() string) error {
	r := m.report.MariaDB
	r.Sizes = []int{1, 10, 100}
	window := 10 * time.Second
	if m.quick {
		r.Sizes, window = []int{1}, time.Second
	}
	for _, n := range r.Sizes {
		cost, err := idleStandbys(ctx, database(), n, window)
		if err != nil {
			return err
		}
		r.Idle[n] = cost
	}
	for what, sign := range map[string]bool{"a leader": false,
		"a leader with WithSessionSign": true} {
		f := newFleet(ctx, as(database(), "standby"))
		f.sign = sign
		leader, err := leaderAlone(ctx, f, 3*window)
		if err != nil {
			return err
		}
		r.Leaders[what] = leader
	}
	return nil
}

// leaderAlone measures a fleet of one.
func leaderAlone(ctx context.Context, f *fleet, window time.Duration) (l idleLeader, err error) {
	defer f.close()
	if err := f.fill(1); err != nil {
		return l, err
	}
	leader, _, err := f.settle(1)
	if err != nil {
		return l, err
	}
	db, err := examine(ctx, f.dsn)
	if err != nil {
		return l, err
	}
	defer db.close()
	if err := rest(ctx, 2500*time.Millisecond); err != nil { // the start is over
		return l, err
	}
	observe := func() (at time.Duration, cpu time.Duration, state databaseState, err error) {
		if state, err = db.state(ctx); err == nil {
			cpu, err = processCPU(leader.cmd.Process.Pid)
		}
		return bootTime(), cpu, state, err
	}
	from, cpu, before, err := observe()
	if err != nil {
		return l, err
	}
	if err := rest(ctx, window); err != nil {
		return l, err
	}
	to, cpuAfter, after, err := observe()
	took := (to - from).Seconds()
	return idleLeader{window, float64(after.statements-before.statements) / took,
		(cpuAfter - cpu).Seconds() / took}, err
}

func (e *examined) examineMariaDB() (err error) {
	u, err := url.Parse(e.dsn)
	if err != nil {
		return err
	}
	e.name = strings.TrimPrefix(u.Path, "/")
	e.mariaDB, err = sql.Open("mysql", "root@tcp("+u.Host+")/?interpolateParams=true")
	return err
}

// stateOfMariaDB counts the whole server, which nobody else uses. Its own statements, one for
// each call, do not count.
func (e *examined) stateOfMariaDB(ctx context.Context) (s databaseState, err error) {
	conn, err := e.mariaDB.Conn(ctx)
	if err != nil {
		return s, err
	}
	defer conn.Close()
	const sqlStatus = `
SELECT coalesce(sum(CASE WHEN variable_name = 'QUESTIONS' THEN variable_value END), 0),
       coalesce(sum(CASE WHEN variable_name = 'INNODB_LSN_CURRENT' THEN variable_value END), 0),
       coalesce(sum(CASE WHEN variable_name LIKE 'HANDLER%' THEN variable_value END), 0)
FROM information_schema.global_status
WHERE variable_name IN ('QUESTIONS', 'INNODB_LSN_CURRENT', 'HANDLER_WRITE', 'HANDLER_UPDATE',
    'HANDLER_DELETE')`
	var statements, wal, rows float64
	if err := conn.QueryRowContext(ctx, sqlStatus).Scan(&statements, &wal, &rows); err != nil {
		return s, err
	}
	e.asked++
	s.statements, s.wal, s.rows = int64(statements)-e.asked, int64(wal), int64(rows)
	threads, err := conn.QueryContext(ctx, `
SELECT tid FROM information_schema.processlist WHERE user = 'standby' AND db = ?`, e.name)
	if err != nil {
		return s, err
	}
	e.asked++
	defer threads.Close()
	for threads.Next() {
		var tid int
		if err := threads.Scan(&tid); err != nil {
			return s, err
		}
		cpu, err := threadCPU(tid)
		if err != nil {
			return s, err
		}
		s.conns++
		s.cpu += cpu
	}
	return s, threads.Err()
}

// threadCPU is what a thread of another process has used.
func threadCPU(tid int) (time.Duration, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/schedstat", tid))
	if err != nil {
		return 0, err
	}
	var ran int64
	_, err = fmt.Sscan(string(text), &ran)
	return time.Duration(ran), err
}
