package bounded

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// A slow opener's n-th attempt takes takes[n], or for ever.
type slow struct {
	Opener[int]
	takes []time.Duration
	fails map[int]error

	mu                   sync.Mutex
	begun, ended, closed []int
}

func (s *slow) note(in *[]int, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	*in = append(*in, n)
}

func newSlow(takes ...time.Duration) *slow {
	s := &slow{takes: takes, fails: map[int]error{}}
	s.Open = func(ctx context.Context) (int, error) {
		n := len(s.begun)
		s.note(&s.begun, n)
		defer s.note(&s.ended, n)
		limit := time.Hour
		if n < len(s.takes) {
			limit = s.takes[n]
		}
		if !Sleep(ctx, limit) {
			return 0, ctx.Err()
		}
		return n, s.fails[n]
	}
	s.Close = func(n int) { s.note(&s.closed, n) }
	return s
}

func (s *slow) get(caller time.Duration) (int, error) {
	ctx, cancel := context.WithTimeout(context.Background(), caller)
	defer cancel()
	n, err := s.Get(ctx, 10*time.Second)
	synctest.Wait()
	return n, err
}

func TestWhatOpensTooLateForItsCallerIsForTheNext(t *testing.T) {
	errRefused := errors.New("refused")
	for name, c := range map[string]struct {
		takes []time.Duration
		fails map[int]error
		pause time.Duration // between two callers
		want  []error       // one for each caller; nil: it gets …
		got   int           // … this
		begun int           // how many attempts
		waits time.Duration // each caller, instead of a second
	}{
		"in time": {
			takes: []time.Duration{time.Second / 2}, want: []error{nil}, begun: 1,
		},
		"a caller waits for longer than the limit": {
			takes: []time.Duration{20 * time.Second}, waits: time.Minute, want: []error{nil},
			begun: 1,
		},
		"while the second waits": {
			takes: []time.Duration{3 * time.Second / 2},
			want:  []error{context.DeadlineExceeded, nil}, begun: 2,
		},
		"while nobody waits": {
			takes: []time.Duration{3 * time.Second / 2}, pause: time.Second,
			want: []error{context.DeadlineExceeded, nil}, begun: 1,
		},
		"only the oldest is waited for": {
			takes: []time.Duration{7 * time.Second / 2, 3 * time.Second, 3 * time.Second},
			want: []error{context.DeadlineExceeded, context.DeadlineExceeded,
				context.DeadlineExceeded, nil}, begun: 4,
		},
		"the oldest hangs": {
			takes: []time.Duration{time.Hour, time.Second / 2},
			want:  []error{context.DeadlineExceeded, nil}, got: 1, begun: 2,
		},
		"the oldest reaches its limit": {
			takes: []time.Duration{time.Hour}, pause: 11 * time.Second,
			want: []error{context.DeadlineExceeded, context.DeadlineExceeded}, begun: 2,
		},
		"the oldest fails": {
			takes: []time.Duration{3 * time.Second / 2, 3 * time.Second / 4},
			fails: map[int]error{0: errRefused},
			want:  []error{context.DeadlineExceeded, nil}, got: 1, begun: 2,
		},
		"a later one fails": {
			takes: []time.Duration{11 * time.Second / 4, time.Second / 2},
			fails: map[int]error{1: errRefused},
			want:  []error{context.DeadlineExceeded, errRefused, context.DeadlineExceeded, nil},
			begun: 4,
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSlow(c.takes...)
				s.fails = c.fails
				for i, want := range c.want {
					time.Sleep(c.pause)
					n, err := s.get(cmp.Or(c.waits, time.Second))
					require.ErrorIs(t, err, want, "caller %d", i)
					if want == nil {
						require.NoError(t, err, "caller %d", i)
						require.Equal(t, c.got, n)
					}
				}
				require.Len(t, s.begun, c.begun)
				s.End()
				require.Len(t, s.ended, c.begun, "End waits")
				require.Empty(t, s.closed)
			})
		})
	}
}

func TestNothingIsOpenAfterTheEndOfAnOpener(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSlow(2*time.Second, time.Second/4)
		_, err := s.get(time.Second)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		time.Sleep(5 * time.Second)
		synctest.Wait()
		require.Equal(t, []int{0}, s.ended)
		s.End()
		require.Equal(t, []int{0}, s.closed, "it was for a later caller")

		n, err := s.get(time.Second) // somebody who was quicker than the end
		require.NoError(t, err)
		require.Equal(t, 1, n)
		_, err = s.get(time.Second)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, []int{0, 1, 2}, s.ended, "no attempt outlives its caller any more")
	})
}

// A driver may not heed its context.
func TestWhatOpensAlthoughNobodyWaitsIsClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSlow()
		open := s.Open
		s.Open = func(context.Context) (int, error) { return open(context.Background()) }
		s.takes = []time.Duration{time.Minute, time.Second / 2}
		_, err := s.get(time.Second)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		_, err = s.get(time.Second)
		require.NoError(t, err)
		time.Sleep(time.Minute)
		s.End()
		require.Equal(t, []int{0}, s.closed)
	})
}

func TestAnAttemptMayPanic(t *testing.T) {
	o := Opener[int]{Open: func(context.Context) (int, error) { panic("boom") }}
	_, err := o.Get(context.Background(), time.Second)
	require.ErrorContains(t, err, "boom")
	o.End()
}
