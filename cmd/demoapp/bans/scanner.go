package bans

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strconv"
)

const (
	// maxLine is how much of a line is kept; the rest is read and dropped. The
	// longest network has 43 bytes, so only a comment may be longer.
	maxLine = 4096
	// maxExcerpt is how many bytes of a garbage line are quoted.
	maxExcerpt = 40
)

var byteOrderMark = []byte("\xef\xbb\xbf")

// The reasons why a line is garbage. They are our own because those of net/netip
// quote the whole line.
var (
	errTooLong   = fmt.Errorf("%d bytes or longer", maxLine)
	errZone      = errors.New("has a zone")
	errAddress   = errors.New("not an IP address")
	errCIDR      = errors.New("not a CIDR")
	errEverybody = errors.New("is every address there is, so it is no ban")
	errMappedLen = errors.New("IPv4-mapped network shorter than /96")
)

// BadLine is a line of a list that is neither a network nor a comment.
type BadLine struct {
	Number  int    // counted from 1
	Excerpt string // the start of the line, quoted, ASCII only
	Reason  string
}

func (b BadLine) String() string {
	return fmt.Sprintf("line %d: %s: %s", b.Number, b.Excerpt, b.Reason)
}

// Scanner reads the networks of one block list: an address or CIDR a line, with
// "#" and ";" comments. Like bufio.Scanner it is driven by Scan, and it is not
// safe for concurrent use. Unlike it, no line is too long for it.
//
// A garbage line never ends the scan; it is counted, and the first one is kept.
type Scanner struct {
	r       *bufio.Reader
	prefix  netip.Prefix
	lines   int
	garbage int
	bad     BadLine
	err     error
}

// NewScanner returns a Scanner that reads from r.
func NewScanner(r io.Reader) *Scanner {
	return &Scanner{r: bufio.NewReaderSize(r, maxLine)}
}

// Scan moves to the next network, which Prefix then returns. It returns false at
// the end of the list or at the first read error, which Err tells apart.
func (s *Scanner) Scan() bool {
	s.prefix = netip.Prefix{}
	for s.err == nil {
		line, tooLong, ok := s.readLine()
		if !ok {
			break
		}
		if i := bytes.IndexAny(line, "#;"); i >= 0 {
			line, tooLong = line[:i], false // only the comment was cut
		}
		line = bytes.TrimSpace(line)
		if len(line) == 0 && !tooLong {
			continue
		}
		prefix, err := parsePrefix(line)
		if tooLong {
			err = errTooLong
		}
		if err != nil {
			s.addGarbage(line, err)
			continue
		}
		s.prefix = prefix
		return true
	}
	return false
}

// Prefix returns the network that the last Scan found: masked, with an address as
// /32 or /128 and an IPv4-mapped IPv6 network as IPv4, so that one network has one
// spelling. After a Scan that returned false it is the zero Prefix.
func (s *Scanner) Prefix() netip.Prefix { return s.prefix }

// Err returns the read error that ended the scan; nil at the end of the list.
func (s *Scanner) Err() error { return s.err }

// Lines returns the number of lines read so far.
func (s *Scanner) Lines() int { return s.lines }

// Garbage returns the number of garbage lines so far.
func (s *Scanner) Garbage() int { return s.garbage }

// FirstBad returns the first garbage line; zero if there was none.
func (s *Scanner) FirstBad() BadLine { return s.bad }

// readLine returns the next line, or its first maxLine bytes if tooLong. The line
// is valid until the next read. A last line that a read error cut short is not
// returned: its start could be the address of somebody else.
func (s *Scanner) readLine() (line []byte, tooLong, ok bool) {
	line, err := s.r.ReadSlice('\n')
	if errors.Is(err, bufio.ErrBufferFull) {
		tooLong = true
		line = bytes.Clone(line) // the buffer is about to be overwritten
		for errors.Is(err, bufio.ErrBufferFull) {
			_, err = s.r.ReadSlice('\n')
		}
	}
	if err != nil {
		if !errors.Is(err, io.EOF) {
			s.err = err
			return nil, false, false
		}
		if len(line) == 0 {
			return nil, false, false
		}
	}
	if s.lines == 0 {
		line = bytes.TrimPrefix(line, byteOrderMark)
	}
	s.lines++
	return line, tooLong, true
}

func (s *Scanner) addGarbage(line []byte, reason error) {
	if s.garbage++; s.garbage > 1 {
		return
	}
	excerpt, cut := line, ""
	if len(excerpt) > maxExcerpt {
		excerpt, cut = excerpt[:maxExcerpt], "..."
	}
	s.bad = BadLine{Number: s.lines, Excerpt: strconv.QuoteToASCII(string(excerpt)) + cut,
		Reason: reason.Error()}
}

// parsePrefix parses an address or CIDR without space around it.
func parsePrefix(text []byte) (netip.Prefix, error) {
	if bytes.IndexByte(text, '%') >= 0 {
		return netip.Prefix{}, errZone
	}
	if bytes.IndexByte(text, '/') < 0 {
		addr, err := netip.ParseAddr(string(text))
		if err != nil {
			return netip.Prefix{}, errAddress
		}
		addr = addr.Unmap()
		return netip.PrefixFrom(addr, addr.BitLen()), nil
	}
	prefix, err := netip.ParsePrefix(string(text))
	if err != nil {
		return netip.Prefix{}, errCIDR
	}
	if prefix.Addr().Is4In6() {
		if prefix.Bits() < 96 {
			return netip.Prefix{}, errMappedLen
		}
		prefix = netip.PrefixFrom(prefix.Addr().Unmap(), prefix.Bits()-96)
	}
	if prefix.Bits() == 0 {
		return netip.Prefix{}, errEverybody
	}
	return prefix.Masked(), nil
}
