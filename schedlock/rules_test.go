package schedlock

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"pgregory.net/rapid"
)

const fallbackTTL = 40 * time.Second

var (
	tokenA = Token{0xa}
	tokenB = Token{0xb}
)

func refOf(token Token, term int64) Ref {
	return Ref{Owner: Owner{PID: 1, Hostname: "h"}, Token: token, Term: term}
}

func rowOf(token Token, term, beat int64, ttl time.Duration) *Row {
	return &Row{Ref: refOf(token, term), RawToken: token.String(), Beat: beat, State: StateLeading,
		CreatedAt: year2026, HeartbeatAt: year2026, Timing: Timing{TTL: ttl, RenewDeadline: ttl / 4 * 3, HeartbeatInterval: ttl / 6}}
}

func openTerm(token Token, term int64, ttl time.Duration) *Term {
	return &Term{Ref: refOf(token, term), AcquiredAt: year2026, TTL: ttl}
}

func endedTerm(token Token, term int64, ttl time.Duration) *Term {
	t := openTerm(token, term, ttl)
	t.EndedAt, t.EndReason = year2026, EndReleased
	return t
}

func TestOverFromTheRenewDeadlineOn(t *testing.T) {
	assert.False(t, over(0, time.Second))
	assert.False(t, over(time.Second-1, time.Second))
	assert.True(t, over(time.Second, time.Second))
	assert.True(t, over(math.MaxInt64, time.Second))
}

