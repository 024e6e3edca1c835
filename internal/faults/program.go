//go:build linux

package faults

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"example.com/schedlock/internal/linear"
	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/ledger"
	"example.com/schedlock/startup"
	"example.com/schedlock/tasks"
)

// programEnv holds the Settings of a process of the test program, as JSON.
const programEnv = "FAULTS_PROGRAM"

// Settings are what the harness tells a process of the test program.
type Settings struct {
	Shape
	Name      string  // of the process
	Slot      int     // of the process, in its cluster
	Files     string  // what the paths of its files begin with
	Control   Control // at its start; what is told later comes through os.Stdin
	Kind      string  // of the database
	DSN       string
	AppPool   bool          // the lock uses the app's own pool
	Sign      bool          // mysql.WithSessionSign
	Owner     *driver.Owner // nil: its own
	Quiet     bool          // never call IsLeader from outside
	ExitStuck bool          // OnStuck ends the process
	Tunnel    string        // path of the far end of a tunnel to the server; "": there is none
}

// Control is what a process of the test program is told while it runs.
type Control struct {
	Clock   time.Duration // what its wall clock is ahead
	Panic   bool          // the next runs of the odd job panic,
	Ignore  time.Duration // or ignore their context for so long,
	Child   time.Duration // or leave a child process behind that lives so long
	Fail    bool          // or fail in their first attempt
	Exhaust bool          // all connections of the app's pool are in use
	Order   Order         // is given once
}

// An Order is what a process asks of the scheduler, as a user would do who
// clicks on its web page.
type Order struct {
	Number int  // a new one makes a new order
	Kind   Kind // KindAsking, KindPausing, or KindResuming
	Job    string
}

// ServeProgram must be called first in the TestMain (or main) of a binary that
// the harness re-executes. In a process that the harness has started it is the
// whole program, and never returns.
func ServeProgram() {
	text, ok := os.LookupEnv(programEnv)
	if !ok {
		return
	}
	told := make(chan Control, 1000) // more than there will be before it listens
	go func() {
		for in := json.NewDecoder(os.Stdin); ; {
			var c Control
			if in.Decode(&c) != nil { // it ends with the harness, however that ends
				os.Exit(exitFailed)
			}
			told <- c
		}
	}()
	var s Settings
	err := json.Unmarshal([]byte(text), &s)
	if err == nil {
		os.Unsetenv(programEnv)
		err = runProgram(s, told)
	}
	if err != nil {
		time.AfterFunc(time.Second, func() { os.Exit(exitFailed) }) // should nobody read stderr
		fmt.Fprintln(os.Stderr, "test program:", err)
		os.Exit(exitFailed)
	}
	os.Exit(0)
}

// keepRuns is more than there will be: what is deleted proves nothing.
const keepRuns = 10_000_000

// exitFailed is how the program ends if it could not start, or not stop.
const exitFailed = 1

// program is one process of the test program: a web app without the web.
type program struct {
	Settings
	log     recordLog
	beliefs *os.File
	control atomic.Pointer[Control]
	app     *startup.App
	backend backend
	runs    atomic.Int64 // started in this process
	told    <-chan Control
	elected chan struct{}
}

