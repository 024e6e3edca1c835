package rules

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"pgregory.net/rapid"

	"example.com/schedlock/internal/rules/rulestest"
	"example.com/schedlock/schedlock/driver"
)

const fallbackTTL = 40 * time.Second

func TestOverFromTheRenewDeadlineOn(t *testing.T) {
	assert.False(t, Over(0, time.Second))
	assert.False(t, Over(time.Second-1, time.Second))
	assert.True(t, Over(time.Second, time.Second))
	assert.True(t, Over(math.MaxInt64, time.Second))
}

func TestJudge(t *testing.T) {
	const s = time.Second
	for _, tc := range []struct {
		name   string
		view   driver.Snapshot
		known  driver.Term
		want   Verdict
		reason driver.EndReason
		ttl    time.Duration
	}{
		// A row: somebody may hold it.
		{"a held lock", driver.Snapshot{Row: rulestest.RowOf(rulestest.TokenA, 5, 1, 60*s),
			Newest: rulestest.OpenTerm(rulestest.TokenA, 5, 60*s)}, driver.Term{}, Wait,
			driver.EndExpired, 60 * s},
		{"a row without history", driver.Snapshot{Row: rulestest.RowOf(rulestest.TokenA, 5, 1,
			60*s)}, driver.Term{}, Wait, driver.EndExpired, 60 * s},
		{"its holder lives", driver.Snapshot{Row: rulestest.RowOf(rulestest.TokenA, 5, 1, 60*s),
			Newest: rulestest.OpenTerm(rulestest.TokenA, 5, 60*s), Sign: driver.SignAlive},
			driver.Term{}, Wait, driver.EndExpired, 60 * s},
		{"its holder is proven dead", driver.Snapshot{Row: rulestest.RowOf(rulestest.TokenA, 5, 1,
			60*s), Newest: rulestest.OpenTerm(rulestest.TokenA, 5, 60*s), Sign: driver.SignDead},
			driver.Term{}, Gone, driver.EndProvenDead, 60 * s},
		{"a leftover: its own term has ended",
			driver.Snapshot{Row: rulestest.RowOf(rulestest.TokenA, 5, 1, 60*s),
				Newest: rulestest.EndedTerm(rulestest.TokenA, 5, 60*s)}, driver.Term{}, Gone,
			driver.EndExpired, 60 * s},
		{"the same after its token was edited",
			driver.Snapshot{Row: rulestest.RowOf(driver.Token{}, 5, 1, 60*s),
				Newest: rulestest.EndedTerm(rulestest.TokenA, 5, 60*s)}, driver.Term{}, Gone,
			driver.EndExpired, 60 * s},
		{"another term has ended: no leftover",
			driver.Snapshot{Row: rulestest.RowOf(rulestest.TokenA, 5, 1, 60*s),
				Newest: rulestest.EndedTerm(rulestest.TokenB, 4, 90*s)}, driver.Term{}, Wait,
			driver.EndExpired, 60 * s},
		{"a later term has ended: the row was restored",
			driver.Snapshot{Row: rulestest.RowOf(rulestest.TokenA, 5, 1, 60*s),
				Newest: rulestest.EndedTerm(rulestest.TokenB, 6, 90*s)}, driver.Term{}, Wait,
			driver.EndExpired, 60 * s},
		{"a later term is open: both may hold it",
			driver.Snapshot{Row: rulestest.RowOf(rulestest.TokenA, 5, 1, 60*s),
				Newest: rulestest.OpenTerm(rulestest.TokenB, 6, 90*s)}, driver.Term{}, Wait,
			driver.EndExpired, 90 * s},

		// The row's TTL, whatever stands there.
		{"TTL edited down: the history's counts",
			driver.Snapshot{Row: rulestest.RowOf(rulestest.TokenA, 5, 1, s),
				Newest: rulestest.OpenTerm(rulestest.TokenA, 5, 60*s)}, driver.Term{}, Wait,
			driver.EndExpired, 60 * s},
		{"TTL edited to 0", driver.Snapshot{Row: rulestest.RowOf(rulestest.TokenA, 5, 1, 0)},
			driver.Term{}, Wait, driver.EndExpired, fallbackTTL},
		{"TTL edited below 0", driver.Snapshot{Row: rulestest.RowOf(rulestest.TokenA, 5, 1, -5*s),
			Newest: rulestest.OpenTerm(rulestest.TokenA, 5, -s)}, driver.Term{}, Wait,
			driver.EndExpired, fallbackTTL},
		{"TTL edited to for ever", driver.Snapshot{Row: rulestest.RowOf(rulestest.TokenA, 5, 1,
			math.MaxInt64)}, driver.Term{}, Wait, driver.EndExpired, driver.MaxTTL},
		{"the history's edited to for ever",
			driver.Snapshot{Newest: rulestest.OpenTerm(rulestest.TokenA, 5, math.MaxInt64)},
			driver.Term{}, Wait, driver.EndExpired, driver.MaxTTL},

		// No row: not a free lock by itself.
		{"a new database", driver.Snapshot{}, driver.Term{}, Free, driver.EndExpired, fallbackTTL},
		{"released", driver.Snapshot{Newest: rulestest.EndedTerm(rulestest.TokenA, 5, 60*s)},
			driver.Term{}, Free, driver.EndExpired, fallbackTTL},
		{"deleted by hand: its TTL must pass",
			driver.Snapshot{Newest: rulestest.OpenTerm(rulestest.TokenA, 5, 60*s)}, driver.Term{},
			Wait, driver.EndExpired, 60 * s},
		{"deleted by hand, TTL unknown",
			driver.Snapshot{Newest: rulestest.OpenTerm(rulestest.TokenA, 5, 0)}, driver.Term{},
			Wait, driver.EndExpired, fallbackTTL},
		{"deleted by hand, its holder proven dead",
			driver.Snapshot{Newest: rulestest.OpenTerm(rulestest.TokenA, 5, 60*s),
				Sign: driver.SignDead}, driver.Term{}, Gone, driver.EndProvenDead, 60 * s},
		{"deleted by hand, its holder lives",
			driver.Snapshot{Newest: rulestest.OpenTerm(rulestest.TokenA, 5, 60*s),
				Sign: driver.SignAlive}, driver.Term{}, Wait, driver.EndExpired, 60 * s},
		{"released, but somebody holds what only a leader has",
			driver.Snapshot{Newest: rulestest.EndedTerm(rulestest.TokenA, 5, 60*s),
				Sign: driver.SignAlive}, driver.Term{}, Wait, driver.EndExpired, fallbackTTL},
		{"a new database beside what only a leader has", driver.Snapshot{Sign: driver.SignAlive},
			driver.Term{}, Wait, driver.EndExpired, fallbackTTL},

		// A restored backup: the database knows less than we do.
		{"we know a newer term that was open",
			driver.Snapshot{Newest: rulestest.EndedTerm(rulestest.TokenA, 5, 60*s)},
			*rulestest.OpenTerm(rulestest.TokenB, 9, 90*s), Wait, driver.EndExpired, 90 * s},
		{"we know a newer term that had ended",
			driver.Snapshot{Newest: rulestest.EndedTerm(rulestest.TokenA, 5, 60*s)},
			*rulestest.EndedTerm(rulestest.TokenB, 9, 90*s), Free, driver.EndExpired, fallbackTTL},
		{"an emptied database, and we know an open term", driver.Snapshot{},
			*rulestest.OpenTerm(rulestest.TokenB, 9, 90*s), Wait, driver.EndExpired, 90 * s},
		{"an emptied database, and we know its term had ended", driver.Snapshot{},
			*rulestest.EndedTerm(rulestest.TokenB, 9, 90*s), Free, driver.EndExpired, fallbackTTL},
		{"proof of another's death does not count",
			driver.Snapshot{Newest: rulestest.OpenTerm(rulestest.TokenA, 5, 60*s),
				Sign: driver.SignDead}, *rulestest.OpenTerm(rulestest.TokenB, 9, 30*s), Wait,
			driver.EndExpired, 60 * s},
		{"nor in a restored row", driver.Snapshot{Row: rulestest.RowOf(rulestest.TokenA, 5, 1,
			60*s), Newest: rulestest.OpenTerm(rulestest.TokenA, 5, 60*s), Sign: driver.SignDead},
			*rulestest.OpenTerm(rulestest.TokenB, 9, 90*s), Wait, driver.EndExpired, 90 * s},
		{"nor does the end of a restored row's term",
			driver.Snapshot{Row: rulestest.RowOf(rulestest.TokenA, 5, 1, 60*s),
				Newest: rulestest.EndedTerm(rulestest.TokenA, 5, 60*s)},
			*rulestest.OpenTerm(rulestest.TokenB, 9, 90*s), Wait, driver.EndExpired, 90 * s},
		{"the known term is in the table: the table counts",
			driver.Snapshot{Newest: rulestest.EndedTerm(rulestest.TokenB, 9, 90*s)},
			*rulestest.OpenTerm(rulestest.TokenB, 9, 90*s), Free, driver.EndExpired, fallbackTTL},
		{"the history was emptied, the known row stands, its holder is dead",
			driver.Snapshot{Row: rulestest.RowOf(rulestest.TokenB, 9, 1, 90*s),
				Sign: driver.SignDead}, *rulestest.OpenTerm(rulestest.TokenB, 9, 90*s), Gone,
			driver.EndProvenDead, 90 * s},
		{"the same row with another token",
			driver.Snapshot{Row: rulestest.RowOf(rulestest.TokenA, 9, 1, 90*s),
				Sign: driver.SignDead}, *rulestest.OpenTerm(rulestest.TokenB, 9, 90*s), Wait,
			driver.EndExpired, 90 * s},
	} {
		t.Run(tc.name, func(t *testing.T) {
			j := Judge(tc.view, tc.known, fallbackTTL)
			assert.Equal(t, tc.want, j.Verdict)
			assert.Equal(t, tc.ttl, j.TTL)
			if j.Verdict != Free {
				assert.Equal(t, tc.reason, j.Reason)
			}
		})
	}
}

