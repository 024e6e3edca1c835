package bans

import (
	"bytes"
	"errors"
	"io"
	"net/netip"
	"runtime"
	"strings"
	"testing"
	"testing/iotest"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
)

func scanAll(s *Scanner) []string {
	var found []string
	for s.Scan() {
		found = append(found, s.Prefix().String())
	}
	return found
}

func TestScannerReadsNetworks(t *testing.T) {
	tests := []struct {
		name  string
		input string
		want  []string
		lines int
	}{
		{"empty file", "", nil, 0},
		{"address", "192.0.2.1\n", []string{"192.0.2.1/32"}, 1},
		{"IPv6 address", "2001:DB8:0::1\n", []string{"2001:db8::1/128"}, 1},
		{"CIDR", "192.0.2.0/24\n", []string{"192.0.2.0/24"}, 1},
		{"CIDR with host bits", "192.0.2.77/24\n2001:db8::ffff/32\n",
			[]string{"192.0.2.0/24", "2001:db8::/32"}, 2},
		{"no newline at the end", "192.0.2.1\n192.0.2.2",
			[]string{"192.0.2.1/32", "192.0.2.2/32"}, 2},
		{"CR LF", "192.0.2.1\r\n\r\n192.0.2.2\r\n", []string{"192.0.2.1/32", "192.0.2.2/32"}, 3},
		{"byte order mark", "\xef\xbb\xbf192.0.2.1\n", []string{"192.0.2.1/32"}, 1},
		{"byte order mark before a comment", "\xef\xbb\xbf# list\n192.0.2.1\n",
			[]string{"192.0.2.1/32"}, 2},
		{"spaces and tabs", " \t192.0.2.1 \t \n   \n", []string{"192.0.2.1/32"}, 2},
		{"comments", "# a\n; b\n  # c\n192.0.2.1 # d\n192.0.2.2;e\n192.0.2.3 ; SBL1 # f\n",
			[]string{"192.0.2.1/32", "192.0.2.2/32", "192.0.2.3/32"}, 6},
		{"binary in a comment", "# \x00\xff\n192.0.2.1 # \x00\n", []string{"192.0.2.1/32"}, 2},
		{"IPv4-mapped address", "::ffff:192.0.2.1\n", []string{"192.0.2.1/32"}, 1},
		{"IPv4-mapped CIDR", "::ffff:192.0.2.77/120\n", []string{"192.0.2.0/24"}, 1},
		{"duplicates are the caller's", "192.0.2.1\n192.0.2.1\n",
			[]string{"192.0.2.1/32", "192.0.2.1/32"}, 2},
		{"long comment", "192.0.2.1 #" + strings.Repeat("x", 3*maxLine) + "\n#" +
			strings.Repeat("x", 3*maxLine) + "\n192.0.2.2\n",
			[]string{"192.0.2.1/32", "192.0.2.2/32"}, 3},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := NewScanner(strings.NewReader(tt.input))
			assert.Equal(t, tt.want, scanAll(s))
			assert.NoError(t, s.Err())
			assert.Equal(t, tt.lines, s.Lines())
			assert.Zero(t, s.FirstBad())
			assert.Zero(t, s.Garbage())
		})
	}
}

func TestScannerReportsGarbageAndGoesOn(t *testing.T) {
	tests := []struct {
		name    string
		line    string
		excerpt string
		reason  error
	}{
		{"word", "localhost", `"localhost"`, errAddress},
		{"two words", "192.0.2.1 bad", `"192.0.2.1 bad"`, errAddress},
		{"octet out of range", "192.0.2.256", `"192.0.2.256"`, errAddress},
		{"leading zero", "192.0.2.01", `"192.0.2.01"`, errAddress},
		{"range", "192.0.2.1-192.0.2.9", `"192.0.2.1-192.0.2.9"`, errAddress},
		{"byte order mark inside", "\xef\xbb\xbf192.0.2.1", `"\ufeff192.0.2.1"`, errAddress},
		{"every address", "0.0.0.0/0", `"0.0.0.0/0"`, errEverybody},
		{"every address with host bits", "192.0.2.1/0", `"192.0.2.1/0"`, errEverybody},
		{"every IPv6 address", "::/0", `"::/0"`, errEverybody},
		{"every IPv4-mapped address", "::ffff:0.0.0.0/96", `"::ffff:0.0.0.0/96"`, errEverybody},
		{"prefix too long", "192.0.2.0/33", `"192.0.2.0/33"`, errCIDR},
		{"prefix missing", "192.0.2.0/", `"192.0.2.0/"`, errCIDR},
		{"prefix negative", "192.0.2.0/-1", `"192.0.2.0/-1"`, errCIDR},
		{"netmask", "192.0.2.0/255.255.255.0", `"192.0.2.0/255.255.255.0"`, errCIDR},
		{"zone", "fe80::1%eth0", `"fe80::1%eth0"`, errZone},
		{"zone in a CIDR", "fe80::%eth0/64", `"fe80::%eth0/64"`, errZone},
		{"mapped and shorter than the mapping", "::ffff:192.0.2.1/64", `"::ffff:192.0.2.1/64"`,
			errMappedLen},
		{"NUL", "192.0.2.1\x00", `"192.0.2.1\x00"`, errAddress},
		{"binary", "\x7fELF\xff\x1b[31m", `"\x7fELF\xff\x1b[31m"`, errAddress},
		{"text is cut", strings.Repeat("é", 30), `"` + strings.Repeat(`\u00e9`, 20) + `"...`,
			errAddress},
		{"before a comment", "bad # comment", `"bad"`, errAddress},
		{"too long", strings.Repeat("1", maxLine+1), `"` + strings.Repeat("1", maxExcerpt) + `"...`,
			errTooLong},
		{"address and too much space", "192.0.2.1" + strings.Repeat(" ", maxLine) + "3",
			`"192.0.2.1"`, errTooLong},
		{"too much space before", strings.Repeat(" ", maxLine) + "192.0.2.1", `""`, errTooLong},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := NewScanner(strings.NewReader("192.0.2.1\n" + tt.line + "\n192.0.2.2\n"))
			assert.Equal(t, []string{"192.0.2.1/32", "192.0.2.2/32"}, scanAll(s))
			assert.NoError(t, s.Err())
			assert.Equal(t, 3, s.Lines())
			assert.Equal(t, 1, s.Garbage())
			assert.Equal(t, BadLine{Number: 2, Excerpt: tt.excerpt, Reason: tt.reason.Error()},
				s.FirstBad())
		})
	}
}

