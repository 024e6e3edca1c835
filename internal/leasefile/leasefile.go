// Package leasefile is the lease file of a SQLite database, <database path>-lease,
// by which the death of a holder is proven on one machine. The file holds a
// random id and is never deleted. A holder keeps a lock (fcntl(2), open file
// description locks) on the one byte of it that belongs to its token, from before
// its row is committed until after the row is gone. The kernel drops that lock
// the moment the process ends, however it ends, in any container of the same
// machine; a process that was only stopped keeps it.
//
// Everybody else only asks whether bytes are held and takes none, so a probe
// can confuse nobody. The bytes lie far behind the file's end: nothing is ever
// written there. The locks are not put on the database file itself, which is
// never opened outside SQLite: closing any descriptor of it would drop the locks
// of a SQLite in the same process that uses POSIX locks.
//
// It exists on Linux, on local file systems. Everywhere else [Open] returns
// errors.ErrUnsupported, and the TTL decides.
package leasefile

import (
	"cmp"
	"encoding/binary"
	"os"
	"slices"

	"example.com/schedlock/schedlock/driver"
)

// The range of bytes that tokens map to: 2^61 of them from 2^62 on, so that
// the last one is still a valid offset (the largest is 2^63 - 1).
const (
	First int64 = 1 << 62
	End   int64 = 1<<62 + 1<<61 // the first offset behind the range
)

// Offset is the byte of t: one for each value of the token's first 61 bits.
func Offset(t driver.Token) int64 {
	return First + int64(binary.BigEndian.Uint64(t[:8])>>3)
}

// A Span is a part of the range. It is never empty: to fcntl(2) a length of 0
// means "to the end of the file, wherever that may come to be".
type Span struct{ Start, Length int64 }

// gapsBetween returns the spans of the range that remain between the bytes of
// the given tokens.
func gapsBetween(tokens ...driver.Token) []Span {
	offsets := make([]int64, 0, len(tokens))
	for _, t := range tokens {
		offsets = append(offsets, Offset(t))
	}
	slices.SortFunc(offsets, cmp.Compare[int64])
	var gaps []Span
	start := First
	for _, at := range append(offsets, End) {
		if at > start {
			gaps = append(gaps, Span{start, at - start})
		}
		start = max(start, at+1)
	}
	return gaps
}

// A State is what one probe of the lease file found about a token. The zero value
// says that nothing can be told.
type State struct {
	ID     string // of the file that was probed
	Held   bool   // somebody holds the token's byte
	Others bool   // somebody holds another byte of the range; asked only if the token's is free
}

// Sign says what the state means for the holder in the lock row, or, without a
// row, for the holder of the newest term and anybody else who may lead. fileID
// is what that holder wrote down; "" if it wrote NULL.
//
// A free byte is proof of death only in the file that the holder locked it in,
// and only if no other byte is held: an edited token, an old backup put over
// the database or a copied folder show as a free byte beside a held one.
func (s State) Sign(row bool, fileID string) driver.Sign {
	switch {
	case s.ID == "":
		return driver.SignNone
	case s.Held, s.Others && !row:
		return driver.SignAlive
	case s.Others, s.ID != fileID:
		return driver.SignNone
	}
	return driver.SignDead
}

// A Byte is a byte that this process holds.
type Byte struct {
	ID       string // of the file that it is held in: what goes into the row
	Dev, Ino uint64 // of that file, as stat(2) tells them

	// Release gives the byte back; further calls do nothing. Until it is
	// called the byte stays held as long as the process lives, even if the
	// Byte is forgotten or its File closed.
	Release func()

	// Duplicate returns another descriptor of the lock on the byte. Until Release,
	// the byte stays held as long as one of them is open, in whatever process.
	Duplicate func() (*os.File, error)
}
