package control

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// restartDelay is the pause before a part that ended is started again.
const restartDelay = 2 * time.Second

// runControllers starts the parts that are not off; wait returns when all have ended,
// which they do when ctx is done.
func (a *Assembly) runControllers(ctx context.Context) (wait func()) {
	a.lifetime = ctx
	var alone, beside []Controller
	for _, part := range a.controllers() {
		switch {
		case slices.Contains(a.Off, part.Name):
		case part.LeaderElected:
			alone = append(alone, part)
		default:
			beside = append(beside, part)
		}
	}
	var all sync.WaitGroup
	all.Go(func() { a.runWithLeaderElection(ctx, alone) })
	all.Go(a.runAll(ctx, beside))
	return all.Wait
}

// runAll starts parts, and again those that end before ctx does.
func (a *Assembly) runAll(ctx context.Context, parts []Controller) (wait func()) {
	var all sync.WaitGroup
	for _, part := range parts {
		all.Go(func() {
			for {
				err := part.Run(ctx)
				if ctx.Err() != nil {
					return
				}
				a.Log.Error("a part has ended and is started again", "part", part.Name, "error", err)
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

// namespaceResyncPeriod is how often the namespaces that must be there are looked for.
const namespaceResyncPeriod = time.Minute

// systemNamespaces are always there.
var systemNamespaces = []string{metav1.NamespaceSystem, metav1.NamespacePublic, corev1.NamespaceNodeLease, metav1.NamespaceDefault}

// runSystemNamespaces makes the namespaces that clients count on.
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
		_, err = a.Client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		if !apierrors.IsAlreadyExists(err) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
