package leasefile

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"example.com/schedlock/internal/child"
	"example.com/schedlock/schedlock/driver"
)

func TestMain(m *testing.M) { child.Main(m) }

// tokenAt is a token with the given first 61 bits.
func tokenAt(bits uint64) (t driver.Token) {
	for i := range 8 {
		t[i] = byte(bits << 3 >> (56 - 8*i))
	}
	return t
}

const maxTokenBits = 1<<61 - 1

func TestEachTokenHasAByteOfItsOwn(t *testing.T) {
	for _, tc := range []struct {
		token driver.Token
		want  int64
	}{
		{tokenAt(0), 1 << 62},
		{tokenAt(1), 1<<62 + 1},
		{tokenAt(maxTokenBits), 1<<62 + 1<<61 - 1},
		{driver.Token{0: 0x80}, 1<<62 + 1<<60},
		{driver.Token{7: 0x07, 8: 0xff, 15: 0xff}, 1 << 62}, // only bits after the first 61
		{driver.Token{7: 0x08}, 1<<62 + 1},
	} {
		assert.Equal(t, tc.want, Offset(tc.token), "token %v", tc.token)
	}
	seen := map[int64]driver.Token{}
	for range 10_000 {
		token := driver.NewToken()
		if other, ok := seen[Offset(token)]; ok {
			t.Fatalf("%v and %v share a byte", token, other)
		}
		seen[Offset(token)] = token
	}
}

func TestGapsCoverAllButTheTokens(t *testing.T) {
	for _, bits := range [][]uint64{
		{}, {0}, {maxTokenBits}, {0, maxTokenBits}, {5}, {5, 6}, {6, 5, 4}, {5, 5}, {0, 1, 7,
			maxTokenBits - 1, maxTokenBits},
	} {
		var tokens []driver.Token
		left := map[int64]bool{}
		for _, b := range bits {
			tokens = append(tokens, tokenAt(b))
			left[First+int64(b)] = true
		}
		next := First
		skip := func(to int64) {
			for ; next < to; next++ {
				if !left[next] {
					t.Fatalf("%v: byte %#x is in no gap", bits, next)
				}
				delete(left, next)
			}
		}
		for _, gap := range gapsBetween(tokens...) {
			if gap.Start < next || gap.Length <= 0 || gap.Start+gap.Length > End ||
				gap.Start+gap.Length < 0 {
				t.Fatalf("%v: gap %+v after %#x", bits, gap, next)
			}
			skip(gap.Start)
			next += gap.Length
			for at := range left {
				if at >= gap.Start && at < next {
					t.Fatalf("%v: gap %+v has byte %#x of a token", bits, gap, at)
				}
			}
		}
		skip(End)
		if len(left) > 0 {
			t.Errorf("%v: not left out: %v", bits, left)
		}
	}
}

func TestOnlyAFreeByteInTheHoldersOwnFileProvesDeath(t *testing.T) {
	for _, tc := range []struct {
		name  string
		state State
		row   bool
		id    string
		want  driver.Sign
	}{
		{"nothing can be told", State{}, true, "a", driver.SignNone},
		{"nothing can be told, NULL", State{}, true, "", driver.SignNone},
		{"nothing can be told, no row", State{}, false, "", driver.SignNone},
		{"free", State{ID: "a"}, true, "a", driver.SignDead},
		{"free, another file", State{ID: "b"}, true, "a", driver.SignNone},
		{"free, the holder wrote NULL", State{ID: "a"}, true, "", driver.SignNone},
		{"held", State{ID: "a", Held: true}, true, "a", driver.SignAlive},
		{"held, another held too", State{ID: "a", Held: true, Others: true}, true, "a",
			driver.SignAlive},
		{"free, another held", State{ID: "a", Others: true}, true, "a", driver.SignNone},
		{"no row, free", State{ID: "a"}, false, "a", driver.SignDead},
		{"no row, free, another file", State{ID: "b"}, false, "a", driver.SignNone},
		{"no row, held", State{ID: "a", Held: true}, false, "a", driver.SignAlive},
		{"no row, another held", State{ID: "a", Others: true}, false, "a", driver.SignAlive},
		{"a new database, another held", State{ID: "a", Others: true}, false, "",
			driver.SignAlive},
		{"a new database", State{ID: "a"}, false, "", driver.SignNone},
	} {
		assert.Equal(t, tc.want, tc.state.Sign(tc.row, tc.id), tc.name)
	}
}