func TestJudge(t *testing.T) {
	const s = time.Second
	for _, tc := range []struct {
		name   string
		view   View
		known  Term
		want   verdict
		reason EndReason
		ttl    time.Duration
	}{
		// A row: somebody may hold it.
		{"a held lock", View{Row: rowOf(tokenA, 5, 1, 60*s), Newest: openTerm(tokenA, 5, 60*s)}, Term{}, wait, EndExpired, 60 * s},
		{"a row without history", View{Row: rowOf(tokenA, 5, 1, 60*s)}, Term{}, wait, EndExpired, 60 * s},
		{"its holder lives", View{Row: rowOf(tokenA, 5, 1, 60*s), Newest: openTerm(tokenA, 5, 60*s), Sign: SignAlive}, Term{}, wait, EndExpired, 60 * s},
		{"its holder is proven dead", View{Row: rowOf(tokenA, 5, 1, 60*s), Newest: openTerm(tokenA, 5, 60*s), Sign: SignDead}, Term{}, gone, EndProvenDead, 60 * s},
		{"a leftover: its own term has ended", View{Row: rowOf(tokenA, 5, 1, 60*s), Newest: endedTerm(tokenA, 5, 60*s)}, Term{}, gone, EndExpired, 60 * s},
		{"the same after its token was edited", View{Row: rowOf(Token{}, 5, 1, 60*s), Newest: endedTerm(tokenA, 5, 60*s)}, Term{}, gone, EndExpired, 60 * s},
		{"another term has ended: no leftover", View{Row: rowOf(tokenA, 5, 1, 60*s), Newest: endedTerm(tokenB, 4, 90*s)}, Term{}, wait, EndExpired, 60 * s},
		{"a later term has ended: the row was restored", View{Row: rowOf(tokenA, 5, 1, 60*s), Newest: endedTerm(tokenB, 6, 90*s)}, Term{}, wait, EndExpired, 60 * s},
		{"a later term is open: both may hold it", View{Row: rowOf(tokenA, 5, 1, 60*s), Newest: openTerm(tokenB, 6, 90*s)}, Term{}, wait, EndExpired, 90 * s},

		// The row's TTL, whatever stands there.
		{"TTL edited down: the history's counts", View{Row: rowOf(tokenA, 5, 1, s), Newest: openTerm(tokenA, 5, 60*s)}, Term{}, wait, EndExpired, 60 * s},
		{"TTL edited to 0", View{Row: rowOf(tokenA, 5, 1, 0)}, Term{}, wait, EndExpired, fallbackTTL},
		{"TTL edited below 0", View{Row: rowOf(tokenA, 5, 1, -5*s), Newest: openTerm(tokenA, 5, -s)}, Term{}, wait, EndExpired, fallbackTTL},
		{"TTL edited to for ever", View{Row: rowOf(tokenA, 5, 1, math.MaxInt64)}, Term{}, wait, EndExpired, MaxTTL},
		{"the history's edited to for ever", View{Newest: openTerm(tokenA, 5, math.MaxInt64)}, Term{}, wait, EndExpired, MaxTTL},

		// No row: not a free lock by itself.
		{"a new database", View{}, Term{}, free, EndExpired, fallbackTTL},
		{"released", View{Newest: endedTerm(tokenA, 5, 60*s)}, Term{}, free, EndExpired, fallbackTTL},
		{"deleted by hand: its TTL must pass", View{Newest: openTerm(tokenA, 5, 60*s)}, Term{}, wait, EndExpired, 60 * s},
		{"deleted by hand, TTL unknown", View{Newest: openTerm(tokenA, 5, 0)}, Term{}, wait, EndExpired, fallbackTTL},
		{"deleted by hand, its holder proven dead", View{Newest: openTerm(tokenA, 5, 60*s), Sign: SignDead}, Term{}, gone, EndProvenDead, 60 * s},
		{"deleted by hand, its holder lives", View{Newest: openTerm(tokenA, 5, 60*s), Sign: SignAlive}, Term{}, wait, EndExpired, 60 * s},
		{"released, but somebody holds what only a leader has", View{Newest: endedTerm(tokenA, 5, 60*s), Sign: SignAlive}, Term{}, wait, EndExpired, fallbackTTL},
		{"a new database beside what only a leader has", View{Sign: SignAlive}, Term{}, wait, EndExpired, fallbackTTL},

		// A restored backup: the database knows less than we do.
		{"we know a newer term that was open", View{Newest: endedTerm(tokenA, 5, 60*s)}, *openTerm(tokenB, 9, 90*s), wait, EndExpired, 90 * s},
		{"we know a newer term that had ended", View{Newest: endedTerm(tokenA, 5, 60*s)}, *endedTerm(tokenB, 9, 90*s), free, EndExpired, fallbackTTL},
		{"an emptied database, and we know an open term", View{}, *openTerm(tokenB, 9, 90*s), wait, EndExpired, 90 * s},
		{"an emptied database, and we know its term had ended", View{}, *endedTerm(tokenB, 9, 90*s), free, EndExpired, fallbackTTL},
		{"proof of another's death does not count", View{Newest: openTerm(tokenA, 5, 60*s), Sign: SignDead}, *openTerm(tokenB, 9, 30*s), wait, EndExpired, 60 * s},
		{"nor in a restored row", View{Row: rowOf(tokenA, 5, 1, 60*s), Newest: openTerm(tokenA, 5, 60*s), Sign: SignDead}, *openTerm(tokenB, 9, 90*s), wait, EndExpired, 90 * s},
		{"nor does the end of a restored row's term", View{Row: rowOf(tokenA, 5, 1, 60*s), Newest: endedTerm(tokenA, 5, 60*s)}, *openTerm(tokenB, 9, 90*s), wait, EndExpired, 90 * s},
		{"the known term is in the table: the table counts", View{Newest: endedTerm(tokenB, 9, 90*s)}, *openTerm(tokenB, 9, 90*s), free, EndExpired, fallbackTTL},
		{"the history was emptied, the known row stands, its holder is dead", View{Row: rowOf(tokenB, 9, 1, 90*s), Sign: SignDead}, *openTerm(tokenB, 9, 90*s), gone, EndProvenDead, 90 * s},
		{"the same row with another token", View{Row: rowOf(tokenA, 9, 1, 90*s), Sign: SignDead}, *openTerm(tokenB, 9, 90*s), wait, EndExpired, 90 * s},
	} {
		t.Run(tc.name, func(t *testing.T) {
			j := judge(tc.view, tc.known, fallbackTTL)
			assert.Equal(t, tc.want, j.verdict)
			assert.Equal(t, tc.ttl, j.ttl)
			if j.verdict != free {
				assert.Equal(t, tc.reason, j.reason)
			}
		})
	}
}

