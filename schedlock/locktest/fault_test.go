package locktest

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// A call is one call of a method of a broken store, on its way to a sound one.
// The types that embed it add the arguments and the results of their method.
type call[S any] struct {
	s S // the sound store
	flow
}

type flow struct {
	ctx context.Context
	do  func() // calls the sound store with the arguments, and keeps the results
	err error  // the last of the results
}

func (f *flow) base() *flow { return f }

func start[S any](ctx context.Context, s S) call[S] { return call[S]{s, flow{ctx: ctx}} }

type aCall interface{ base() *flow }

// play makes a call of a store with a fault, which is a func(C) that gets all calls of the one
// method whose calls are of that type. A call of another method is passed on.
func play[C aCall](fault any, c C, do func()) {
	c.base().do = do
	if broken, ok := fault.(func(C)); ok {
		broken(c)
	} else {
		do()
	}
}

// deaf does not heed the context.
func deaf[C aCall](c C) {
	f := c.base()
	f.ctx = context.WithoutCancel(f.ctx)
	f.do()
}

// before changes the arguments.
func before[C aCall](change func(C)) func(C) {
	return func(c C) {
		change(c)
		c.base().do()
	}
}

// after changes the results, or does something more.
func after[C aCall](change func(C)) func(C) {
	return func(c C) {
		c.base().do()
		change(c)
	}
}

// each changes what is in a list.
func each[T any](list []T, change func(*T)) {
	for i := range list {
		change(&list[i])
	}
}

// refuse does nothing but return err, where when says so.
func refuse[C aCall](err error, when func(C) bool) func(C) {
	return func(c C) {
		if when(c) {
			c.base().err = err
		} else {
			c.base().do()
		}
	}
}

// forgive takes an error for none.
func forgive[C aCall](err error) func(C) {
	return after(func(c C) {
		if f := c.base(); errors.Is(f.err, err) {
			f.err = nil
		}
	})
}

var errNUL = errors.New("invalid byte sequence")

// A recorder is a test that may fail.
type recorder struct {
	testing.TB
	failed bool
	said   strings.Builder
}

func (r *recorder) Error(args ...any) { r.failed = true; fmt.Fprintln(&r.said, args...) }
func (r *recorder) Errorf(f string, args ...any) {
	r.failed = true
	fmt.Fprintf(&r.said, f+"\n", args...)
}
func (r *recorder) Fatal(args ...any)            { r.Error(args...); r.FailNow() }
func (r *recorder) Fatalf(f string, args ...any) { r.Errorf(f, args...); r.FailNow() }
func (r *recorder) Fail()                        { r.failed = true }
func (r *recorder) FailNow()                     { r.failed = true; runtime.Goexit() }
func (r *recorder) Failed() bool                 { return r.failed }

// record tries a rule in a bubble, where waiting takes no time, and returns what
// failed, "" if nothing.
func record(t *testing.T, try func(t testing.TB)) string {
	r := &recorder{}
	synctest.Test(t, func(t *testing.T) {
		r.TB = t
		done := make(chan struct{})
		go func() {
			defer close(done)
			try(r)
		}()
		<-done
		time.Sleep(time.Hour) // what hangs in a broken store comes to its end
	})
	if r.failed {
		return r.said.String() + " "
	}
	return ""
}
