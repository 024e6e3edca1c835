//go:build linux

package main

import (
	"context"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.uber.org/zap"
)

// etcdElection is an election of etcd's package concurrency.
var etcdElection = contestant{name: "etcd, election", here: onPostgres, renew: 20 * time.Second,
	settings: "one member; NewSession's default TTL 60 s, opened once; a watch tells the standby",
	open:     openEtcd}

func etcdClient(address string) (*clientv3.Client, error) {
	return clientv3.New(clientv3.Config{Endpoints: []string{address},
		DialTimeout: 20 * time.Second, Logger: zap.NewNop()})
}

func openEtcd(_ context.Context, env environment, lock, id string) (replica, error) {
	client, err := etcdClient(env.Etcd)
	if err != nil {
		return nil, err
	}
	s, err := concurrency.NewSession(client)
	return &etcdReplica{client: client, session: s, lock: "/peers/" + lock, id: id}, err
}

type etcdReplica struct {
	client   *clientv3.Client
	session  *concurrency.Session
	election *concurrency.Election
	lock, id string
}

func (r *etcdReplica) acquire(ctx context.Context) error {
	r.election = concurrency.NewElection(r.session, r.lock)
	return r.election.Campaign(ctx, r.id)
}

func (r *etcdReplica) release(ctx context.Context) error { return r.election.Resign(ctx) }

func (r *etcdReplica) renew(ctx context.Context) error {
	_, err := r.client.KeepAliveOnce(ctx, r.session.Lease())
	return err
}

func (r *etcdReplica) check() func() bool {
	done := r.session.Done()
	return func() bool {
		select {
		case <-done:
			return false
		default:
			return r.election.Key() != ""
		}
	}
}
