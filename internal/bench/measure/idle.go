//go:build linux

package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sys/unix"

	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/driver"
)

// idleCost is what standbys cost while nothing happens: the leader's next
// heartbeat is hours away, so everything that is counted is theirs.
type idleCost struct {
	Standbys   int
	Window     time.Duration
	Looks      float64 // per second, of each, as the store counts: each is one SELECT
	Statements float64 // the same, as the server counts transactions; 0: there is no server
	Written    int64   // bytes, by all of their processes together
	// of the database: bytes of WAL (PostgreSQL); 1 if the file or its WAL changed (SQLite)
	Changed int64
	Rows    int64   // inserted, updated and deleted, as the server has counted
	CPU     float64 // part of one core, of each
	Server  float64 // part of one core, of the server's processes, for each
	Memory  float64 // bytes of each: its proportional set size
	Conns   float64 // of each
}

// A longIdle is a fleet with a leader, which runs no job meanwhile.
type longIdle struct {
	Standbys  int
	Window    time.Duration
	Beats     int64 // heartbeats of the leader
	Written   int64 // bytes, by the processes of the standbys
	Leader    int64 // bytes, by the process of the leader
	File, WAL int64 // bytes by which they grew; PostgreSQL: bytes of WAL
	Rows      int64 // inserted, updated and deleted, as the server has counted
	LeaderCPU float64
	LeaderMem float64
}

// idle is measured on each database.
type idle struct {
	Sizes []int
	Cost  map[string]map[int]*idleCost
	Long  map[string]*longIdle
}

func (m *measurer) idle(ctx context.Context) error {
	i := &idle{Sizes: []int{1, 10, 100}, Cost: map[string]map[int]*idleCost{},
		Long: map[string]*longIdle{}}
	window := 8 * time.Second
	if m.quick {
		i.Sizes, window = []int{1, 2}, time.Second
	}
	m.report.Idle = i
	for _, n := range i.Sizes {
		err := m.onEach(ctx, func(db, dsn string) error {
			cost, err := idleStandbys(ctx, dsn, n, window)
			if i.Cost[db] == nil {
				i.Cost[db] = map[int]*idleCost{}
			}
			i.Cost[db][n] = cost
			return err
		})
		if err != nil {
			return err
		}
	}
	if m.quick {
		return nil
	}
	// Both at a time: they sleep nearly always.
	var (
		both sync.WaitGroup
		mu   sync.Mutex
		errs []error
	)
	err := m.onEach(ctx, func(db, dsn string) error {
		both.Go(func() {
			long, err := idleFleet(ctx, dsn, 20, time.Minute)
			mu.Lock()
			defer mu.Unlock()
			i.Long[db] = long
			errs = append(errs, err)
		})
		return nil
	})
	both.Wait()
	return errors.Join(append(errs, err)...)
}

// as adds a name under which the server shows the connections.
func as(dsn, name string) string {
	switch {
	case isPostgres(dsn):
		return dsn + "&application_name=" + name
	case isMariaDB(dsn): // as a user of that name
		return strings.Replace(dsn, "//root@", "//"+name+"@", 1)
	}
	return dsn
}

