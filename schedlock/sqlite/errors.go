package sqlite

import (
	"errors"
	"strings"

	"github.com/ncruces/go-sqlite3"
)

// is tells whether an error has one of SQLite's primary result codes. The errors
// of other drivers have types of their own, and in common only SQLite's texts.
func is(err error, codes ...sqlite3.ErrorCode) bool {
	for _, code := range codes {
		if errors.Is(err, code) {
			return true
		}
		if known := (*sqlite3.Error)(nil); err == nil || errors.As(err, &known) {
			continue
		}
		for _, text := range texts[code] {
			if strings.Contains(err.Error(), text) {
				return true
			}
		}
	}
	return false
}

var texts = map[sqlite3.ErrorCode][]string{
	sqlite3.BUSY:     {"database is locked"},
	sqlite3.LOCKED:   {"database table is locked", "database schema is locked"},
	sqlite3.NOTADB:   {"file is not a database"},
	sqlite3.CORRUPT:  {"database disk image is malformed", "malformed database schema"},
	sqlite3.FULL:     {"database or disk is full"},
	sqlite3.READONLY: {"attempt to write a readonly database"},
}
