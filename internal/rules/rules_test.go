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

// An outcome is what a look means, and how the previous term ended if it means that.
type outcome struct {
	verdict Verdict
	reason  driver.EndReason
}

var (
	waits    = outcome{Wait, driver.EndExpired}
	isFree   = outcome{Free, driver.EndExpired}
	leftover = outcome{Gone, driver.EndExpired}
	proven   = outcome{Gone, driver.EndProvenDead}
)

func TestJudge(t *testing.T) {
	const (
		s           = time.Second
		alive, dead = driver.SignAlive, driver.SignDead
	)
	type view = driver.Snapshot
	tokenA, tokenB, unknown := rulestest.TokenA, rulestest.TokenB, driver.Term{}
	open, ended := rulestest.OpenTerm, rulestest.EndedTerm
	row := func(token driver.Token, term int64, ttl time.Duration) *driver.Row {
		return rulestest.RowOf(token, term, 1, ttl)
	}
	row5, open5, ended5 := row(tokenA, 5, 60*s), open(tokenA, 5, 60*s), ended(tokenA, 5, 60*s)
	row9, open9, ended9 := row(tokenB, 9, 90*s), open(tokenB, 9, 90*s), ended(tokenB, 9, 90*s)
	for _, tc := range []struct {
		name  string
		view  driver.Snapshot
		known driver.Term
		want  outcome
		ttl   time.Duration
	}{
		// A row: somebody may hold it.
		{"a held lock", view{Row: row5, Newest: open5}, unknown, waits, 60 * s},
		{"a row without history", view{Row: row5}, unknown, waits, 60 * s},
		{"its holder lives", view{Row: row5, Newest: open5, Sign: alive}, unknown, waits, 60 * s},
		{"its holder is proven dead", view{Row: row5, Newest: open5, Sign: dead}, unknown, proven,
			60 * s},
		{"a leftover: its own term has ended", view{Row: row5, Newest: ended5}, unknown, leftover,
			60 * s},
		{"the same after its token was edited",
			view{Row: row(driver.Token{}, 5, 60*s), Newest: ended5}, unknown, leftover, 60 * s},
		{"another term has ended: no leftover",
			view{Row: row5, Newest: ended(tokenB, 4, 90*s)}, unknown, waits, 60 * s},
		{"a later term has ended: the row was restored",
			view{Row: row5, Newest: ended(tokenB, 6, 90*s)}, unknown, waits, 60 * s},
		{"a later term is open: both may hold it",
			view{Row: row5, Newest: open(tokenB, 6, 90*s)}, unknown, waits, 90 * s},

		// The row's TTL, whatever stands there.
		{"TTL edited down: the history's counts", view{Row: row(tokenA, 5, s), Newest: open5},
			unknown, waits, 60 * s},
		{"TTL edited to 0", view{Row: row(tokenA, 5, 0)}, unknown, waits, fallbackTTL},
		{"TTL edited below 0", view{Row: row(tokenA, 5, -5*s), Newest: open(tokenA, 5, -s)},
			unknown, waits, fallbackTTL},
		{"TTL edited to for ever", view{Row: row(tokenA, 5, math.MaxInt64)}, unknown, waits,
			driver.MaxTTL},
		{"the history's edited to for ever", view{Newest: open(tokenA, 5, math.MaxInt64)}, unknown,
			waits, driver.MaxTTL},

		// No row: not a free lock by itself.
		{"a new database", view{}, unknown, isFree, fallbackTTL},
		{"released", view{Newest: ended5}, unknown, isFree, fallbackTTL},
		{"deleted by hand: its TTL must pass", view{Newest: open5}, unknown, waits, 60 * s},
		{"deleted by hand, TTL unknown", view{Newest: open(tokenA, 5, 0)}, unknown, waits,
			fallbackTTL},
		{"deleted by hand, its holder proven dead", view{Newest: open5, Sign: dead}, unknown,
			proven, 60 * s},
		{"deleted by hand, its holder lives", view{Newest: open5, Sign: alive}, unknown, waits,
			60 * s},
		{"released, but somebody holds what only a leader has", view{Newest: ended5, Sign: alive},
			unknown, waits, fallbackTTL},
		{"a new database beside what only a leader has", view{Sign: alive}, unknown, waits,
			fallbackTTL},

		// A restored backup: the database knows less than we do.
		{"we know a newer term that was open", view{Newest: ended5}, *open9, waits, 90 * s},
		{"we know a newer term that had ended", view{Newest: ended5}, *ended9, isFree, fallbackTTL},
		{"an emptied database, and we know an open term", view{}, *open9, waits, 90 * s},
		{"an emptied database, and we know its term had ended", view{}, *ended9, isFree,
			fallbackTTL},
		{"proof of another's death does not count", view{Newest: open5, Sign: dead},
			*open(tokenB, 9, 30*s), waits, 60 * s},
		{"nor in a restored row", view{Row: row5, Newest: open5, Sign: dead}, *open9, waits,
			90 * s},
		{"nor does the end of a restored row's term", view{Row: row5, Newest: ended5}, *open9,
			waits, 90 * s},
		{"the known term is in the table: the table counts", view{Newest: ended9}, *open9, isFree,
			fallbackTTL},
		{"the history was emptied, the known row stands, its holder is dead",
			view{Row: row9, Sign: dead}, *open9, proven, 90 * s},
		{"the same row with another token", view{Row: row(tokenA, 9, 90*s), Sign: dead}, *open9,
			waits, 90 * s},
	} {
		t.Run(tc.name, func(t *testing.T) {
			j := Judge(tc.view, tc.known, fallbackTTL)
			assert.Equal(t, tc.want, outcome{j.Verdict, j.Reason})
			assert.Equal(t, tc.ttl, j.TTL)
		})
	}

	// After a fail-over a later acquisition may be lost: nothing that the tables or the signs
	// say spares the wait for a TTL.
	for _, tc := range []struct {
		name string
		view driver.Snapshot
		ttl  time.Duration
	}{
		{"never held", view{}, fallbackTTL},
		{"released", view{Newest: ended5}, 60 * s},
		{"released by one with a short TTL", view{Newest: ended(tokenA, 5, 10*s)}, fallbackTTL},
		{"a leftover", view{Row: row5, Newest: ended(tokenA, 5, 50*s)}, 60 * s},
		{"its holder is proven dead", view{Row: row5, Newest: open5, Sign: dead}, 60 * s},
		{"no row, its holder is proven dead", view{Newest: open5, Sign: dead}, 60 * s},
		{"held", view{Row: row(tokenA, 5, 10*s), Newest: open(tokenA, 5, 10*s)}, fallbackTTL},
		{"a TTL beyond all bounds", view{Newest: ended(tokenA, 5, 1000*time.Hour)}, driver.MaxTTL},
	} {
		t.Run("failed over/"+tc.name, func(t *testing.T) {
			tc.view.FailedOver = true
			j := Judge(tc.view, unknown, fallbackTTL)
			assert.Equal(t, waits, outcome{j.Verdict, j.Reason})
			assert.Equal(t, tc.ttl, j.TTL)
		})
	}
}

