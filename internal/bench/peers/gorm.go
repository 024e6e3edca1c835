//go:build linux

package main

import (
	"context"
	"fmt"

	gormlock "github.com/go-co-op/gocron-gorm-lock/v2"
	"github.com/go-co-op/gocron/v2"
	"gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"
)

// gormLock is gocron's locker with a row for each tick of a job.
var gormLock = contestant{name: "gocron-gorm-lock", here: onPostgres, perTick: true,
	settings: "defaults; it locks one tick, and any replica may have the next one. " +
		"A killed run keeps its tick",
	setup: func(ctx context.Context, env environment, _ string) error {
		db, err := gormDB(env)
		if err != nil {
			return err
		}
		return db.WithContext(ctx).AutoMigrate(&gormlock.CronJobLock{})
	},
	open: openGorm,
}

func gormDB(env environment) (*gorm.DB, error) {
	return gorm.Open(postgres.Open(env.Postgres), &gorm.Config{Logger: logger.Discard})
}

func openGorm(_ context.Context, env environment, lock, id string) (replica, error) {
	db, err := gormDB(env)
	if err != nil {
		return nil, err
	}
	r := &gormReplica{name: lock}
	r.locker, err = gormlock.NewGormLocker(db, id, gormlock.WithJobIdentifier(
		func(context.Context, string) string { // as if each call were for another tick
			r.ticks++
			return fmt.Sprint(id, r.ticks)
		}))
	return r, err
}

type gormReplica struct {
	locker *gormlock.GormLocker
	name   string
	ticks  int
	lock   gocron.Lock
}

func (r *gormReplica) acquire(ctx context.Context) (err error) {
	r.lock, err = r.locker.Lock(ctx, r.name)
	return err
}

func (r *gormReplica) release(ctx context.Context) error { return r.lock.Unlock(ctx) }
