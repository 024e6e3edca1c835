package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/pflag"

	"example.com/schedlock/cmd/schedlock/internal/guard"
	"example.com/schedlock/internal/assess"
	"example.com/schedlock/schedlock"
	"example.com/schedlock/schedlock/driver"
	"example.com/schedlock/schedlock/named"
	"example.com/schedlock/schedlock/sqlite"
)

func (x *execution) run(context.Context) (int, error) {
	if !x.tool.inner {
		// Before the database is opened: --once-per is not used up by what can't run.
		if _, err := guard.Find(x.tool.args[0]); err != nil {
			return 0, notStarted(err)
		}
		// In front: of a name that stands there twice the first counts.
		env := append([]string{innerVariable + "=" + x.tool.dsn}, os.Environ()...)
		return guard.Outer(x.withoutAddress(), env,
			x.pidNamespace, x.tool.errOut), nil
	}
	x.tool.stepAside()
	inner, err := guard.NewInner()
	if err != nil {
		return 0, &codeError{guard.ExitFailed, fmt.Errorf("exec: %w", err)}
	}
	code, err := x.inside(inner)
	if err != nil {
		failed := new(codeError)
		if !errors.As(err, &failed) {
			failed = &codeError{guard.ExitFailed, fmt.Errorf("exec: %w", err)}
		}
		inner.Exit(failed.code)
		return 0, failed
	}
	return inner.Exit(code), nil
}

// withoutAddress are the arguments of the program but --db: everybody can see those of a
// process, and the address may have a password.
func (x *execution) withoutAddress() []string {
	args := []string{"exec"}
	x.flags.Visit(func(f *pflag.Flag) {
		if f.Name != "db" {
			args = append(args, "--"+f.Name+"="+f.Value.String())
		}
	})
	return append(append(args, "--"), x.tool.args...)
}

// notStarted gives an error of guard.Inner.Run, or of guard.Find, its exit code.
func notStarted(err error) error {
	if start, ok := errors.AsType[*guard.StartError](err); ok {
		return &codeError{start.Code(), err}
	}
	return err
}

func (x *execution) inside(inner *guard.Inner) (int, error) {
	host, _ := os.Hostname()
	x.owner = driver.Owner{PID: inner.Outer(), Hostname: cmp.Or(host, "unknown")}
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	go func() {
		select {
		case sig := <-inner.Told():
			cancel(guard.Signal(sig))
		case <-inner.Gone():
			cancel(guard.Signal(syscall.SIGKILL))
		case <-ctx.Done():
		}
	}()
	within := ctx
	if x.within > 0 {
		var stop context.CancelFunc
		within, stop = context.WithTimeoutCause(ctx, x.within, errLate)
		defer stop()
	}
	log := x.tool.logger(x.verbose)
	store, err := x.tool.openAndMigrate(within, log)
	if err != nil {
		return x.notHad(ctx, within, err)
	}
	defer store.Close()
	locks, err := x.locks(store, log)
	if err != nil {
		return 0, err
	}
	return x.campaign(ctx, within, inner, locks, log)
}

// errLate is the cause of a context when --timeout has passed.
var errLate = errors.New("the time has passed")

// A holder is the lock while it is held.
type holder struct {
	guard.Hold
	term    int64
	token   driver.Token
	revoked <-chan struct{} // nil: nobody can
	drain   func()
	release func(context.Context) error
	unused  func(context.Context) error // release, if nothing ran; nil: the same
}

// A taker takes the lock: at once, or not at all, or it waits.
type taker func(ctx context.Context, wait bool) (*holder, error)

// campaign runs the command each time that the lock is had, the first time before within ends.
// While it waits it outlives an outage of the database, as does whoever stands by in an app.
func (x *execution) campaign(ctx, within context.Context, inner *guard.Inner, take taker,
	log *slog.Logger) (int, error) {
	const longest = time.Minute
	pause, wait := time.Second, !x.noWait && x.oncePer == 0
	for {
		h, err := take(within, wait)
		begun := time.Now()
		switch {
		case err == nil:
			end, err := x.under(ctx, inner, h)
			switch {
			case err != nil:
				return 0, err
			case ctx.Err() != nil, x.oncePer > 0:
				return end.Code, nil
			case !end.Own:
				log.Warn("the command was stopped, as the lock was lost or handed over",
					"term", h.term, "code", end.Code)
				pause = time.Second
			case x.restart == restartNever, x.restart == restartOnFailure && end.Code == 0:
				return end.Code, nil
			default:
				if time.Since(begun) > longest {
					pause = time.Second
				}
				log.Warn("the command has ended, and is started again", "code", end.Code,
					"pause", pause)
			}
			within, wait = ctx, true
		case !wait, within.Err() != nil, errors.Is(err, driver.ErrPermanent):
			return x.notHad(ctx, within, err)
		default: // after an outage nobody shall wait for long
			pause = min(pause, 4*time.Second)
			log.Warn("the lock cannot be taken: it is tried again", "err", err, "pause", pause)
		}
		select {
		case <-within.Done():
			return x.notHad(ctx, within, cmp.Or(err, within.Err()))
		case <-time.After(pause):
		}
		pause = min(2*pause, longest)
	}
}

// notHad is the end of exec without the lock.
func (x *execution) notHad(ctx, within context.Context, err error) (int, error) {
	late, taken := errors.Is(context.Cause(within), errLate), errors.Is(err, schedlock.ErrHeld)
	var sig guard.Signal
	switch {
	case errors.As(context.Cause(ctx), &sig):
		return guard.ExitSignal(syscall.Signal(sig)), nil
	case !late && !taken:
		return 0, err
	case x.skipOK && taken && !failedOver(err):
		// A database that is silent, or has forgotten, is no other that does the work.
		return exitDone, nil
	case late:
		err = fmt.Errorf("the lock was not had within %v: %w", x.within, err)
	}
	return 0, &codeError{exitTemporary, err}
}

