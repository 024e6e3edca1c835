package named

import (
	"fmt"
	"sync/atomic"

	"example.com/schedlock/internal/rules"
	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/driver"
)

// A HeldError says that a lock could not be taken, and who holds it.
// errors.Is(err, schedlock.ErrHeld) is true for it.
type HeldError struct {
	Info Info
}

func (e *HeldError) Error() string {
	i := e.Info
	by := fmt.Sprintf("by pid %d on host %q (term %d), %s ago", i.PID, i.Hostname, i.Term,
		rules.RoundAge(i.Age))
	left := rules.RoundAge(i.Left)
	switch {
	case i.FailedOver:
		return fmt.Sprintf("%s cannot be taken before %s have passed: "+
			"the database server has failed over, and may have lost who holds it", i.Key, left)
	case i.Revoked != nil:
		return fmt.Sprintf("%s was taken %s, was revoked by %s (%s), and can be taken in %s", i.Key,
			by, i.Revoked.By, i.Revoked.Reason, left)
	case i.Left <= 0:
		return fmt.Sprintf("%s was taken %s, and has ended; "+
			"but a transaction that its holder has guarded by Fence has not", i.Key, by)
	case i.Kind == KindTimeout:
		return fmt.Sprintf("%s was taken %s, and can be taken again in %s", i.Key, by, left)
	case i.Resting:
		return fmt.Sprintf("%s was taken %s, is released, and can be taken again in %s", i.Key,
			by, left)
	}
	return fmt.Sprintf("%s is held: it was taken %s, and ends in %s "+
		"unless it is extended or released", i.Key, by, left)
}

// Is reports whether target is schedlock.ErrHeld.
func (e *HeldError) Is(target error) bool { return target == schedlock.ErrHeld }

// endError says that a lock has ended. It is schedlock.ErrLost or
// schedlock.ErrReleased, whose own texts speak of the scheduler's lock.
type endError struct {
	is   error
	text string
	why  atomic.Pointer[string] // may be found out after the end; nil: text says all
	err  error                  // nil: there is none behind it
}

func lost(key Key, term int64, why string, err error) *endError {
	e := &endError{is: driver.ErrLost, text: fmt.Sprintf("%s (term %d) is lost", key, term),
		err: err}
	e.why.Store(&why)
	return e
}

func released(key Key, term int64) error {
	return &endError{is: schedlock.ErrReleased, text: fmt.Sprintf("%s (term %d) was released",
		key, term)}
}

func (e *endError) Error() string {
	text := e.text
	if why := e.why.Load(); why != nil {
		text += ": " + *why
	}
	if e.err != nil {
		text += ": " + e.err.Error()
	}
	return text
}

func (e *endError) Is(target error) bool { return target == e.is }
func (e *endError) Unwrap() error        { return e.err }

// broken names the key in an error of the store.
func broken(what string, key Key, err error) error {
	return fmt.Errorf("%s %s: %w", what, key, err)
}