func TestJudgeOfAnEndedSession(t *testing.T) {
	const s = time.Second
	// held is a row whose holder's session has ended.
	held := func(change func(*driver.Snapshot)) driver.Snapshot {
		v := driver.Snapshot{Row: rulestest.RowOf(rulestest.TokenA, 5, 1, 60*s),
			Newest: rulestest.OpenTerm(rulestest.TokenA, 5, 60*s), Sign: driver.SignEnded}
		v.Row.Grace = 5 * s
		change(&v)
		return v
	}
	for _, tc := range []struct {
		name  string
		view  driver.Snapshot
		known driver.Term
		want  Verdict
		grace time.Duration
	}{
		{"its grace counts", held(func(*driver.Snapshot) {}), driver.Term{}, Wait, 5 * s},
		{"and is shown to whoever led before", held(func(*driver.Snapshot) {}),
			*rulestest.EndedTerm(rulestest.TokenB, 4, 60*s), Wait, 5 * s},
		{"without history", held(func(v *driver.Snapshot) {
			v.Newest = nil
		}), driver.Term{}, Wait, 5 * s},
		{"known to hold it", held(func(*driver.Snapshot) {}),
			*rulestest.OpenTerm(rulestest.TokenA, 5, 60*s), Wait, 5 * s},
		{"longer than a day", held(func(v *driver.Snapshot) {
			v.Row.Grace = math.MaxInt64
		}), driver.Term{}, Wait, driver.MaxTTL},
		{"no grace", held(func(v *driver.Snapshot) { v.Row.Grace = 0 }), driver.Term{}, Wait, 0},
		{"a grace below 0", held(func(v *driver.Snapshot) {
			v.Row.Grace = math.MinInt64
		}), driver.Term{}, Wait, 0},
		{"cannot tell", held(func(v *driver.Snapshot) {
			v.Sign = driver.SignNone
		}), driver.Term{}, Wait, 0},
		{"the holder lives", held(func(v *driver.Snapshot) {
			v.Sign = driver.SignAlive
		}), driver.Term{}, Wait, 0},
		{"the holder is proven dead", held(func(v *driver.Snapshot) {
			v.Sign = driver.SignDead
		}), driver.Term{}, Gone, 0},
		{"a leftover: its own term has ended", held(func(v *driver.Snapshot) {
			v.Newest = rulestest.EndedTerm(rulestest.TokenA, 5, 60*s)
		}), driver.Term{}, Gone, 0},
		{"after a fail-over", held(func(v *driver.Snapshot) {
			v.FailedOver = true
		}), driver.Term{}, Wait, 0},
		{"a leftover after a fail-over", held(func(v *driver.Snapshot) {
			v.FailedOver, v.Newest = true, rulestest.EndedTerm(rulestest.TokenA, 5, 60*s)
		}), driver.Term{}, Wait, 0},
		{"we know a newer term that was open", held(func(*driver.Snapshot) {}),
			*rulestest.OpenTerm(rulestest.TokenB, 9, 60*s), Wait, 0},
		{"we know a newer term that had ended", held(func(*driver.Snapshot) {}),
			*rulestest.EndedTerm(rulestest.TokenB, 9, 60*s), Wait, 5 * s},
		{"no row", held(func(v *driver.Snapshot) { v.Row = nil }), driver.Term{}, Wait, 0},
		{"no row, and the lock is free", held(func(v *driver.Snapshot) {
			v.Row, v.Newest = nil, nil
		}), driver.Term{}, Free, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			j := Judge(tc.view, tc.known, fallbackTTL)
			assert.Equal(t, tc.want, j.Verdict)
			assert.Equal(t, tc.grace, j.Grace)
		})
	}
}

