package missing

import (
	"flag"
	"fmt"
	"runtime"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A recorder is a test that remembers how it ended.
type recorder struct {
	testing.TB
	end string
}

func (r *recorder) Helper() {}
func (r *recorder) Skip(args ...any) {
	r.end = "skipped: " + fmt.Sprint(args...)
	runtime.Goexit()
}
func (r *recorder) Fatal(args ...any) { r.end = "failed: " + fmt.Sprint(args...); runtime.Goexit() }

func ended(f func(testing.TB)) string {
	r, done := &recorder{end: "passed"}, make(chan struct{})
	go func() {
		defer close(done)
		f(r)
	}()
	<-done
	return r.end
}

func TestWhatIsMissingSkipsATestAndFailsItInCI(t *testing.T) {
	lacks := func(t testing.TB) { Skip(t, "the program %s", "promtool") }
	t.Setenv("CI", "")
	assert.Equal(t, "skipped: missing on this machine: the program promtool", ended(lacks))
	t.Setenv("CI", "true")
	assert.Equal(t, "failed: missing on this machine: the program promtool "+
		"(CI=true: nothing may be missing)", ended(lacks))
}

func TestWhatIsLongIsLeftOutByShortAndNeverInCI(t *testing.T) {
	slow := func(t testing.TB) { Long(t, "takes a minute") }
	was := flag.Lookup("test.short").Value.String()
	t.Cleanup(func() { require.NoError(t, flag.Set("test.short", was)) })
	for _, tc := range []struct{ short, ci, want string }{
		{"false", "", "passed"},
		{"false", "true", "passed"},
		{"true", "", "skipped: -short: it takes a minute"},
		{"true", "true", "failed: -short leaves out what takes a minute " +
			"(CI=true: nothing may be left out)"},
	} {
		require.NoError(t, flag.Set("test.short", tc.short))
		t.Setenv("CI", tc.ci)
		assert.Equal(t, tc.want, ended(slow))
	}
}

func TestWhatIsForAFullRunIsLeftOutByDefault(t *testing.T) {
	full := func(t testing.TB) { OnlyFull(t, "tries all") }
	t.Setenv("CI", "true") // nothing is missing
	for long, want := range map[string]string{
		"":  "skipped: SCHEDLOCK_TEST_LONG is not set: it tries all",
		"1": "passed",
	} {
		t.Setenv(FullEnv, long)
		assert.Equal(t, want, ended(full))
		some := Some(1, 2, 3)
		assert.Equal(t, long != "", len(some) == 3)
		assert.Equal(t, []int{1, 3}, []int{some[0], some[len(some)-1]})
	}
}

func TestWhatIsCostlyIsLeftOutByHandAndNeverInCI(t *testing.T) {
	costly := func(t testing.TB) { Costly(t, "starts a cluster") }
	was := flag.Lookup("test.short").Value.String()
	t.Cleanup(func() { require.NoError(t, flag.Set("test.short", was)) })
	for _, tc := range []struct{ short, ci, full, want string }{
		{"false", "", "", "skipped: neither SCHEDLOCK_TEST_LONG nor CI=true is set: " +
			"it starts a cluster"},
		{"false", "", "1", "passed"},
		{"false", "true", "", "passed"},
		{"true", "", "1", "skipped: -short: it starts a cluster"},
		{"true", "true", "", "failed: -short leaves out what starts a cluster " +
			"(CI=true: nothing may be left out)"},
	} {
		require.NoError(t, flag.Set("test.short", tc.short))
		t.Setenv("CI", tc.ci)
		t.Setenv(FullEnv, tc.full)
		assert.Equal(t, tc.want, ended(costly), "%+v", tc)
	}
}
