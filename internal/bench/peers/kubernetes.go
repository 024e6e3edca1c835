//go:build linux

package main

import (
	"context"
	"errors"
	"flag"
	"io"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/klog/v2"
)

// These are client-go's leader election.
var (
	kubernetesLease = contestant{name: "client-go", here: onPostgres, renew: 2 * time.Second,
		poll: 2 * time.Second, leaves: true, open: openKubernetes(false),
		settings: "lease 15 s, renew deadline 10 s, retry 2 s, without ReleaseOnCancel; " +
			"a stub of the API over the etcd of this run, without TLS and admission"}
	kubernetesReleased = contestant{name: "client-go, ReleaseOnCancel", here: onPostgres,
		renew: 2 * time.Second, poll: 4400 * time.Millisecond, open: openKubernetes(true),
		settings: "the same with ReleaseOnCancel"}
)

func openKubernetes(release bool) opener {
	return func(ctx context.Context, env environment, lock, id string) (replica, error) {
		var flags flag.FlagSet
		klog.InitFlags(&flags)
		for name, value := range map[string]string{"logtostderr": "false",
			"stderrthreshold": "FATAL"} {
			_ = flags.Set(name, value) // klog has it
		}
		klog.SetOutput(io.Discard)
		client, err := kubernetes.NewForConfig(&rest.Config{Host: "http://" + env.API, QPS: -1})
		if err != nil {
			return nil, err
		}
		r := &kubernetesReplica{onCancel: release, lock: &resourcelock.LeaseLock{
			LeaseMeta:  metav1.ObjectMeta{Name: lock, Namespace: "default"},
			Client:     client.CoordinationV1(),
			LockConfig: resourcelock.ResourceLockConfig{Identity: id}}}
		_, _, _ = r.lock.Get(ctx) // opens the connection; there is no lease yet
		return r, nil
	}
}

type kubernetesReplica struct {
	onCancel bool // it releases then
	lock     *resourcelock.LeaseLock
	elector  *leaderelection.LeaderElector
	stop     func()
	ended    chan struct{}
}

func (r *kubernetesReplica) acquire(ctx context.Context) error {
	held := make(chan struct{})
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: r.lock, LeaseDuration: 15 * time.Second, RenewDeadline: 10 * time.Second,
		RetryPeriod: 2 * time.Second, ReleaseOnCancel: r.onCancel,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(context.Context) { close(held) },
			OnStoppedLeading: func() {},
		},
	})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	r.elector, r.stop, r.ended = elector, cancel, ended
	go func() { elector.Run(ctx); close(ended) }()
	select {
	case <-held:
		return nil
	case <-ended:
		return errors.New("the elector has ended")
	}
}

func (r *kubernetesReplica) release(context.Context) error {
	r.stop()
	<-r.ended
	return nil
}

func (r *kubernetesReplica) check() func() bool { return r.elector.IsLeader }
