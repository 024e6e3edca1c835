package bounded

import (
	"errors"
	"fmt"
	"runtime/debug"
)

// Go calls f on a goroutine of its own, because runtime.Goexit (of a t.FailNow,
// say) ends the one that it is on. The error of f can be received once: a *Panic if
// f has not returned one, or if a method of that error panics.
func Go(f func() error) <-chan error {
	result := make(chan error, 1)
	go func() {
		var err error
		returned := false
		defer func() {
			value := recover()
			if value == nil && !returned {
				value = errGoexit
			}
			if value != nil {
				err = &Panic{Value: value, Stack: debug.Stack()}
			}
			result <- err
		}()
		err = f()
		if err != nil {
			ask(err)
		}
		returned = true
	}()
	return result
}

// ask calls the methods of an error as others do later, on goroutines that no panic may end.
// Those of a nil pointer that was returned as an error can panic.
func ask(err error) {
	_ = err.Error()
	_ = errors.Is(err, errGoexit)
	_, _ = errors.AsType[*Panic](err)
}

// A Panic is what a function has ended with instead of returning. Its text is one
// line.
type Panic struct {
	Value any // an error after runtime.Goexit
	Stack []byte
}

var errGoexit = errors.New("called runtime.Goexit instead of returning")

func (p *Panic) Error() string {
	if p.Value == any(errGoexit) {
		return errGoexit.Error()
	}
	return fmt.Sprintf("panic: %v", p.Value)
}

// Unwrap returns the value that f has panicked with if it is an error.
func (p *Panic) Unwrap() error {
	err, _ := p.Value.(error)
	return err
}
