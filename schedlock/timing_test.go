package schedlock

import (
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"example.com/schedlock/schedlock/driver"
)

func timing(ttl, renewDeadline, heartbeatInterval time.Duration) driver.Timing {
	return driver.Timing{TTL: ttl, RenewDeadline: renewDeadline,
		HeartbeatInterval: heartbeatInterval}
}

func TestTimingValidateNamesValueAndRule(t *testing.T) {
	const h, s, ms = time.Hour, time.Second, time.Millisecond
	for _, tc := range []struct {
		name   string
		timing driver.Timing
		want   []string // each is part of the error; none: valid
	}{
		{"defaults", timing(60*s, 45*s, 10*s), nil},
		{"largest renew deadline", timing(60*s, 51*s, 10*s), nil},
		{"smallest renew deadline", timing(60*s, 30*s, 10*s), nil},
		{"a day", timing(24*h, 18*h, h), nil},
		{"heartbeat of 10 ms", timing(100*ms, 75*ms, 10*ms), nil},
		{"heartbeat too short", timing(60*s, 45*s, 9*ms),
			[]string{"heartbeat interval 9ms is below 10ms"}},
		{"heartbeat zero", timing(60*s, 45*s, 0), []string{"heartbeat interval 0s is below 10ms"}},
		{"heartbeat negative", timing(60*s, 45*s, -s),
			[]string{"heartbeat interval -1s is below 10ms"}},
		{"TTL too long", timing(24*h+ms, 18*h, 10*s), []string{"TTL 24h0m0.001s is above 24h0m0s"}},
		{"TTL at the heartbeat", timing(10*s, 8*s, 10*s),
			[]string{"TTL 10s is not above the heartbeat interval 10s",
				"renew deadline 8s is below 3 × heartbeat interval = 30s"}},
		{"TTL negative", timing(-60*s, -45*s, 10*s),
			[]string{"TTL -1m0s is not above 0"}},
		{"renew deadline too short", timing(60*s, 30*s-ms, 10*s),
			[]string{"renew deadline 29.999s is below 3 × heartbeat interval = 30s"}},
		{"renew deadline too long", timing(60*s, 51*s+ms, 10*s),
			[]string{"renew deadline 51.001s is above 0.85 × TTL = 51s"}},
		{"TTL not whole", timing(60*s+1, 45*s, 10*s),
			[]string{"TTL 1m0.000000001s is not a whole number of milliseconds"}},
		{"renew deadline not whole", timing(60*s, 45*s+1, 10*s),
			[]string{"renew deadline 45.000000001s is not a whole"}},
		{"heartbeat not whole", timing(60*s, 45*s, 10*s+1),
			[]string{"heartbeat interval 10.000000001s is not a whole"}},
		{"several at once", timing(25*h, 24*h, s+1), []string{"TTL 25h0m0s is above",
			"renew deadline 24h0m0s is above", "heartbeat interval 1.000000001s is not a whole"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			err := tc.timing.Validate()
			if tc.want == nil {
				require.NoError(t, err)
			}
			for _, part := range tc.want {
				assert.ErrorContains(t, err, part)
			}
		})
	}
}

func TestValidTimingLeavesRoomForClockRatesAndForJobsToStop(t *testing.T) {
	permille := func(t *rapid.T, name string, from, to int, of time.Duration) time.Duration {
		n := time.Duration(rapid.IntRange(from, to).Draw(t, name))
		return (of / 1000 * n).Truncate(time.Millisecond)
	}
	rapid.Check(t, func(rt *rapid.T) {
		tm := driver.Timing{TTL: time.Duration(rapid.Int64Range(36,
			(25*time.Hour).Milliseconds()).Draw(rt, "ttl")) * time.Millisecond}
		tm.RenewDeadline = permille(rt, "renew", 500, 870, tm.TTL)
		tm.HeartbeatInterval = permille(rt, "heartbeat", 100, 340, tm.RenewDeadline)
		if tm.Validate() != nil {
			rt.Skip()
		}
		// The holder's clock may be 10 % slower than the standby's.
		if held := tm.RenewDeadline / 9 * 10; held >= tm.TTL {
			rt.Fatalf("%+v: the holder may hold it for %v", tm, held)
		}
		if tm.TTL > driver.MaxTTL || tm.RetryInterval() <= 0 || watchInterval(tm) <= 0 {
			rt.Fatalf("%+v is out of bounds", tm)
		}
		if room := tm.TTL - tm.RenewDeadline; watchInterval(tm) > room {
			rt.Fatalf("%+v: an end may be noticed %v late, but jobs have %v to stop", tm,
				watchInterval(tm), room)
		}
	})
}

func TestPeriodsFollowTheSettings(t *testing.T) {
	normal := timing(60*time.Second, 45*time.Second, 10*time.Second)
	assert.Equal(t, time.Second, normal.RetryInterval())
	assert.Equal(t, time.Second, watchInterval(normal))
	short := timing(time.Second, 800*time.Millisecond, 100*time.Millisecond)
	assert.Equal(t, 100*time.Millisecond, short.RetryInterval())
	assert.Equal(t, 50*time.Millisecond, watchInterval(short))
}

