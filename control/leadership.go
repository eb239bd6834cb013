package control

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/google/uuid"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// Of several servers on one etcd cluster, one runs the parts that must not run
// twice: two schedulers would give the same room away twice. Times are upstream's.
const (
	leaseName     = "berth-control"
	leaseDuration = 15 * time.Second
	renewDeadline = 10 * time.Second
	retryPeriod   = 2 * time.Second
)

// runWithLeaderElection runs the parts while this server leads; with an own store there is
// nobody to be led by. It returns when ctx is done and all have ended.
func (a *Assembly) runWithLeaderElection(ctx context.Context, parts []Controller) {
	if len(a.Etcd.Endpoints) == 0 {
		a.runAll(ctx, parts)()
		return
	}
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	lock := &resourcelock.LeaseLock{
		LeaseMeta:  metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: leaseName},
		Client:     a.Client.CoordinationV1(),
		LockConfig: resourcelock.ResourceLockConfig{Identity: fmt.Sprintf("%s_%s", host, uuid.NewString())},
	}
	for ctx.Err() == nil {
		if err := a.runLeaderTerm(ctx, lock, parts); err != nil {
			a.Log.Error("no leader can be chosen", "error", err)
			return
		}
	}
}

// runLeaderTerm waits to lead, runs the parts, and returns when it leads no more.
func (a *Assembly) runLeaderTerm(ctx context.Context, lock resourcelock.Interface, parts []Controller) error {
	terms, over := make(chan context.Context, 1), make(chan struct{})
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: lock, LeaseDuration: leaseDuration, RenewDeadline: renewDeadline, RetryPeriod: retryPeriod,
		ReleaseOnCancel: true, Name: leaseName,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(term context.Context) { terms <- term },
			OnStoppedLeading: func() {},
		},
	})
	if err != nil {
		return err
	}
	go func() {
		defer close(over)
		elector.Run(ctx)
	}()
	select {
	case term := <-terms:
		a.Log.Info("this server leads", "identity", lock.Identity())
		a.runAll(term, parts)()
		a.Log.Info("this server does not lead any more", "identity", lock.Identity())
		<-over
	case <-over:
	}
	return nil
}