func TestJudgeOfAnEndedSession(t *testing.T) {
	const s = time.Second
	// held is a row whose holder's session has ended.
	held := func(change func(*View)) View {
		v := View{Row: rowOf(tokenA, 5, 1, 60*s), Newest: openTerm(tokenA, 5, 60*s), Sign: SignEnded}
		v.Row.Grace = 5 * s
		change(&v)
		return v
	}
	for _, tc := range []struct {
		name  string
		view  View
		known Term
		want  verdict
		grace time.Duration
	}{
		{"its grace counts", held(func(*View) {}), Term{}, wait, 5 * s},
		{"and is shown to whoever led before", held(func(*View) {}), *endedTerm(tokenB, 4, 60*s), wait, 5 * s},
		{"without history", held(func(v *View) { v.Newest = nil }), Term{}, wait, 5 * s},
		{"known to hold it", held(func(*View) {}), *openTerm(tokenA, 5, 60*s), wait, 5 * s},
		{"longer than a day", held(func(v *View) { v.Row.Grace = math.MaxInt64 }), Term{}, wait, MaxTTL},
		{"no grace", held(func(v *View) { v.Row.Grace = 0 }), Term{}, wait, 0},
		{"a grace below 0", held(func(v *View) { v.Row.Grace = math.MinInt64 }), Term{}, wait, 0},
		{"cannot tell", held(func(v *View) { v.Sign = SignNone }), Term{}, wait, 0},
		{"the holder lives", held(func(v *View) { v.Sign = SignAlive }), Term{}, wait, 0},
		{"the holder is proven dead", held(func(v *View) { v.Sign = SignDead }), Term{}, gone, 0},
		{"a leftover: its own term has ended", held(func(v *View) { v.Newest = endedTerm(tokenA, 5, 60*s) }), Term{}, gone, 0},
		{"after a fail-over", held(func(v *View) { v.FailedOver = true }), Term{}, wait, 0},
		{"a leftover after a fail-over", held(func(v *View) { v.FailedOver, v.Newest = true, endedTerm(tokenA, 5, 60*s) }), Term{}, wait, 0},
		{"we know a newer term that was open", held(func(*View) {}), *openTerm(tokenB, 9, 60*s), wait, 0},
		{"we know a newer term that had ended", held(func(*View) {}), *endedTerm(tokenB, 9, 60*s), wait, 5 * s},
		{"no row", held(func(v *View) { v.Row = nil }), Term{}, wait, 0},
		{"no row, and the lock is free", held(func(v *View) { v.Row, v.Newest = nil, nil }), Term{}, free, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			j := judge(tc.view, tc.known, fallbackTTL)
			assert.Equal(t, tc.want, j.verdict)
			assert.Equal(t, tc.grace, j.grace)
		})
	}
}

func TestWatchKeyIsWhatALivingHolderChanges(t *testing.T) {
	view := func() View {
		return View{Row: rowOf(tokenA, 5, 7, time.Minute), Newest: openTerm(tokenA, 5, time.Minute), Epoch: "e", Now: year2026}
	}
	key := func(change func(*View)) watchKey {
		v := view()
		change(&v)
		return judge(v, Term{}, fallbackTTL).key
	}
	same := key(func(*View) {})
	for name, change := range map[string]func(*View){
		"a heartbeat":           func(v *View) { v.Row.Beat++ },
		"another token":         func(v *View) { v.Row.RawToken = tokenB.String() },
		"a token that is none":  func(v *View) { v.Row.Token, v.Row.RawToken = Token{}, "x" },
		"another term":          func(v *View) { v.Row.Term++ },
		"the row is gone":       func(v *View) { v.Row = nil },
		"a newer term":          func(v *View) { v.Newest.Term++ },
		"the term has ended":    func(v *View) { v.Newest.EndedAt = year2026 },
		"no history":            func(v *View) { v.Newest = nil },
		"another server":        func(v *View) { v.Epoch = "f" },
		"two edited tokens (1)": func(v *View) { v.Row.Token, v.Row.RawToken = Token{}, "y" },
	} {
		assert.NotEqual(t, same, key(change), name)
	}
	a := key(func(v *View) { v.Row.Token, v.Row.RawToken = Token{}, "x" })
	b := key(func(v *View) { v.Row.Token, v.Row.RawToken = Token{}, "y" })
	assert.NotEqual(t, a, b, "two tokens that somebody edited into no-tokens")
	for name, change := range map[string]func(*View){
		"the heartbeat's stamp": func(v *View) { v.Row.HeartbeatAt = year2026.Add(time.Hour) },
		"the creation's stamp":  func(v *View) { v.Row.CreatedAt = year2026.Add(-time.Hour) },
		"the database's clock":  func(v *View) { v.Now = year2026.Add(time.Hour) },
		"the state":             func(v *View) { v.Row.State = StateDraining },
		"pid and hostname":      func(v *View) { v.Row.Owner = Owner{PID: 2, Hostname: "x"} },
		"its session has ended": func(v *View) { v.Sign = SignEnded },
		"the grace":             func(v *View) { v.Row.Grace = time.Second },
	} {
		assert.Equal(t, same, key(change), name)
	}
}