// noStore is a store that must not be asked.
type noStore struct{ driver.Store }

func (noStore) ProofOfDeath() error { return nil }

func TestNewHasDefaults(t *testing.T) {
	l, err := New(noStore{})
	require.NoError(t, err)
	assert.Equal(t, timing(60*time.Second, 45*time.Second, 10*time.Second), l.Timing())
	assert.Positive(t, l.Owner().PID)
	assert.NotEmpty(t, l.Owner().Hostname)
	assert.Equal(t, noStore{}, l.Store())
	assert.ErrorIs(t, l.IsLeader(t.Context()), ErrNotLeader)
	assert.Nil(t, l.Lease())
	assert.Equal(t, Status{State: SelfStarting, Reason: "has not looked at the lock yet"},
		l.Status())
}

func TestNewTakesOptions(t *testing.T) {
	owner := driver.Owner{PID: 7, Hostname: "a"}
	l, err := New(noStore{}, WithTTL(1001*time.Millisecond),
		WithHeartbeatInterval(100*time.Millisecond), WithOwner(owner),
		WithLogger(slog.New(slog.DiscardHandler)))
	require.NoError(t, err)
	assert.Equal(t, timing(1001*time.Millisecond, 750*time.Millisecond, 100*time.Millisecond),
		l.Timing(), "¾ TTL, in whole milliseconds")
	assert.Equal(t, owner, l.Owner())
	l, err = New(noStore{}, WithRenewDeadline(40*time.Second))
	require.NoError(t, err)
	assert.Equal(t, 40*time.Second, l.Timing().RenewDeadline)
}

func TestTheHeartbeatIntervalFollowsTheTTL(t *testing.T) {
	for ttl, want := range map[time.Duration]time.Duration{
		15 * time.Second:       2500 * time.Millisecond,
		time.Hour:              10 * time.Second,
		time.Second:            166 * time.Millisecond,
		40 * time.Millisecond:  10 * time.Millisecond,
		driver.MaxTTL:          10 * time.Second,
		100 * time.Millisecond: 16 * time.Millisecond,
	} {
		l, err := New(noStore{}, WithTTL(ttl))
		require.NoError(t, err, "%v alone is enough", ttl)
		assert.Equal(t, want, l.Timing().HeartbeatInterval, "of %v", ttl)
	}
}

func TestNewNamesEveryOptionThatIsWrong(t *testing.T) {
	for _, tc := range []struct {
		name  string
		store driver.Store
		opts  []Option
		want  []string
	}{
		{"no store", nil, nil, []string{"store is nil"}},
		{"no logger", noStore{}, []Option{WithLogger(nil)}, []string{"logger is nil"}},
		{"no observer", noStore{}, []Option{WithObserver(nil)}, []string{"observer is nil"}},
		{"pid", noStore{}, []Option{WithOwner(driver.Owner{PID: 0, Hostname: "a"})},
			[]string{"pid 0 is not above 0"}},
		{"hostname", noStore{}, []Option{WithOwner(driver.Owner{PID: 1})},
			[]string{"hostname is empty"}},
		{"hostname with NUL", noStore{},
			[]Option{WithOwner(driver.Owner{PID: 1, Hostname: "a\x00"})},
			[]string{`hostname "a\x00" is not UTF-8, or contains NUL`}},
		{"renew deadline zero", noStore{}, []Option{WithRenewDeadline(0)},
			[]string{"renew deadline 0s is not above 0"}},
		{"TTL zero", noStore{}, []Option{WithTTL(0)},
			[]string{"TTL 0s is not above 0"}},
		{"TTL too short", noStore{}, []Option{WithTTL(5 * time.Second),
			WithHeartbeatInterval(10 * time.Second)},
			[]string{"TTL 5s is not above the heartbeat interval 10s"}},
		{"heartbeat zero", noStore{}, []Option{WithHeartbeatInterval(0)},
			[]string{"heartbeat interval 0s is not above 0"}},
		{"TTL far too long", noStore{}, []Option{WithTTL(1<<63 - 1)}, []string{"is above 24h0m0s"}},
		{"heartbeat far too long", noStore{}, []Option{WithHeartbeatInterval(1<<63 - 1)},
			[]string{"TTL 1m0s is not above"}},
		{"all at once", nil, []Option{WithTTL(5 * time.Second), WithRenewDeadline(-time.Second),
			WithLogger(nil), WithOwner(driver.Owner{PID: -1, Hostname: "a"})},
			[]string{"scheduler lock: ", "store is nil", "renew deadline -1s is not above 0",
				"logger is nil", "pid -1 is not above 0"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			l, err := New(tc.store, tc.opts...)
			assert.Nil(t, l)
			for _, part := range tc.want {
				assert.ErrorContains(t, err, part)
			}
		})
	}
}