func runProgram(s Settings, told <-chan Control) (err error) {
	if s.Files == "" {
		return errors.New("there is nothing to do") // see mayTunnel
	}
	p := &program{Settings: s, told: told, elected: make(chan struct{}, 1)}
	p.control.Store(&s.Control)
	if p.log, err = openLog(s.Files + "log"); err != nil {
		return err
	}
	if p.beliefs, err = os.Create(s.Files + "beliefs"); err != nil {
		return err
	}
	if s.Tunnel != "" {
		if err := serveTunnel(s); err != nil {
			return err
		}
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()

	var onStuck func([]tasks.Run)
	if s.ExitStuck {
		onStuck = func([]tasks.Run) { os.Exit(1) }
	}
	lock := []schedlock.Option{schedlock.WithTTL(s.TTL),
		schedlock.WithHeartbeatInterval(s.Heartbeat),
		schedlock.WithSessionGrace(s.Grace), schedlock.WithObserver(p.observe)}
	if s.Owner != nil {
		lock = append(lock, schedlock.WithOwner(*s.Owner))
	}
	p.app, err = startup.NewApp(startup.Config{
		Open: p.open, Jobs: p.jobs(), Lock: lock, Drain: s.Drain, OnStuck: onStuck,
		KeepRuns: keepRuns, OnRun: p.onRun(),
		Log:    slog.New(slog.NewTextHandler(os.Stderr, nil)),
		Stages: append(p.lockStages(), p.lookStage()),
	})
	if err != nil {
		return err
	}
	down := context.AfterFunc(ctx, func() { p.record(Record{Kind: KindDown}) })
	defer down()
	return p.app.Run(ctx)
}

func (p *program) open(ctx context.Context) (driver.Store, error) {
	open, ok := backends[p.Kind]
	if !ok {
		return nil, fmt.Errorf("no database of kind %q", p.Kind)
	}
	var err error
	if p.backend, err = open(ctx, p.Settings, p.now); err != nil {
		return nil, err
	}
	p.record(Record{Kind: KindUp})
	log, err := linear.OpenLog(p.Files + "statements")
	if err != nil {
		return nil, err
	}
	return &linear.Store{Full: p.backend.store, Log: log}, nil
}

// now is the wall clock of this process, which the harness steps.
func (p *program) now() time.Time { return time.Now().Add(p.control.Load().Clock) }

func (p *program) record(r Record) { p.log.add(r) }

// A recordLog is a file of records.
type recordLog struct{ *os.File }

func openLog(path string) (recordLog, error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	return recordLog{file}, err
}

// add appends one record, stamped now, in one write.
func (l recordLog) add(r Record) {
	if r.At == 0 {
		r.At = bootTime()
	}
	if _, err := l.WriteString(r.String() + "\n"); err != nil {
		fmt.Fprintln(os.Stderr, "test program:", err)
		os.Exit(exitPanic) // a history with holes proves nothing
	}
}

// complain is for who looks for a fault. Nobody reads stderr under load.
func (p *program) complain(format string, args ...any) {
	if !p.Load {
		fmt.Fprintf(os.Stderr, format+"\n", args...)
	}
}

// observe is for schedlock.WithObserver.
func (p *program) observe(e schedlock.Event) {
	switch e.Kind {
	case schedlock.EventElected:
		p.record(Record{Kind: KindElected, Term: e.Term})
		select {
		case p.elected <- struct{}{}:
		default:
		}
	case schedlock.EventLost:
		p.record(Record{Kind: KindLost, Term: e.Term})
	case schedlock.EventReleased:
		p.record(Record{Kind: KindReleased, Term: e.Term})
	}
}

const (
	lookBelief  = 2 * time.Millisecond   // between two checks of a leader, or of a holder
	lookFrugal  = 5 * time.Millisecond   // likewise, in a frugal process
	lookStandby = 100 * time.Millisecond // between two looks whether it leads: it is told, too
)

// look is the time between two checks of what the process has.
func (s Shape) look() time.Duration {
	if s.Frugal {
		return lookFrugal
	}
	return lookBelief
}

// believe returns the step of the sampler: one leader check. The term is known
// only if the lease was the same before and after. The step returns the time until
// the next one.
func (p *program) believe() func() time.Duration {
	var (
		belief Belief
		line   int64 // the offset of belief's line
		at     = int64(-beliefLine)
		runs   int64 // before the belief

		due   = bootTime()  // the next step
		slept = due         // when it should have woken
		doubt time.Duration // until then a quiet process need not have noticed
	)
	check := func() time.Duration {
		lock := p.app.Lock()
		lease := lock.Lease()
		if lease == nil {
			return lookStandby
		}
		s := Sample{Before: bootTime()}
		leads := p.Quiet || leading(lock)
		s.After = bootTime()
		if p.Quiet && s.After < doubt || !leads || lock.Lease() != lease {
			return p.look()
		}
		if belief.Term != lease.Term() {
			at += beliefLine
			line, runs = at, p.runs.Load()
			belief = Belief{Term: lease.Term(), Quiet: p.Quiet, First: s}
		}
		belief.Last, belief.Runs = s, int(p.runs.Load()-runs)
		overwrite(p.beliefs, belief.line(), line)
		return p.look()
	}
	return func() time.Duration {
		now := bootTime()
		if now-due > freshBelief { // it was stopped, or had no time
			doubt = now + quietGrace
		}
		if now-slept > freshBelief {
			p.record(Record{Kind: KindStarved, Tick: slept.Microseconds()})
		}
		pause := check()
		due, slept = now+pause, bootTime()+pause
		return pause
	}
}

// leading reports whether the lock says that this process leads. One that
// drains still does.
func leading(lock *schedlock.Lock) bool {
	err := lock.IsLeader(context.Background())
	return err == nil || errors.Is(err, schedlock.ErrDraining)
}

// follow does what the harness tells the process.
func (p *program) follow(c Control) {
	was := p.control.Swap(&c)
	if was.Exhaust != c.Exhaust && p.backend.exhaust != nil {
		p.backend.exhaust(c.Exhaust)
	}
	if was.Order.Number != c.Order.Number { // it is not what the process before was told
		go p.give(c.Order)
	}
}

// give gives an order, and writes down what became of it.
func (p *program) give(o Order) {
	r := Record{Kind: o.Kind, Job: o.Job, Attempt: o.Number}
	p.record(r)
	ctx, cancel := context.WithTimeout(context.Background(), orderLimit)
	defer cancel()
	err, reason := error(nil), strconv.Itoa(o.Number)
	switch runner := p.app.Runner(); o.Kind {
	case KindAsking:
		var request ledger.Request
		request, err = runner.Trigger(ctx, o.Job, p.Name, reason)
		r.Kind, r.Tick = KindAsked, request.At.UnixMicro()
	case KindPausing:
		var pause ledger.Pause
		pause, err = runner.PauseAll(ctx, p.Name, reason)
		r.Kind, r.Tick = KindPaused, pause.Since.UnixMicro()
	case KindResuming:
		_, err = runner.ResumeAll(ctx, p.Name)
		r.Kind = KindResumed
	}
	if err != nil {
		p.complain("order %d: %v", o.Number, err)
		r.Kind, r.Tick = KindDeclined, 0
	}
	p.record(r)
}

// orderLimit is how long a process waits for the answer to an order.
const orderLimit = 3 * time.Second

// lookStage looks whether the process leads, and follows the harness, until it is stopped.
func (p *program) lookStage() startup.Stage {
	end, ended := make(chan struct{}), make(chan struct{})
	look := func() {
		defer close(ended)
		believe := p.believe()
		for next := time.NewTimer(0); ; {
			select {
			case <-end:
				return
			case c := <-p.told:
				p.follow(c)
				continue
			case <-p.elected:
			case <-next.C:
			}
			next.Reset(believe())
		}
	}
	return startup.Stage{Name: "look", After: []string{startup.StageDatabase},
		Start: func(context.Context) error { go look(); return nil },
		Stop:  func(context.Context) error { close(end); <-ended; return nil },
	}
}

// The two system calls of each look do not wait, so the scheduler of Go need not know of them:
// otherwise each look would wake its monitor thread, which costs more than the look itself.

// bootTime reads CLOCK_BOOTTIME.
func bootTime() time.Duration {
	var ts unix.Timespec
	if _, _, err := unix.RawSyscall(unix.SYS_CLOCK_GETTIME, unix.CLOCK_BOOTTIME,
		uintptr(unsafe.Pointer(&ts)), 0); err != 0 {
		panic(err)
	}
	return time.Duration(ts.Nano())
}

// overwrite writes a line into a file, at an offset.
func overwrite(file *os.File, line string, at int64) {
	if _, _, err := unix.RawSyscall6(unix.SYS_PWRITE64, file.Fd(),
		uintptr(unsafe.Pointer(unsafe.StringData(line))), uintptr(len(line)), uintptr(at), 0,
		0); err != 0 {
		panic(err)
	}
}
