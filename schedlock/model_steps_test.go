package schedlock_test

import (
	"context"
	"testing/synctest"
	"time"

	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/driver"
)

// edits are what somebody does to the row by hand.
var edits = map[string]func(*driver.Row){
	"edit token": func(r *driver.Row) { r.RawToken = "garbage" },
	"edit term":  func(r *driver.Row) { r.Term++ },
	"edit beat":  func(r *driver.Row) { r.Beat += 1000 },
	"edit ttl":   func(r *driver.Row) { r.Timing.TTL = time.Millisecond },
	"revoke":     func(r *driver.Row) { r.State = driver.StateRevoked },
}

func (f *fleet) do(s step) {
	i := s.replica % len(f.members)
	if s.ofLeader {
		i = f.leader(i)
	}
	m := f.members[i]
	f.mu.Lock()
	witnessing := f.restoredAt != 0
	f.mu.Unlock()
	if edit, known := edits[s.what]; known {
		f.log("%s: %v", s.what, f.db.Edit(edit))
		return
	}
	switch s.what {
	case "clock +1h":
		f.offset.Add(int64(time.Hour))
	case "clock -1h":
		f.offset.Add(-int64(time.Hour))
	case "delete row":
		f.db.DeleteRow()
	case "backup":
		f.restore, f.backedUp = f.db.Backup(), f.newest().Term
	case "restore":
		f.restoreBackup()
		return
	case "start":
		if m == nil && !witnessing {
			f.launch(i)
		}
		return
	default:
		if m != nil && !(witnessing && (s.what == "leave" || s.what == "kill")) {
			f.log("%d: %s, fault %d after %v on %v", i, s.what, s.fault.kind, s.fault.after, s.ops)
			f.hurt(i, m, s)
		}
		return
	}
	f.log("%s", s.what)
}

// hurt does to a member what a step says.
func (f *fleet) hurt(i int, m *member, s step) {
	switch s.what {
	case "fault":
		m.db.set(s.fault, s.ops...)
	case "pause":
		m.db.set(fault{kind: frozen})
	case "heal":
		m.conn.set(func() { m.conn.silent, m.conn.slow = false, 0 })
		m.db.heal()
	case "slow":
		m.conn.set(func() { m.conn.slow = s.slow })
	case "refuse", "accept":
		m.conn.refuse(s.what == "refuse")
	case "cut":
		f.cut(m)
	case "end":
		f.end(m, s.seen, s.told)
	case "unread":
		m.conn.set(func() {
			if x := m.conn.session; x != nil && !x.over.Load() {
				x.unread.Store(true)
				f.after(time.Duration(s.told*float64(m.grace)), func() {
					x.unread.Store(x.over.Load())
				})
			}
		})
	case "stop":
		f.stop(m)
	case "standstill": // in which its session ends
		f.stop(m)
		f.end(m, s.seen, s.told)
		f.after(s.still, func() { f.goOn(m) })
	case "go on":
		f.goOn(m)
	case "leave", "kill":
		if s.what == "leave" {
			close(m.leave)
			select {
			case <-m.done:
			case <-time.After(30 * time.Second): // somebody kills it
			}
		}
		f.mu.Lock()
		f.members[i] = nil
		f.mu.Unlock()
		m.db.set(fault{kind: broken}) // nothing it sends arrives any more
		m.conn.set(func() {
			if m.conn.session != nil && !m.conn.silent {
				m.conn.session.over.Store(true)
			}
		})
		m.conn.goOn()
		m.kill()
	}
}

// after does something a time later.
func (f *fleet) after(d time.Duration, do func()) {
	f.news.Go(func() {
		time.Sleep(d)
		do()
	})
}

// end lets the server end the session of m, which hears of it in time: the
// server can tell it.
func (f *fleet) end(m *member, seen, told float64) {
	m.conn.set(func() {
		x := m.conn.session
		if x == nil || x.over.Load() || m.conn.silent {
			return
		}
		x.over.Store(true)
		limit := float64(m.grace / 4)
		f.after(time.Duration(seen*limit), func() { x.unread.Store(true) })
		f.after(time.Duration(max(seen, told)*limit), func() {
			m.conn.wait()
			x.notice()
		})
	})
}

// cut lets nothing through any more. The server keeps the session for the TTL,
// as it was asked to, and then nobody hears of its end.
func (f *fleet) cut(m *member) {
	m.conn.set(func() {
		x := m.conn.session
		m.conn.silent = true
		if x == nil {
			return
		}
		f.after(m.timing.TTL, func() {
			m.conn.set(func() {
				if m.conn.silent && m.conn.session == x {
					x.over.Store(true)
				}
			})
		})
	})
}

func (f *fleet) stop(m *member) {
	synctest.Wait()
	m.conn.stop()
	f.mu.Lock()
	m.stopped = true
	f.mu.Unlock()
}

func (f *fleet) goOn(m *member) {
	f.mu.Lock()
	m.stopped, m.woke = false, time.Now()
	f.mu.Unlock()
	f.sample() // the first question, before anything else of it runs
	m.conn.goOn()
}

func (f *fleet) newest() driver.Ref {
	terms, err := f.db.Terms(context.Background(), 1)
	if err != nil || len(terms) == 0 {
		return driver.Ref{}
	}
	return terms[0].Ref
}

// restoreBackup brings back an earlier term, if there is a replica, every one
// has seen the newest, and none is about to take over.
func (f *fleet) restoreBackup() {
	newest := f.newest()
	witnesses := f.running()
	if f.backedUp >= newest.Term || len(witnesses) == 0 {
		return
	}
	for _, m := range f.launched {
		if m.db.acquiring.Load() > 0 {
			return // "at the very moment of a take-over" is a limit too
		}
	}
	for _, m := range witnesses {
		if known := schedlock.Known(m.lock); known.Term < newest.Term ||
			known.Term == newest.Term && known.Token != newest.Token {
			return
		}
	}
	f.restore()
	f.mu.Lock()
	f.restoredAt = newest.Term
	f.mu.Unlock()
	f.log("restore: newest term %d instead of %d", f.backedUp, newest.Term)
}

// recover ends all faults: somebody must lead soon, and stay.
func (f *fleet) recover() {
	f.log("all faults end")
	for _, m := range f.running() {
		m.conn.set(func() { m.conn.silent, m.conn.slow, m.conn.refused = false, 0, false })
		m.db.heal()
		f.goOn(m)
	}
	if len(f.running()) == 0 {
		f.launch(0)
	}
	time.Sleep(maxAfter) // what is still under way arrives or ends
	within := func(bound time.Duration) *member {
		for healed := time.Now(); time.Since(healed) <= bound; time.Sleep(time.Second) {
			for _, m := range f.running() {
				if m.leads() {
					return m
				}
			}
		}
		f.violate("nobody leads %v after the faults have ended", bound)
		return nil
	}
	if within(maxTTL+15*time.Second) == nil {
		return
	}
	time.Sleep(20 * time.Second) // the next heartbeat notices what was edited
	first := within(maxTTL + 15*time.Second)
	if first == nil {
		return
	}
	term := first.lock.Status().Term
	time.Sleep(2 * maxTTL)
	if !first.leads() || first.lock.Status().Term != term {
		f.violate("the leader changed though nothing was wrong")
	}
}