// idleStandbys measures standbys of a leader in this process.
func idleStandbys(ctx context.Context, dsn string, n int, window time.Duration) (*idleCost, error) {
	store, err := openStore(ctx, as(dsn, "leader"), &meter{})
	if err != nil {
		return nil, err
	}
	defer store.Close()
	lock, err := schedlock.New(store, schedlock.WithLogger(quiet), schedlock.WithTTL(driver.MaxTTL),
		schedlock.WithHeartbeatInterval(6*time.Hour))
	if err != nil {
		return nil, err
	}
	lease, err := lock.Acquire(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { _ = lease.Release(ctx) }()

	f := newFleet(ctx, as(dsn, "standby"))
	defer f.close()
	if err := f.fill(n); err != nil {
		return nil, err
	}
	err = f.await("all stand by", func(said []remark) bool {
		for _, r := range f.replicas {
			if _, ok := find(said, r, saysStandby); !ok {
				return false
			}
		}
		return true
	})
	if err != nil {
		return nil, err
	}
	db, err := examine(ctx, dsn)
	if err != nil {
		return nil, err
	}
	defer db.close()
	if err := rest(ctx, 2500*time.Millisecond); err != nil { // the start is over
		return nil, err
	}
	// A session of the server reports what it did after its next statement, or 10 s.
	if _, err := store.Look(ctx); err != nil {
		return nil, err
	}
	before, err := f.observe(db)
	if err != nil {
		return nil, err
	}
	if err := rest(ctx, window); err != nil {
		return nil, err
	}
	after, err := f.observe(db)
	if err != nil {
		return nil, err
	}
	took := (after.at - before.at).Seconds()
	each := took * float64(n)
	cost := &idleCost{
		Standbys: n, Window: window,
		Looks:      float64(after.looks-before.looks) / (after.looked - before.looked).Seconds(),
		Statements: float64(after.database.statements-before.database.statements) / each,
		Written:    after.written - before.written,
		Rows:       after.database.rows - before.database.rows,
		CPU:        (after.cpu - before.cpu).Seconds() / each,
		Server:     (after.database.cpu - before.database.cpu).Seconds() / each,
		Memory:     after.memory / float64(n),
		Conns:      float64(after.database.conns) / float64(n),
	}
	if isPostgres(dsn) || isMariaDB(dsn) {
		cost.Changed = after.database.wal - before.database.wal
	} else if after.database != before.database {
		cost.Changed = 1
	}
	return cost, nil
}

// idleFleet measures standbys of a leader that is a replica as they are.
func idleFleet(ctx context.Context, dsn string, n int, window time.Duration) (*longIdle, error) {
	f := newFleet(ctx, dsn)
	defer f.close()
	if err := f.fill(n + 1); err != nil {
		return nil, err
	}
	leader, _, err := f.settle(n + 1)
	if err != nil {
		return nil, err
	}
	db, err := examine(ctx, dsn)
	if err != nil {
		return nil, err
	}
	defer db.close()
	type look struct {
		all, lead usage
	}
	// The beat is read outside of what is counted.
	beat, err := db.beat(ctx)
	if err != nil {
		return nil, err
	}
	if err := rest(ctx, 1500*time.Millisecond); err != nil {
		return nil, err
	}
	observe := func() (l look, err error) {
		if l.all, err = f.observe(db); err == nil {
			l.lead, err = processUsage(leader.cmd.Process.Pid)
		}
		return l, err
	}
	before, err := observe()
	if err != nil {
		return nil, err
	}
	if err := rest(ctx, window); err != nil {
		return nil, err
	}
	after, err := observe()
	if err != nil {
		return nil, err
	}
	end, err := db.beat(ctx)
	if err != nil {
		return nil, err
	}
	seconds := (after.all.at - before.all.at).Seconds()
	byLeader := after.lead.written - before.lead.written
	return &longIdle{
		Standbys: n, Window: window, Beats: end - beat,
		Written: after.all.written - before.all.written - byLeader, Leader: byLeader,
		File:      after.all.database.size - before.all.database.size,
		WAL:       after.all.database.wal - before.all.database.wal,
		Rows:      after.all.database.rows - before.all.database.rows,
		LeaderCPU: (after.lead.cpu - before.lead.cpu).Seconds() / seconds,
		LeaderMem: after.lead.memory,
	}, nil
}

func rest(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// usage is what processes have used since they were started, together.
type usage struct {
	at       time.Duration
	looks    int64
	looked   time.Duration // the moments for which the replicas have said so, added up
	written  int64         // bytes that went to a file system's pages
	cpu      time.Duration
	memory   float64
	database databaseState
}

// observe adds up what the replicas have used.
func (f *fleet) observe(db *examined) (all usage, err error) {
	f.mu.Lock()
	replicas := slices.Clone(f.replicas)
	asked := bootTime()
	f.mu.Unlock()
	for _, r := range replicas {
		if _, err := fmt.Fprintln(r.stdin, askLooks); err != nil {
			return all, err
		}
	}
	all.at = bootTime()
	for _, r := range replicas {
		one, err := processUsage(r.cmd.Process.Pid)
		if err != nil {
			return all, err
		}
		all.written += one.written
		all.cpu += one.cpu
		all.memory += one.memory
	}
	if all.database, err = db.state(f.ctx); err != nil {
		return all, err
	}
	err = f.await("all have said how often they looked", func(said []remark) bool {
		all.looks, all.looked = 0, 0
		for _, r := range replicas {
			s, ok := find(said, r, saysLooks)
			if !ok || s.at < asked {
				return false
			}
			all.looks += s.number
			all.looked += s.at
		}
		return true
	})
	return all, err
}

// processUsage reads what the kernel has counted for one process.
func processUsage(pid int) (u usage, err error) {
	if u.cpu, err = processCPU(pid); err != nil {
		return u, err
	}
	io, err := procField(fmt.Sprintf("/proc/%d/io", pid), "write_bytes:")
	if err != nil {
		return u, err
	}
	kilobytes, err := procField(fmt.Sprintf("/proc/%d/smaps_rollup", pid), "Pss:")
	u.written, u.memory = io, float64(kilobytes)*1024
	return u, err
}

// processCPU reads the clock of a process: nanoseconds, where /proc/…/stat has
// hundredths of a second.
func processCPU(pid int) (time.Duration, error) {
	const sched = 2 // CPUCLOCK_SCHED of the kernel's posix-timers.h
	var ts unix.Timespec
	if err := unix.ClockGettime(int32(^pid)<<3|sched, &ts); err != nil {
		return 0, fmt.Errorf("CPU clock of process %d: %w", pid, err)
	}
	return time.Duration(ts.Nano()), nil
}

// procField reads a number from a file of lines with a name and a number.
func procField(path, name string) (n int64, err error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, name); ok {
			_, err := fmt.Sscan(value, &n)
			return n, err
		}
	}
	return 0, fmt.Errorf("%s has no line %s", path, name)
}

