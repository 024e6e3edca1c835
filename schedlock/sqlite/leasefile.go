package sqlite

import (
	"cmp"
	"encoding/binary"
	"slices"

	"example.com/schedlock/schedlock"
)

// The lease file, <database path>-lease, is how the death of a holder is
// proven on one machine. It holds a random id and is never deleted. A holder
// keeps a lock (fcntl(2), open file description locks) on the one byte of it
// that belongs to its token, from before its row is committed until after the
// row is gone. The kernel drops that lock the moment the process ends, however
// it ends, in any container of the same machine; a process that was only
// stopped keeps it.
//
// Everybody else only asks whether bytes are held and takes none, so a probe
// can confuse nobody. The bytes lie far behind the file's end: nothing is ever
// written there. The locks are not put on the database file itself, which this
// package never opens outside SQLite: closing any descriptor of it would drop
// the locks of a SQLite in the same process that uses POSIX locks.
//
// It exists on Linux, on local file systems. Everywhere else openLeaseFile
// returns errors.ErrUnsupported, and the TTL decides.

// The range of bytes that tokens map to: 2^61 of them from 2^62 on, so that
// the last one is still a valid offset (the largest is 2^63 - 1).
const (
	leaseFirst int64 = 1 << 62
	leaseEnd   int64 = 1<<62 + 1<<61 // the first offset behind the range
)

// leaseOffset is the byte of t: one for each value of the token's first 61
// bits.
func leaseOffset(t schedlock.Token) int64 {
	return leaseFirst + int64(binary.BigEndian.Uint64(t[:8])>>3)
}

// A leaseSpan is a part of the range. It is never empty: to fcntl(2) a length
// of 0 means "to the end of the file, wherever that may come to be".
type leaseSpan struct{ start, length int64 }

// leaseGaps returns the spans of the range that remain between the bytes of
// the given tokens.
func leaseGaps(tokens ...schedlock.Token) []leaseSpan {
	offsets := make([]int64, 0, len(tokens))
	for _, t := range tokens {
		offsets = append(offsets, leaseOffset(t))
	}
	slices.SortFunc(offsets, cmp.Compare[int64])
	var gaps []leaseSpan
	start := leaseFirst
	for _, at := range append(offsets, leaseEnd) {
		if at > start {
			gaps = append(gaps, leaseSpan{start, at - start})
		}
		start = max(start, at+1)
	}
	return gaps
}

// A leaseState is what one probe of the lease file found about a token. The
// zero value says that nothing can be told.
type leaseState struct {
	id     string // of the file that was probed
	held   bool   // somebody holds the token's byte
	others bool   // somebody holds another byte of the range; asked only if the token's is free
}

// sign says what the state means for the holder in the lock row, or, without a
// row, for the holder of the newest term and anybody else who may lead. fileID
// is what that holder wrote down; "" if it wrote NULL.
//
// A free byte is proof of death only in the file that the holder locked it in,
// and only if no other byte is held: an edited token, an old backup put over
// the database or a copied folder show as a free byte beside a held one.
func (s leaseState) sign(row bool, fileID string) schedlock.Sign {
	switch {
	case s.id == "":
		return schedlock.SignNone
	case s.held, s.others && !row:
		return schedlock.SignAlive
	case s.others, s.id != fileID:
		return schedlock.SignNone
	}
	return schedlock.SignDead
}

// A leaseByte is a byte that this process holds.
type leaseByte struct {
	id string // of the file that it is held in: what goes into the row

	// release gives the byte back; further calls do nothing. Until it is
	// called the byte stays held as long as the process lives, even if the
	// leaseByte is forgotten or its leaseFile closed.
	release func() error
}
