package linear

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"

	"example.com/schedlock/internal/clock"
	"example.com/schedlock/internal/model"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/driver/namedlock"
	"example.com/schedlock/schedlock/driver/taskqueue"
	"example.com/schedlock/schedlock/ledger"
)

// A Log is the file in which a process writes down its calls. Each line is written at once, so
// that what a killed process has asked is known. Its methods may be called concurrently.
type Log struct {
	file *os.File

	mu sync.Mutex
	id int
}

// An event is a line: a call, or the answer to it.
type event struct {
	ID     int
	At     int64   // CLOCK_BOOTTIME, which all processes share
	Call   *Call   `json:",omitempty"`
	Result *Result `json:",omitempty"`
}

// OpenLog makes the file.
func OpenLog(path string) (*Log, error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	return &Log{file: file}, err
}

// write panics if it cannot: a history with holes proves nothing.
func (l *Log) write(e event) {
	e.At = int64(clock.System.Boot())
	line, err := json.Marshal(e)
	if err == nil {
		_, err = l.file.Write(append(line, '\n'))
	}
	if err != nil {
		panic(err)
	}
}

// Record makes a call and writes down both of its ends.
func (l *Log) Record(c Call, do func() (Result, error)) {
	l.mu.Lock()
	l.id++
	id := l.id
	l.mu.Unlock()
	l.write(event{ID: id, Call: &c})
	r, err := do()
	switch {
	case err == nil:
	case c.Op == Release:
		r.Answer = Unknown
	case errors.Is(err, driver.ErrLost), errors.Is(err, driver.ErrConflict):
		r.Answer = No
	case errors.Is(err, driver.ErrBlocked):
		r.Answer = Blocked
	default:
		r = Result{Answer: Unknown}
	}
	l.write(event{ID: id, Result: &r})
}

// Read returns what a process has written; nothing if it has made no file.
func Read(path string) (history []Op, err error) {
	file, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	defer file.Close()
	index := map[int]int{}
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		var e event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			return nil, fmt.Errorf("%s: line %.200q: %w", path, lines.Text(), err)
		}
		if e.Call != nil {
			index[e.ID] = len(history)
			history = append(history, Op{Call: *e.Call, Result: Result{Answer: Unknown},
				From: e.At, To: Never})
			continue
		}
		op := &history[index[e.ID]]
		if op.Result = *e.Result; op.Answer != Unknown {
			op.To = e.At
		}
	}
	return history, lines.Err()
}

// Full is what a store of this module can do.
type Full interface {
	driver.Store
	ledger.Store
	Named() namedlock.Store
	Queue() taskqueue.Store
	Close() error
}

// A Store writes down its statements on the lock row.
type Store struct {
	Full
	Log *Log
}

// Look implements driver.Store.
func (s *Store) Look(ctx context.Context) (view driver.Snapshot, err error) {
	return s.look(ctx, s.Full.Look)
}

// LookAtSession implements driver.Store.
func (s *Store) LookAtSession(ctx context.Context) (view driver.Snapshot, err error) {
	return s.look(ctx, s.Full.LookAtSession)
}

func (s *Store) look(ctx context.Context, look func(context.Context) (driver.Snapshot, error)) (
	view driver.Snapshot, err error) {
	s.Log.Record(Call{Op: Look}, func() (Result, error) {
		view, err = look(ctx)
		return Result{Answer: Yes, Saw: rowOf(view)}, err
	})
	return view, err
}

func rowOf(view driver.Snapshot) (r model.Row) {
	if view.Row != nil {
		r.Token, r.Beat = view.Row.Token.String(), view.Row.Beat
	}
	if view.Newest != nil {
		r.Newest, r.Open = view.Newest.Token.String(), view.Newest.Open()
	}
	return r
}

// Acquire implements driver.Store.
func (s *Store) Acquire(ctx context.Context, c driver.Claim) (grant driver.Grant, err error) {
	s.Log.Record(Call{Op: Acquire, Token: c.Token.String(), Judged: rowOf(c.Expected),
		Watched: c.Watched}, func() (Result, error) {
		grant, err = s.Full.Acquire(ctx, c)
		return Result{Answer: Yes, Term: grant.Term}, err
	})
	return grant, err
}

// Heartbeat implements driver.Store.
func (s *Store) Heartbeat(ctx context.Context, ref driver.Ref, state driver.State) (
	renewal driver.Renewal, err error) {
	s.Log.Record(Call{Op: Renew, Token: ref.Token.String()}, func() (Result, error) {
		renewal, err = s.Full.Heartbeat(ctx, ref, state)
		return Result{Answer: Yes}, err
	})
	return renewal, err
}

// Release implements driver.Store.
func (s *Store) Release(ctx context.Context, ref driver.Ref, reason driver.EndReason) (
	deleted bool, err error) {
	s.Log.Record(Call{Op: Release, Token: ref.Token.String()}, func() (Result, error) {
		deleted, err = s.Full.Release(ctx, ref, reason)
		return Result{Answer: answer(deleted)}, err
	})
	return deleted, err
}

func answer(so bool) string {
	if so {
		return Yes
	}
	return No
}
