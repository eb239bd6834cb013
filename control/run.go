package control

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/google/uuid"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// restartDelay is the delay before a controller that returned is restarted.
const restartDelay = 2 * time.Second

// runControllers starts the enabled controllers. The returned function waits until all have
// returned, which they do when ctx is done.
func (a *Assembly) runControllers(ctx context.Context) (wait func()) {
	a.lifetime = ctx
	var elected, others []Controller
	for _, c := range a.controllers() {
		switch {
		case !controllerEnabled(a.Controllers, c.Name):
		case c.LeaderElected:
			elected = append(elected, c)
		default:
			others = append(others, c)
		}
	}
	var all sync.WaitGroup
	all.Go(func() { a.runWithLeaderElection(ctx, elected) })
	all.Go(a.runAll(ctx, others))
	return all.Wait
}

// runAll starts controllers, and restarts those that return before ctx is done.
func (a *Assembly) runAll(ctx context.Context, list []Controller) (wait func()) {
	var all sync.WaitGroup
	for _, c := range list {
		all.Go(func() {
			for {
				err := c.Run(ctx)
				if ctx.Err() != nil {
					return
				}
				a.Log.Error("controller stopped, restarting", "controller", c.Name, "err", err)
				select {
				case <-ctx.Done():
					return
				case <-time.After(restartDelay):
				}
			}
		})
	}
	return all.Wait
}

// namespaceResyncPeriod is how often the system namespaces are checked.
const namespaceResyncPeriod = time.Minute

// systemNamespaces always exist.
var systemNamespaces = []string{
	metav1.NamespaceSystem,
	metav1.NamespacePublic,
	corev1.NamespaceNodeLease,
	metav1.NamespaceDefault,
}

// runSystemNamespaces creates the system namespaces, and creates them again if they are deleted.
func (a *Assembly) runSystemNamespaces(ctx context.Context) error {
	tick := time.NewTicker(namespaceResyncPeriod)
	defer tick.Stop()
	for {
		if err := a.ensureSystemNamespaces(ctx); err != nil && ctx.Err() == nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

func (a *Assembly) ensureSystemNamespaces(ctx context.Context) error {
	var errs []error
	for _, name := range systemNamespaces {
		_, err := a.Client.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{})
		if !apierrors.IsNotFound(err) {
			errs = append(errs, err)
			continue
		}
		_, err = a.Client.CoreV1().
			Namespaces().
			Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		if !apierrors.IsAlreadyExists(err) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// Of several servers on one etcd cluster, only the leader runs the leader-elected controllers: two
// schedulers would assign the same resources twice. The durations are those of upstream components.
const (
	leaseName     = "berth-control"
	leaseDuration = 15 * time.Second
	renewDeadline = 10 * time.Second
	retryPeriod   = 2 * time.Second
)

// runWithLeaderElection runs controllers while this server is the leader. With an embedded store
// there is no other server, and it runs them without an election. It returns when ctx is done and
// all have returned.
func (a *Assembly) runWithLeaderElection(ctx context.Context, list []Controller) {
	if len(a.Etcd.Endpoints) == 0 {
		a.runAll(ctx, list)()
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
		if err := a.runLeaderTerm(ctx, lock, list); err != nil {
			a.Log.Error("leader election failed", "err", err)
			return
		}
	}
}

// runLeaderTerm waits until this server is the leader, runs the controllers, and returns when the
// leadership is lost.
func (a *Assembly) runLeaderTerm(ctx context.Context, lock resourcelock.Interface, list []Controller) error {
	terms, stopped := make(chan context.Context, 1), make(chan struct{})
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
		defer close(stopped)
		elector.Run(ctx)
	}()
	select {
	case term := <-terms:
		a.Log.Info("leadership acquired", "identity", lock.Identity())
		a.runAll(term, list)()
		a.Log.Info("leadership lost", "identity", lock.Identity())
		<-stopped
	case <-stopped:
	}
	return nil
}