func TestWatchKeyIsWhatALivingHolderChanges(t *testing.T) {
	view := func() driver.Snapshot {
		return driver.Snapshot{Row: rulestest.RowOf(rulestest.TokenA, 5, 7, time.Minute),
			Newest: rulestest.OpenTerm(rulestest.TokenA, 5,
				time.Minute), Incarnation: "e", Now: rulestest.Noon}
	}
	key := func(change func(*driver.Snapshot)) WatchKey {
		v := view()
		change(&v)
		return Judge(v, driver.Term{}, fallbackTTL).Key
	}
	same := key(func(*driver.Snapshot) {})
	for name, change := range map[string]func(*driver.Snapshot){
		"a heartbeat":     func(v *driver.Snapshot) { v.Row.Beat++ },
		"another session": func(v *driver.Snapshot) { v.Row.Session = "4712 1" },
		"another token": func(v *driver.Snapshot) {
			v.Row.RawToken = rulestest.TokenB.String()
		},
		"a token that is none": func(v *driver.Snapshot) {
			v.Row.Token, v.Row.RawToken = driver.Token{}, "x"
		},
		"another term":       func(v *driver.Snapshot) { v.Row.Term++ },
		"the row is gone":    func(v *driver.Snapshot) { v.Row = nil },
		"a newer term":       func(v *driver.Snapshot) { v.Newest.Term++ },
		"the term has ended": func(v *driver.Snapshot) { v.Newest.EndedAt = rulestest.Noon },
		"no history":         func(v *driver.Snapshot) { v.Newest = nil },
		"another server":     func(v *driver.Snapshot) { v.Incarnation = "f" },
		"two edited tokens (1)": func(v *driver.Snapshot) {
			v.Row.Token, v.Row.RawToken = driver.Token{}, "y"
		},
	} {
		assert.NotEqual(t, same, key(change), name)
	}
	a := key(func(v *driver.Snapshot) { v.Row.Token, v.Row.RawToken = driver.Token{}, "x" })
	b := key(func(v *driver.Snapshot) { v.Row.Token, v.Row.RawToken = driver.Token{}, "y" })
	assert.NotEqual(t, a, b, "two tokens that somebody edited into no-tokens")
	for name, change := range map[string]func(*driver.Snapshot){
		"the heartbeat's stamp": func(v *driver.Snapshot) {
			v.Row.HeartbeatAt = rulestest.Noon.Add(time.Hour)
		},
		"the creation's stamp": func(v *driver.Snapshot) {
			v.Row.CreatedAt = rulestest.Noon.Add(-time.Hour)
		},
		"the database's clock": func(v *driver.Snapshot) { v.Now = rulestest.Noon.Add(time.Hour) },
		"the state":            func(v *driver.Snapshot) { v.Row.State = driver.StateDraining },
		"pid and hostname": func(v *driver.Snapshot) {
			v.Row.Owner = driver.Owner{PID: 2, Hostname: "x"}
		},
		"its session has ended": func(v *driver.Snapshot) { v.Sign = driver.SignEnded },
		"the grace":             func(v *driver.Snapshot) { v.Row.Grace = time.Second },
	} {
		assert.Equal(t, same, key(change), name)
	}
}