func TestFreshByTheDatabasesClockOnly(t *testing.T) {
	for _, tc := range []struct {
		age  time.Duration
		want bool
	}{{-time.Nanosecond, false}, {0, true}, {59 * time.Second, true}, {time.Minute, false}, {-time.Hour, false}, {time.Hour, false}} {
		v := View{Row: rowOf(tokenA, 5, 1, time.Minute), Now: year2026.Add(tc.age)}
		assert.Equal(t, tc.want, fresh(v, time.Minute), "age %v", tc.age)
	}
}

func TestWatchCountsFromTheAnswerToTheNextLooksSending(t *testing.T) {
	at := func(s int) time.Time { return year2026.Add(time.Duration(s) * time.Second) }
	k1, k2 := watchKey{beat: 1}, watchKey{beat: 2}
	var w watch
	assert.Equal(t, time.Duration(math.MaxInt64), w.remaining(time.Minute, at(9999)), "nothing seen: never complete")
	w = w.saw(k1, at(10))
	assert.Equal(t, 61*time.Second, w.remaining(time.Minute, at(9)), "a look sent before that answer proves nothing")
	w = w.saw(k1, at(40))
	assert.Equal(t, time.Second, w.remaining(time.Minute, at(69)), "the same key: the first look counts")
	assert.Zero(t, w.remaining(time.Minute, at(70)))
	w = w.saw(k2, at(70))
	assert.Equal(t, time.Minute, w.remaining(time.Minute, at(70)), "the holder lives: anew")
	w = w.saw(k1, at(75))
	assert.Equal(t, time.Minute, w.remaining(time.Minute, at(75)), "back to an earlier key: anew")
	w = w.saw(watchKey{beat: 1, epoch: "other"}, at(80))
	assert.Equal(t, time.Minute, w.remaining(time.Minute, at(80)), "another server: anew")
}

// drawView is any view, with few enough values that equal ones come up.
func drawView(t *rapid.T) View {
	token := rapid.SampledFrom([]Token{{}, tokenA, tokenB})
	term := rapid.Int64Range(0, 4)
	ttl := rapid.SampledFrom([]time.Duration{math.MinInt64, -time.Second, 0, time.Millisecond, time.Minute, MaxTTL + 1, math.MaxInt64})
	stamp := rapid.Map(rapid.Int64Range(-7200, 7200), func(s int64) time.Time { return year2026.Add(time.Duration(s) * time.Second) })
	v := View{
		Now:   stamp.Draw(t, "now"),
		Sign:  rapid.SampledFrom([]Sign{SignNone, SignAlive, SignDead, SignEnded, SignEnded}).Draw(t, "sign"),
		Epoch: rapid.SampledFrom([]string{"", "e"}).Draw(t, "epoch"),

		FailedOver: rapid.Bool().Draw(t, "failed over"),
	}
	if rapid.Bool().Draw(t, "row") {
		v.Row = rowOf(token.Draw(t, "token"), term.Draw(t, "term"), rapid.Int64Range(0, 2).Draw(t, "beat"), ttl.Draw(t, "ttl"))
		v.Row.Grace = ttl.Draw(t, "grace")
		v.Row.HeartbeatAt, v.Row.CreatedAt = stamp.Draw(t, "heartbeat"), stamp.Draw(t, "created")
	}
	if rapid.Bool().Draw(t, "newest") {
		v.Newest = openTerm(token.Draw(t, "newest token"), term.Draw(t, "newest term"), ttl.Draw(t, "newest ttl"))
		if rapid.Bool().Draw(t, "ended") {
			v.Newest.EndedAt = stamp.Draw(t, "end")
		}
	}
	return v
}

func TestJudgeProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v := drawView(t)
		known := *openTerm(tokenB, rapid.Int64Range(0, 5).Draw(t, "known"), time.Minute)
		if rapid.Bool().Draw(t, "known ended") {
			known.EndedAt = year2026
		}
		j := judge(v, known, fallbackTTL)
		if j.ttl <= 0 || j.ttl > MaxTTL {
			t.Fatalf("a watch of %v", j.ttl)
		}
		if v.Row != nil {
			if j.verdict == free {
				t.Fatal("a lock with a row is never free")
			}
			if ttl := clampTTL(v.Row.Timing.TTL); j.ttl < ttl {
				t.Fatalf("a watch of %v, but the row's TTL is %v", j.ttl, ttl)
			}
		}
		open := v.Newest != nil && v.Newest.Open()
		if open && j.ttl < clampTTL(v.Newest.TTL) {
			t.Fatalf("a watch of %v, but the open term's TTL is %v", j.ttl, v.Newest.TTL)
		}
		if open && j.verdict != wait && v.Sign != SignDead {
			t.Fatalf("verdict %d, but the newest term has no end and nobody proved its death", j.verdict)
		}
		if j.verdict != wait && v.Row == nil && v.Sign == SignAlive {
			t.Fatal("somebody has what only a leader has")
		}
		newest := int64(0)
		if v.Newest != nil {
			newest = v.Newest.Term
		}
		bears := v.Row != nil && v.Row.Term == known.Term && v.Row.Token == known.Token
		if known.Open() && known.Term > newest && !bears && (j.verdict != wait || j.ttl < known.TTL) {
			t.Fatalf("verdict %d after %v, but we know an open term that the database does not", j.verdict, j.ttl)
		}

		if j.grace < 0 || j.grace > MaxTTL {
			t.Fatalf("a grace of %v", j.grace)
		}
		if j.grace > 0 && (v.Row == nil || v.Row.Grace <= 0 || v.Sign != SignEnded || v.FailedOver || j.verdict != wait || known.Open() && known.Term > newest && !bears) {
			t.Fatalf("a grace of %v, but nothing says that the holder's session has ended", j.grace)
		}
		if v.Sign == SignEnded { // it ends nothing by itself
			blind := v
			blind.Sign = SignNone
			b := judge(blind, known, fallbackTTL)
			if b.grace = j.grace; b != j {
				t.Fatal("an ended session changed more than the grace")
			}
		}

		// No stamp and no clock changes anything.
		moved := v
		moved.Now = v.Now.Add(time.Hour)
		if v.Row != nil {
			row := *v.Row
			row.HeartbeatAt, row.CreatedAt = row.HeartbeatAt.Add(-time.Hour), row.CreatedAt.Add(time.Hour)
			moved.Row = &row
		}
		if judge(moved, known, fallbackTTL) != j {
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
			key            watchKey
			sent, answered time.Time
		}
		var (
			w     watch
			looks []look
			now   = year2026
		)
		for range rapid.IntRange(1, 20).Draw(t, "looks") {
			gap := func(name string) time.Duration {
				return time.Duration(rapid.IntRange(0, 40).Draw(t, name)) * time.Second
			}
			l := look{key: watchKey{beat: rapid.Int64Range(0, 1).Draw(t, "beat"), epoch: rapid.SampledFrom([]string{"", "", "", "e"}).Draw(t, "epoch")}}
			l.sent = now.Add(gap("pause"))
			l.answered = l.sent.Add(gap("took"))
			now = l.answered
			looks = append(looks, l)

			w = w.saw(l.key, l.answered)
			got := w.remaining(time.Minute, l.sent) <= 0
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
