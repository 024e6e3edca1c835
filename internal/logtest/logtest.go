// Package logtest keeps what was logged, for tests that read it meanwhile.
package logtest

import (
	"bytes"
	"log/slog"
	"strings"
	"sync"
)

// A Log is what a logger, or a process, writes to while a test reads it.
type Log struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

// Logger writes to the log.
func (l *Log) Logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

// Write implements io.Writer.
func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

// String is all that was written.
func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// Count is how many lines contain a text.
func (l *Log) Count(text string) (n int) {
	for line := range strings.Lines(l.String()) {
		if strings.Contains(line, text) {
			n++
		}
	}
	return n
}