func TestFreshByTheDatabasesClockOnly(t *testing.T) {
	for _, tc := range []struct {
		age  time.Duration
		want bool
	}{{-time.Nanosecond, false}, {0, true}, {59 * time.Second, true}, {time.Minute,
		false}, {-time.Hour, false}, {time.Hour, false}} {
		v := driver.Snapshot{Row: rulestest.RowOf(rulestest.TokenA, 5, 1, time.Minute),
			Now: rulestest.Noon.Add(tc.age)}
		assert.Equal(t, tc.want, Fresh(v, time.Minute), "age %v", tc.age)
	}
}

func TestWatchCountsFromTheAnswerToTheNextLooksSending(t *testing.T) {
	at := func(s int) time.Time { return rulestest.Noon.Add(time.Duration(s) * time.Second) }
	k1, k2 := WatchKey{Beat: 1}, WatchKey{Beat: 2}
	var w Watch
	assert.Equal(t, time.Duration(math.MaxInt64), w.Remaining(time.Minute, at(9999)),
		"nothing seen: never complete")
	w = w.Saw(k1, at(10))
	assert.Equal(t, 61*time.Second, w.Remaining(time.Minute, at(9)),
		"a look sent before that answer proves nothing")
	w = w.Saw(k1, at(40))
	assert.Equal(t, time.Second, w.Remaining(time.Minute, at(69)),
		"the same key: the first look counts")
	assert.Zero(t, w.Remaining(time.Minute, at(70)))
	w = w.Saw(k2, at(70))
	assert.Equal(t, time.Minute, w.Remaining(time.Minute, at(70)), "the holder lives: anew")
	w = w.Saw(k1, at(75))
	assert.Equal(t, time.Minute, w.Remaining(time.Minute, at(75)), "back to an earlier key: anew")
	w = w.Saw(WatchKey{Beat: 1, Epoch: "other"}, at(80))
	assert.Equal(t, time.Minute, w.Remaining(time.Minute, at(80)), "another server: anew")
}

func TestJudgeProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v := rulestest.DrawView(t)
		known := *rulestest.OpenTerm(rulestest.TokenB, rapid.Int64Range(0, 5).Draw(t, "known"),
			time.Minute)
		if rapid.Bool().Draw(t, "known ended") {
			known.EndedAt = rulestest.Noon
		}
		j := Judge(v, known, fallbackTTL)
		if j.TTL <= 0 || j.TTL > driver.MaxTTL {
			t.Fatalf("a watch of %v", j.TTL)
		}
		if v.Row != nil {
			if j.Verdict == Free {
				t.Fatal("a lock with a row is never free")
			}
			if ttl := clampTTL(v.Row.Timing.TTL); j.TTL < ttl {
				t.Fatalf("a watch of %v, but the row's TTL is %v", j.TTL, ttl)
			}
		}
		open := v.Newest != nil && v.Newest.Open()
		if open && j.TTL < clampTTL(v.Newest.TTL) {
			t.Fatalf("a watch of %v, but the open term's TTL is %v", j.TTL, v.Newest.TTL)
		}
		if open && j.Verdict != Wait && v.Sign != driver.SignDead {
			t.Fatalf("verdict %d, but the newest term has no end and nobody proved its death",
				j.Verdict)
		}
		if j.Verdict != Wait && v.Row == nil && v.Sign == driver.SignAlive {
			t.Fatal("somebody has what only a leader has")
		}
		newest := int64(0)
		if v.Newest != nil {
			newest = v.Newest.Term
		}
		bears := v.Row != nil && v.Row.Term == known.Term && v.Row.Token == known.Token
		if known.Open() && known.Term > newest && !bears &&
			(j.Verdict != Wait || j.TTL < known.TTL) {
			t.Fatalf("verdict %d after %v, but we know an open term that the database does not",
				j.Verdict, j.TTL)
		}

		if j.Grace < 0 || j.Grace > driver.MaxTTL {
			t.Fatalf("a grace of %v", j.Grace)
		}
		if j.Grace > 0 && (v.Row == nil || v.Row.Grace <= 0 || v.Sign != driver.SignEnded ||
			v.FailedOver || j.Verdict != Wait || known.Open() && known.Term > newest && !bears) {
			t.Fatalf("a grace of %v, but nothing says that the holder's session has ended", j.Grace)
		}
		if v.Sign == driver.SignEnded { // it ends nothing by itself
			blind := v
			blind.Sign = driver.SignNone
			b := Judge(blind, known, fallbackTTL)
			if b.Grace = j.Grace; b != j {
				t.Fatal("an ended session changed more than the grace")
			}
		}

		// No stamp and no clock changes anything.
		moved := v
		moved.Now = v.Now.Add(time.Hour)
		if v.Row != nil {
			row := *v.Row
			row.HeartbeatAt, row.CreatedAt = row.HeartbeatAt.Add(-time.Hour),
				row.CreatedAt.Add(time.Hour)
			moved.Row = &row
		}
		if Judge(moved, known, fallbackTTL) != j {
			t.Fatal("a stamp changed the judgement")
		}
	})
}

