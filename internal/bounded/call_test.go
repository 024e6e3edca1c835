package bounded

import (
	"errors"
	"io"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
)

type broken struct{ text string }

func (b *broken) Error() string { return b.text }

func TestAFunctionMayEndAsItLikes(t *testing.T) {
	boom := errors.New("boom")
	for name, c := range map[string]struct {
		f       func() error
		text    string // "": no error
		is      error
		isPanic bool
	}{
		"it returns":           {f: func() error { return nil }},
		"it returns an error":  {func() error { return io.EOF }, "EOF", io.EOF, false},
		"it panics":            {func() error { panic("boom") }, "panic: boom", nil, true},
		"it panics with error": {func() error { panic(boom) }, "panic: boom", boom, true},
		"it panics with something that cannot be compared": {f: func() error { panic([]int{1}) },
			text: "panic: [1]", isPanic: true},
		"it returns an error whose methods panic": {func() error { return (*broken)(nil) },
			"panic: runtime error: invalid memory address or nil pointer dereference", nil, true},
		"it ends its goroutine": {f: func() error { runtime.Goexit(); return nil },
			text: "called runtime.Goexit instead of returning", isPanic: true},
	} {
		t.Run(name, func(t *testing.T) {
			err := <-Go(c.f)
			if c.text == "" {
				require.NoError(t, err)
				return
			}
			require.EqualError(t, err, c.text)
			require.True(t, c.is == nil || errors.Is(err, c.is))
			p, isPanic := errors.AsType[*Panic](err)
			require.Equal(t, c.isPanic, isPanic)
			if isPanic {
				require.Contains(t, string(p.Stack), "call_test.go", "where it was")
			}
		})
	}
}