// failedOver reports whether a named lock can't be taken though nobody is known to hold it.
func failedOver(err error) bool {
	held, ok := errors.AsType[*named.HeldError](err)
	return ok && held.Info.FailedOver
}

// under runs the command, and gives the lock back.
func (x *execution) under(ctx context.Context, inner *guard.Inner, h *holder) (guard.End, error) {
	work, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		select {
		case <-h.revoked:
			h.drain()
			cancel(errors.New("handed over"))
		case <-work.Done():
		}
	}()
	end, err := inner.Run(work, h.Hold, guard.Command{Args: x.tool.args, Env: x.environ(h),
		Grace: x.grace})
	if h.Lease != nil {
		h.Lease.Close()
	}
	release := h.release
	if err != nil && h.unused != nil {
		release = h.unused
	}
	released := release(context.WithoutCancel(ctx))
	switch {
	case err != nil:
		return end, notStarted(err)
	case released != nil && !errors.Is(released, schedlock.ErrLost):
		fmt.Fprintln(x.tool.errOut, "schedlock: exec: the lock is not given back:",
			plain(released.Error()))
	}
	return end, nil
}

// environ is that of the command.
func (x *execution) environ(h *holder) []string {
	name, kind := x.name, string(named.KindLock)
	switch {
	case name == "":
		name, kind = kindScheduler, kindScheduler
	case x.oncePer > 0:
		kind = string(named.KindTask)
	}
	env := slices.DeleteFunc(os.Environ(), func(v string) bool {
		for _, own := range []string{variableName, variableKind, variableTerm, variableToken,
			"SCHEDLOCK_HOLDER", innerVariable} {
			if strings.HasPrefix(v, own+"=") {
				return true
			}
		}
		return false
	})
	return append(env, variableName+"="+name, variableKind+"="+kind,
		variableTerm+"="+strconv.FormatInt(h.term, 10), variableToken+"="+h.token.String(),
		fmt.Sprintf("SCHEDLOCK_HOLDER=%d on %s", x.owner.PID, x.owner.Hostname))
}

// locks returns how to take the lock that was asked for.
func (x *execution) locks(s store, log *slog.Logger) (taker, error) {
	if x.name == "" {
		return x.schedulerLock(s, log)
	}
	opts := []named.Option{named.WithLogger(log), named.WithOwner(x.owner)}
	if x.oncePer == 0 {
		opts = append(opts, named.WithTTL(x.ttl))
	}
	locks, err := named.New(s.Named(), opts...)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, wait bool) (*holder, error) {
		var (
			l   *named.Lock
			err error
		)
		switch {
		case x.oncePer > 0:
			l, err = locks.TryTask(ctx, x.name, x.oncePer, x.atMost)
		case wait:
			l, err = locks.Lock(ctx, x.name)
		default:
			l, err = locks.TryLock(ctx, x.name)
		}
		if err != nil {
			return nil, err
		}
		if x.oncePer == 0 {
			l.KeepAlive()
		}
		h := &holder{Hold: guard.Hold{Done: l.Done(), Confirmed: l.Confirmed,
			Trusted: x.trusted(), TTL: x.ttl}, term: l.Term(), token: l.Ref().Token,
			release: l.Unlock}
		if x.oncePer > 0 {
			h.unused = func(ctx context.Context) error {
				return x.tool.bounded(ctx, func(ctx context.Context) error {
					// Without its time to rest: another machine may be able to run it.
					_, err := s.Named().Release(ctx, l.Ref(), false)
					return err
				})
			}
		}
		return h, nil
	}, nil
}

// isHeld reports whether somebody holds the lock, as schedlock status says. A lock that is free,
// but can't be taken, is not held.
func isHeld(s store) bool {
	ctx, cancel := context.WithTimeout(context.Background(), readLimit)
	defer cancel()
	v, err := assess.LookAtSession(ctx, s)
	return err == nil && assess.Of(v).Verdict == assess.Held
}

func (x *execution) schedulerLock(s store, log *slog.Logger) (taker, error) {
	lock, err := schedlock.New(s, schedlock.WithTTL(x.ttl), schedlock.WithLogger(log),
		schedlock.WithApp("schedlock exec"), schedlock.WithOwner(x.owner))
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, wait bool) (*holder, error) {
		take := lock.Acquire
		if wait {
			take = lock.Wait
		}
		lease, err := take(ctx)
		if err != nil {
			if errors.Is(context.Cause(ctx), errLate) && isHeld(s) {
				err = fmt.Errorf("%w: %w: %s", err, schedlock.ErrHeld, lock.Status().Reason)
			}
			return nil, err
		}
		h := &holder{Hold: guard.Hold{Done: lease.Done(), Confirmed: lease.Confirmed,
			Trusted: lock.Timing().RenewDeadline, TTL: lock.Timing().TTL}, term: lease.Term(),
			token: lease.Ref().Token, revoked: lease.Revoked(), drain: lease.Drain,
			release: lease.Release}
		if s, ok := s.(*sqlite.Store); ok {
			h.Lease, err = s.LeaseDescriptor(lease.Ref().Token)
		}
		if err != nil {
			return nil, errors.Join(err, lease.Release(context.WithoutCancel(ctx)))
		}
		return h, nil
	}, nil
}