// TestWatchProperties compares the watch with the rule as it is written: two
// looks, the second sent at least the TTL after the first was answered, and
// nothing else seen between them.
func TestWatchProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		type look struct {
			key            WatchKey
			sent, answered time.Time
		}
		var (
			w     Watch
			looks []look
			now   = rulestest.Noon
		)
		for range rapid.IntRange(1, 20).Draw(t, "looks") {
			gap := func(name string) time.Duration {
				return time.Duration(rapid.IntRange(0, 40).Draw(t, name)) * time.Second
			}
			l := look{key: WatchKey{Beat: rapid.Int64Range(0, 1).Draw(t, "beat"),
				Epoch: rapid.SampledFrom([]string{"", "", "", "e"}).Draw(t, "epoch")}}
			l.sent = now.Add(gap("pause"))
			l.answered = l.sent.Add(gap("took"))
			now = l.answered
			looks = append(looks, l)

			w = w.Saw(l.key, l.answered)
			got := w.Remaining(time.Minute, l.sent) <= 0
			want := false
			for i := len(looks) - 1; i >= 0 && looks[i].key == l.key; i-- {
				want = want || l.sent.Sub(looks[i].answered) >= time.Minute
			}
			if got != want {
				t.Fatalf("complete: %v, by the rule %v, after %v", got, want, looks)
			}
		}
	})
}