// An examined database, from outside.
type examined struct {
	path string    // SQLite
	conn *pgx.Conn // PostgreSQL: to another database of the server
	name string
	dsn  string

	mariaDB *sql.DB
	asked   int64 // statements, on it
}

// databaseState is what can be seen of it.
type databaseState struct {
	size, wal           int64     // bytes
	written, walWritten time.Time // SQLite: when the file was last changed
	// PostgreSQL: transactions, which are statements here; rows written
	statements, rows int64
	conns            int64
	cpu              time.Duration // of the server's processes for standbys
}

func examine(ctx context.Context, dsn string) (*examined, error) {
	e := &examined{dsn: dsn}
	if isMariaDB(dsn) {
		return e, e.examineMariaDB()
	}
	if !isPostgres(dsn) {
		e.path = strings.TrimPrefix(dsn, "file:")
		return e, nil
	}
	u, err := url.Parse(dsn)
	if err != nil {
		return nil, err
	}
	e.name = strings.TrimPrefix(u.Path, "/")
	u.Path = "/postgres"
	e.conn, err = pgx.Connect(ctx, u.String())
	return e, err
}

func (e *examined) close() {
	if e.mariaDB != nil {
		_ = e.mariaDB.Close()
	}
	if e.conn != nil {
		_ = e.conn.Close(context.Background())
	}
}

func (e *examined) state(ctx context.Context) (s databaseState, err error) {
	if e.mariaDB != nil {
		return e.stateOfMariaDB(ctx)
	}
	if e.conn == nil {
		file, err := os.Stat(e.path)
		if err != nil {
			return s, err
		}
		s.size, s.written = file.Size(), file.ModTime()
		if wal, err := os.Stat(e.path + "-wal"); err == nil {
			s.wal, s.walWritten = wal.Size(), wal.ModTime()
		}
		return s, nil
	}
	const sqlState = `
SELECT pg_database_size(d.datid), (pg_current_wal_lsn() - '0/0'::pg_lsn)::float8,
       d.xact_commit + d.xact_rollback, d.tup_inserted + d.tup_updated + d.tup_deleted,
       array(SELECT a.pid FROM pg_stat_activity a
             WHERE a.datid = d.datid AND a.application_name = 'standby')
FROM pg_stat_database d WHERE d.datname = $1`
	var (
		wal  float64
		pids []int32
	)
	if err := e.conn.QueryRow(ctx, sqlState, e.name).Scan(&s.size, &wal, &s.statements, &s.rows,
		&pids); err != nil {
		return s, err
	}
	s.wal, s.conns = int64(wal), int64(len(pids))
	for _, pid := range pids {
		cpu, err := processCPU(int(pid))
		if err != nil {
			return s, err
		}
		s.cpu += cpu
	}
	return s, nil
}

// beat reads the leader's beat.
func (e *examined) beat(ctx context.Context) (int64, error) {
	store, err := openStore(ctx, e.dsn, &meter{})
	if err != nil {
		return 0, err
	}
	defer store.Close()
	info, err := schedlock.GetLockInfo(ctx, store)
	if err != nil || info == nil {
		return 0, errors.Join(err, fmt.Errorf("nobody leads in %s", filepath.Base(e.path)))
	}
	return info.Beat, nil
}
