//go:build linux

package main

import (
	"context"
	"errors"
	"time"

	bsm "github.com/bsm/redislock"
	gocronredis "github.com/go-co-op/gocron-redis-lock/v2"
	"github.com/go-co-op/gocron/v2"
	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
)

func redisClient(ctx context.Context, env environment) (*redis.Client, error) {
	c := redis.NewClient(&redis.Options{Addr: env.Redis})
	return c, c.Ping(ctx).Err()
}

const (
	redisTTL   = 15 * time.Second
	redisBeat  = 5 * time.Second
	redisRetry = 100 * time.Millisecond
)

// redisLock is github.com/bsm/redislock.
var redisLock = contestant{name: "redislock", here: onPostgres, renew: redisBeat, poll: redisRetry,
	settings: "TTL 15 s, refreshed every 5 s, tried every 100 ms; writes are not durable",
	open: func(ctx context.Context, env environment, lock, _ string) (replica, error) {
		client, err := redisClient(ctx, env)
		return &redisReplica{client: bsm.New(client), name: lock}, err
	}}

type redisReplica struct {
	client *bsm.Client
	name   string
	lock   *bsm.Lock
	stop   func()
}

func (r *redisReplica) acquire(ctx context.Context) (err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Hour) // without it, it gives up after the TTL
	defer cancel()
	r.lock, err = r.client.Obtain(ctx, r.name, redisTTL,
		&bsm.Options{RetryStrategy: bsm.LinearBackoff(redisRetry)})
	if err == nil {
		r.stop = beat(redisBeat, r.renew)
	}
	return err
}

func (r *redisReplica) release(ctx context.Context) error {
	r.stop()
	return r.lock.Release(ctx)
}

func (r *redisReplica) renew(ctx context.Context) error {
	return r.lock.Refresh(ctx, redisTTL, nil)
}

const redsyncBeat = 2500 * time.Millisecond

// redSync is github.com/go-redsync/redsync.
var redSync = contestant{name: "redsync", here: onPostgres, renew: redsyncBeat,
	poll:     250 * time.Millisecond,
	settings: "defaults: expiry 8 s, tried every 50 to 250 ms; one pool, extended every 2.5 s",
	open: func(ctx context.Context, env environment, lock, _ string) (replica, error) {
		client, err := redisClient(ctx, env)
		return &redsyncReplica{mutex: redsync.New(goredis.NewPool(client)).NewMutex(lock)}, err
	}}

type redsyncReplica struct {
	mutex *redsync.Mutex
	stop  func()
}

func (r *redsyncReplica) acquire(ctx context.Context) error {
	for r.mutex.LockContext(ctx) != nil { // its tries have run out
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	r.stop = beat(redsyncBeat, r.renew)
	return nil
}

func (r *redsyncReplica) release(ctx context.Context) error {
	r.stop()
	ok, err := r.mutex.UnlockContext(ctx)
	if err == nil && !ok {
		return errors.New("not unlocked")
	}
	return err
}

func (r *redsyncReplica) renew(ctx context.Context) error {
	_, err := r.mutex.ExtendContext(ctx)
	return err
}

func (r *redsyncReplica) check() func() bool {
	return func() bool { return time.Now().Before(r.mutex.Until()) }
}

// gocronRedis is gocron's locker on redsync, which a run of a job holds.
var gocronRedis = contestant{name: "gocron-redis-lock", here: onPostgres, renew: redsyncBeat,
	poll:     250 * time.Millisecond,
	settings: "as redsync, with WithAutoExtendDuration 2.5 s; held like a leader's lock",
	open: func(ctx context.Context, env environment, lock, _ string) (replica, error) {
		client, err := redisClient(ctx, env)
		if err != nil {
			return nil, err
		}
		locker, err := gocronredis.NewRedisLockerWithOptions(client,
			gocronredis.WithAutoExtendDuration(redsyncBeat))
		return &gocronReplica{locker: locker, name: lock}, err
	}}

type gocronReplica struct {
	locker gocron.Locker
	name   string
	lock   gocron.Lock
}

func (r *gocronReplica) acquire(ctx context.Context) (err error) {
	for {
		if r.lock, err = r.locker.Lock(ctx, r.name); err == nil || ctx.Err() != nil {
			return err
		}
	}
}

func (r *gocronReplica) release(ctx context.Context) error { return r.lock.Unlock(ctx) }
