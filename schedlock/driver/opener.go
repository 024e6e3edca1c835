package driver

import (
	"context"
	"errors"
	"fmt"
)

// An OpenFunc opens a store of type S whose tables are up to date. It is what the functions Opener
// and Use of a store return, and what startup.Config takes. An app without package startup calls
// its method Open.
type OpenFunc[S Store] func(context.Context) (Store, error)

// Ready returns what opens a store by open, and makes it ready for use by prepare.
func Ready[S interface {
	Store
	Close() error
}](open func(context.Context) (S, error), prepare func(context.Context, S) error) OpenFunc[S] {
	return func(ctx context.Context) (Store, error) {
		store, err := open(ctx)
		if err != nil {
			return nil, err
		}
		if err := prepare(ctx, store); err != nil {
			return nil, errors.Join(err, store.Close())
		}
		return store, nil
	}
}

// Open opens the store. Close it at the end, after the lock.
func (f OpenFunc[S]) Open(ctx context.Context) (store S, err error) {
	opened, err := f(ctx)
	if err != nil {
		return store, err
	}
	store, ok := opened.(S)
	if !ok {
		return store, fmt.Errorf("the function has opened a %T, not a %T", opened, store)
	}
	return store, nil
}