func TestJudgeOfAnEndedSession(t *testing.T) {
	const s = time.Second
	type view = driver.Snapshot
	tokenA, tokenB, unknown := rulestest.TokenA, rulestest.TokenB, driver.Term{}
	as := func(*view) {}
	for _, tc := range []struct {
		name   string
		change func(*view) // of a row whose holder's session has ended
		known  driver.Term
		want   Verdict
		grace  time.Duration
	}{
		{"its grace counts", as, unknown, Wait, 5 * s},
		{"and is shown to whoever led before", as, *rulestest.EndedTerm(tokenB, 4, 60*s), Wait,
			5 * s},
		{"without history", func(v *view) { v.Newest = nil }, unknown, Wait, 5 * s},
		{"known to hold it", as, *rulestest.OpenTerm(tokenA, 5, 60*s), Wait, 5 * s},
		{"longer than a day", func(v *view) { v.Row.Grace = math.MaxInt64 }, unknown, Wait,
			driver.MaxTTL},
		{"no grace", func(v *view) { v.Row.Grace = 0 }, unknown, Wait, 0},
		{"a grace below 0", func(v *view) { v.Row.Grace = math.MinInt64 }, unknown, Wait, 0},
		{"cannot tell", func(v *view) { v.Sign = driver.SignNone }, unknown, Wait, 0},
		{"the holder lives", func(v *view) { v.Sign = driver.SignAlive }, unknown, Wait, 0},
		{"the holder is proven dead", func(v *view) { v.Sign = driver.SignDead }, unknown, Gone, 0},
		{"a leftover: its own term has ended", func(v *view) {
			v.Newest = rulestest.EndedTerm(tokenA, 5, 60*s)
		}, unknown, Gone, 0},
		{"after a fail-over", func(v *view) { v.FailedOver = true }, unknown, Wait, 0},
		{"a leftover after a fail-over", func(v *view) {
			v.FailedOver, v.Newest = true, rulestest.EndedTerm(tokenA, 5, 60*s)
		}, unknown, Wait, 0},
		{"we know a newer term that was open", as, *rulestest.OpenTerm(tokenB, 9, 60*s), Wait, 0},
		{"we know a newer term that had ended", as, *rulestest.EndedTerm(tokenB, 9, 60*s), Wait,
			5 * s},
		{"no row", func(v *view) { v.Row = nil }, unknown, Wait, 0},
		{"no row, and the lock is free", func(v *view) { v.Row, v.Newest = nil, nil }, unknown,
			Free, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			v := view{Row: rulestest.RowOf(tokenA, 5, 1, 60*s),
				Newest: rulestest.OpenTerm(tokenA, 5, 60*s), Sign: driver.SignEnded}
			v.Row.Grace = 5 * s
			tc.change(&v)
			j := Judge(v, tc.known, fallbackTTL)
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
