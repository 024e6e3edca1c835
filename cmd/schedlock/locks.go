package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/pflag"

	"example.com/schedlock/internal/names"
	"example.com/schedlock/schedlock/named"
)

const locksHelp = `It lists the named locks, task locks, time-out locks and elections that somebody
holds, that rest, or that were revoked and not taken since.

Examples:
  schedlock locks
`

const releaseLockHelp = `It tells the holder of a lock to leave: it finds out at its next extension,
within a third of its TTL. Nobody takes the lock before the time of the holder's
last extension is over, so two never hold it. A lock that rests, or a time-out
lock, is free at once. Who and why stay until the lock is taken again. KIND is
lock, task, timeout or election.

Examples:
  schedlock locks release lock import --force --reason "the import hangs"
`

const whyForceLock = "a lock is normally released by who holds it, and its TTL frees that of a " +
	"dead holder. " +
	"release tells the holder to leave although it goes on; if you mean that, add --force"

type namedLockJSON struct {
	Kind       string    `json:"kind"` // lock, task, timeout, election
	Name       string    `json:"name"`
	Term       int64     `json:"term"`
	PID        int       `json:"pid"`
	Hostname   string    `json:"hostname"`
	AcquiredAt timestamp `json:"acquired_at"`
	// until it can be taken, unless it is extended
	LeftSeconds float64           `json:"left_seconds"`
	Resting     bool              `json:"resting"`
	Revoked     *named.Revocation `json:"revoked"` // by, reason; null: it was not
}

func newNamedLockJSON(i named.Info) namedLockJSON {
	return namedLockJSON{Kind: string(i.Kind), Name: i.Name, Term: i.Term, PID: i.PID,
		Hostname:   i.Hostname,
		AcquiredAt: timestamp(i.AcquiredAt), LeftSeconds: i.Left.Seconds(), Resting: i.Resting,
		Revoked: i.Revoked}
}

var allKinds = convert(named.Kinds, func(k named.Kind) string { return string(k) })

func locks(t *tool, _ *pflag.FlagSet) func(context.Context) (int, error) { return t.listLocks }

func releaseLock(t *tool, flags *pflag.FlagSet) func(context.Context) (int, error) {
	var o insistence
	o.declare(flags)
	return func(ctx context.Context) (int, error) {
		switch {
		case len(t.args) != 2:
			return 0, wrong("locks release needs the kind of the lock and its name")
		case !slices.Contains(allKinds, t.args[0]):
			return 0, wrong("kind %s is none of lock, task, timeout and election%s",
				t.shown(t.args[0]), didYouMean(t.args[0], "", allKinds))
		case t.args[1] == "":
			return 0, wrong("the name of the lock is empty")
		}
		if err := names.Check("the name of the lock", t.args[1]); err != nil {
			return 0, wrong("%v", err)
		}
		if err := o.check(whyForceLock, "row"); err != nil {
			return 0, err
		}
		return t.releaseLock(ctx, named.Key{Kind: named.Kind(t.args[0]), Name: t.args[1]}, o)
	}
}

func (t *tool) listLocks(ctx context.Context) (int, error) {
	return list(ctx, t, func(ctx context.Context, s store) ([]named.Info, error) {
		locks, err := named.New(s.Named())
		if err != nil {
			return nil, err
		}
		return locks.List(ctx)
	}, newNamedLockJSON, "nobody holds a named lock", t.showLocks)
}

func (t *tool) showLocks(list []named.Info) {
	b := newTable(fixed("kind"), cutting("name"), wideOnly("term"), cutting("holder"),
		wideOnly("since"), fixed("left"), cutting("state"))
	for _, i := range list {
		state, paint := "held", green
		switch {
		case i.Revoked != nil:
			state, paint = fmt.Sprintf("revoked by %s: %s", i.Revoked.By,
				i.Revoked.Reason), yellow
		case i.Resting || i.Kind == named.KindTimeout:
			state, paint = "rests", ""
		}
		b.add(paint, i.Kind, i.Name, i.Term,
			fmt.Sprintf("pid %d on %s", i.PID, i.Hostname), t.cell(i.AcquiredAt),
			span(i.Left.Round(time.Second)), state)
	}
	t.table(b)
}

type releasedLockJSON struct {
	Kind    string            `json:"kind"`
	Name    string            `json:"name"`
	Term    int64             `json:"term"` // 0: nobody held it
	Revoked *named.Revocation `json:"revoked"`
	Message string            `json:"message"`
}

func (t *tool) releaseLock(ctx context.Context, key named.Key,
	o insistence) (code int, err error) {
	report := releasedLockJSON{Kind: string(key.Kind), Name: key.Name}
	err = t.actOnce(ctx, "", func(ctx context.Context, s store) error {
		locks, err := named.New(s.Named())
		if err != nil {
			return err
		}
		info, err := locks.Info(ctx, key)
		switch {
		case err != nil:
			return err
		case info == nil || info.FailedOver:
			code, report.Message = exitNothing, fmt.Sprintf("%s: nobody holds it", key)
			return nil
		}
		report.Term = info.Term
		order, err := locks.Revoke(ctx, key, info.Term, o.by, o.reason)
		if errors.Is(err, named.ErrNotHeld) {
			code, report.Message = exitNothing,
				fmt.Sprintf("%s: nobody holds it under term %d any more", key, info.Term)
			return nil
		}
		if err != nil {
			return err
		}
		report.Revoked = &order
		report.Message = fmt.Sprintf("%s (term %d) is revoked by %s: %s", key, info.Term,
			order.By, order.Reason)
		return nil
	})
	if err != nil {
		return 0, err
	}
	t.say(report, "%s", report.Message)
	return code, nil
}
