package simulate

import (
	"context"
	"maps"
	"slices"
	"strconv"
	"time"

	"example.com/schedlock/internal/faults"
	"example.com/schedlock/schedlock/driver"
)

// act does what a fault does besides meeting statements.
func (w *world) act(f fault) {
	p := w.process(f.Replica)
	ctx := context.Background()
	switch f.Kind {
	case clock:
		w.offset.Add(int64(f.Delay))
	case deleteRow:
		w.db.DeleteRow()
	case falseNews:
		v, err := w.db.Look(ctx)
		if f.Ops == "row" {
			w.db.DeleteRow()
		}
		if err == nil && v.Row != nil {
			w.notify(driver.Release{Term: v.Row.Term, At: v.Now})
		}
	case editRow:
		w.db.Edit(func(r *driver.Row) {
			switch f.Ops {
			case "token":
				r.RawToken = "garbage"
			case "term":
				r.Term++
			case "beat":
				r.Beat += 1000
			case "ttl":
				r.Timing.TTL = time.Millisecond
			case "state":
				r.State = driver.StateRevoked
			}
		})
	case revoke:
		if v, err := w.db.Look(ctx); err == nil && v.Row != nil {
			_, _ = w.db.Revoke(ctx, v.Row.Term, "operator", "")
		}
	case crash, leave:
		if p == nil || w.witnessing() {
			return
		}
		ended := w.planned() + f.For
		if f.Kind == crash {
			p.kill()
		} else {
			p.stop()
			<-p.ended
		}
		time.Sleep(ended - w.planned())
		w.launch(f.Replica)
	case trigger:
		w.trigger(p)
	case pause:
		w.pause(p, f.For)
	case endSession, unread:
		if p != nil {
			p.endSession(f)
		}
	case backup:
		w.backUp(f)
	}
}

// backUp makes a backup of the database, and restores it a while later: if it knows less than the
// database then, all replicas know the newest term, and none is about to acquire the lock. After
// that only they know the terms that were lost, so none starts or ends until somebody has won.
// That a replica which was not there may lead too early is a limit of the design.
func (w *world) backUp(f fault) {
	restore, term := w.db.Backup(), w.newest()
	w.mu.Lock()
	commits, writes := maps.Clone(w.commits), slices.Clone(w.history.Writes)
	w.mu.Unlock()
	time.Sleep(f.At + f.For - w.planned())
	newest := w.newest()
	w.mu.Lock()
	defer w.mu.Unlock()
	paused := func(f fault) bool { return f.Kind == pause && f.At <= w.planned() } // or was
	if term == newest || w.acquiring.Load() > 0 || w.restored != 0 ||
		slices.ContainsFunc(w.plan.Faults, paused) {
		return
	}
	for _, p := range w.now {
		if p == nil || !p.cached.Load() || p.asked.Load() != 0 || p.known.Load() != newest {
			return
		}
	}
	w.note("a backup is restored: newest term %d instead of %d", term, newest)
	for _, p := range w.all {
		for tx := range p.open {
			_ = tx.Rollback()
		}
	}
	restore()
	w.commits, w.history.Writes, w.restored = commits, writes, w.at()
}

// witnessing reports whether nobody has won since a backup was restored.
func (w *world) witnessing() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.restored != 0
}

// newest is the newest term of the history, 0 if there is none.
func (w *world) newest() int64 {
	v, err := w.db.Look(context.Background())
	if err != nil || v.Newest == nil {
		return 0
	}
	return v.Newest.Term
}

// order writes a step of an order down, and returns its number.
func (w *world) order(k faults.Kind, number int, job string, at time.Time) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	if number == 0 {
		w.asks++
		number = w.asks
	}
	r := faults.Record{At: w.at(), Kind: k, Attempt: number, Job: job}
	if !at.IsZero() {
		r.Tick = at.UnixMicro()
	}
	w.orders = append(w.orders, r)
	return number
}

const operator = "operator"

func (w *world) trigger(p *process) {
	if p == nil || p.app.Runner() == nil {
		return
	}
	job := [...]string{jobTick, jobSlow, jobOdd}[w.plan.Members[p.replica].Timing%3]
	n := w.order(faults.KindAsking, 0, job, time.Time{})
	r, err := p.app.Runner().Trigger(context.Background(), job, operator, strconv.Itoa(n))
	if err == nil {
		w.order(faults.KindAsked, n, job, r.At)
	}
}

func (w *world) pause(p *process, lasts time.Duration) {
	if p == nil || p.app.Runner() == nil {
		return
	}
	begin := time.Now()
	n := w.order(faults.KindPausing, 0, "", time.Time{})
	got, err := p.app.Runner().PauseAll(context.Background(), operator, strconv.Itoa(n))
	if err == nil {
		w.mu.Lock()
		since := w.commits["pause "+got.Reason]
		w.mu.Unlock()
		w.order(faults.KindPaused, n, "", time.UnixMicro(since.Microseconds()))
	}
	time.Sleep(lasts - time.Since(begin))
	w.resume()
}

// resume ends the pause of all jobs, past the network.
func (w *world) resume() {
	time.Sleep(137 * time.Microsecond) // else nobody knows whether a pause of just that time is over
	n := w.order(faults.KindResuming, 0, "", time.Time{})
	if _, err := w.db.Resume(context.Background(), "", operator); err == nil {
		w.order(faults.KindResumed, n, "", time.Time{})
	}
}