func TestScannerCountsAllGarbageAndKeepsTheFirst(t *testing.T) {
	s := NewScanner(strings.NewReader("first\n" + strings.Repeat("bad\n", 999)))
	assert.Empty(t, scanAll(s))
	assert.Equal(t, 1000, s.Garbage())
	assert.Equal(t, `line 1: "first": not an IP address`, s.FirstBad().String())
}

// The line that a read error cuts short must not be taken for a network: the
// 192.0.2.1 here may have been 192.0.2.111.
func TestScannerDropsTheLineThatAReadErrorCuts(t *testing.T) {
	broken := errors.New("broken")
	s := NewScanner(io.MultiReader(strings.NewReader("192.0.2.9\n192.0.2.1"),
		iotest.ErrReader(broken)))
	assert.Equal(t, []string{"192.0.2.9/32"}, scanAll(s))
	assert.ErrorIs(t, s.Err(), broken)
	assert.False(t, s.Scan(), "a scan after the end")
	assert.Equal(t, netip.Prefix{}, s.Prefix())
}

// repeat reads as n times the byte b.
type repeat struct {
	b byte
	n int64
}

func (r *repeat) Read(p []byte) (int, error) {
	if r.n == 0 {
		return 0, io.EOF
	}
	p = p[:min(int64(len(p)), r.n)]
	for i := range p {
		p[i] = r.b
	}
	r.n -= int64(len(p))
	return len(p), nil
}

func TestScannerMemoryIsBounded(t *testing.T) {
	const size = 4 << 20
	for _, b := range []byte{'1', 0, '#', ' ', '\n'} {
		input := io.MultiReader(&repeat{b, size}, strings.NewReader("\n192.0.2.1\n"))
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		s := NewScanner(input)
		found := scanAll(s)
		runtime.ReadMemStats(&after)
		assert.Equal(t, []string{"192.0.2.1/32"}, found)
		assert.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(1<<20),
			"allocated for %d MiB of %q", size>>20, b)
	}
}

func FuzzScanner(f *testing.F) {
	for _, seed := range []string{
		"", "\n", "192.0.2.1", "\xef\xbb\xbf192.0.2.0/24 # x\r\n;y\n", "::ffff:192.0.2.1/96\n",
		"fe80::1%eth0\n",
		"2001:db8::/32;\x00", "bad\x00\xff\n", strings.Repeat(" ", maxLine) +
			"1", strings.Repeat("1\n", 50),
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, input []byte) {
		s := NewScanner(bytes.NewReader(input))
		found := 0
		for s.Scan() {
			found++
			p := s.Prefix()
			if !p.IsValid() || p != p.Masked() || p.Addr().Zone() != "" || p.Addr().Is4In6() {
				t.Fatalf("%v is not in normal form", p)
			}
			again := NewScanner(strings.NewReader(p.String()))
			if !again.Scan() || again.Prefix() != p {
				t.Fatalf("%v reads back as %v", p, again.Prefix())
			}
		}
		if s.Err() != nil {
			t.Fatalf("error from a reader that has none: %v", s.Err())
		}
		lines := bytes.Count(input, []byte("\n"))
		if len(input) > 0 && input[len(input)-1] != '\n' {
			lines++
		}
		if s.Lines() != lines {
			t.Fatalf("%d lines, want %d", s.Lines(), lines)
		}
		if found+s.Garbage() > lines {
			t.Fatalf("%d networks and %d garbage lines on %d lines", found, s.Garbage(), lines)
		}
		bad := s.FirstBad()
		if (bad != BadLine{}) != (s.Garbage() > 0) {
			t.Fatalf("%d garbage lines, the first is %v", s.Garbage(), bad)
		}
		if len(bad.Excerpt) > 10*maxExcerpt || !utf8.ValidString(bad.Excerpt) ||
			strings.ContainsAny(bad.Excerpt, "\r\n\x00\x1b") {
			t.Fatalf("excerpt %q", bad.Excerpt)
		}
	})
}
