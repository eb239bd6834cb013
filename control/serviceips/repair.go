package serviceips

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"
)

// Repairer sets claims and services right to each other.
type Repairer struct {
	Etcd   *clientv3.Client
	Client kubernetes.Interface
	Ranges Ranges
	Events record.EventRecorder
	Log    *slog.Logger
	// Every is longer than any request lives: a claim without a service at two looks
	// is nobody's.
	Every time.Duration

	orphans map[name]int64 // claims without a service at the last look, by revision
}

// Run repairs at once, and then again and again until ctx is done.
func (r *Repairer) Run(ctx context.Context) error {
	tick := time.NewTicker(r.Every)
	defer tick.Stop()
	for {
		if err := r.Once(ctx); err != nil && ctx.Err() == nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// Once looks one time. Claims are read before services: what a service holds was
// claimed before it was stored.
func (r *Repairer) Once(ctx context.Context) error {
	c := claims{r.Etcd}
	have, err := c.all(ctx)
	if err != nil {
		return err
	}
	list, err := r.Client.CoreV1().Services("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	held := map[name]bool{}
	for i := range list.Items {
		svc := &list.Items[i]
		for _, n := range holds(svc) {
			held[n] = true
			if err := r.keep(ctx, svc, n, have); err != nil {
				return err
			}
		}
		if r.lacks(svc) {
			r.complete(ctx, svc)
		}
	}
	before := r.orphans
	r.orphans = map[name]int64{}
	for _, n := range slices.Sorted(maps.Keys(have)) {
		old := have[n]
		if held[n] {
			continue
		}
		if before[n] != old.revision {
			r.orphans[n] = old.revision
			continue
		}
		if err := c.give(ctx, old); err != nil {
			return err
		}
		r.Log.Info("a claim of a service that is gone is dropped", "claim", n, "service", old.service)
	}
	return nil
}

// keep sees to it that a service has what it says it has.
func (r *Repairer) keep(ctx context.Context, svc *corev1.Service, n name, have map[name]claim) error {
	if c, ok := have[n]; ok && c.owner == svc.UID {
		return nil
	}
	service := svc.Namespace + "/" + svc.Name
	// It may have been claimed and stored after the claims were read, or be gone by now.
	now, err := r.Client.CoreV1().Services(svc.Namespace).Get(ctx, svc.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && (now.UID != svc.UID || !holdsName(now, n)) {
		return nil
	}
	if err != nil {
		return err
	}
	c := claims{r.Etcd}
	last, err := c.look(ctx, n)
	if err != nil || last != nil && last.owner == svc.UID {
		return err
	}
	if last != nil {
		r.Log.Warn("two services hold the same", "claim", n, "service", service, "owner", last.service)
		r.Events.Eventf(svc, corev1.EventTypeWarning, "AlreadyAllocated", "%s was assigned to multiple services; please recreate service", n)
		return nil
	}
	if _, err = c.take(ctx, n, svc.UID, service); err == nil {
		r.Log.Info("a service has claimed what it held", "claim", n, "service", service)
	}
	return err
}

// lacks tells services that were stored before addresses were given.
func (r *Repairer) lacks(svc *corev1.Service) bool {
	if svc.DeletionTimestamp != nil || !needsAddress(svc) || headless(svc) {
		return false
	}
	if len(svc.Spec.ClusterIPs) == 0 {
		return true
	}
	return givesPorts(svc) && slices.ContainsFunc(svc.Spec.Ports, func(p corev1.ServicePort) bool { return p.NodePort == 0 })
}

// complete writes the service as it is: that gives it what it lacks.
func (r *Repairer) complete(ctx context.Context, svc *corev1.Service) {
	if _, err := r.Client.CoreV1().Services(svc.Namespace).Update(ctx, svc, metav1.UpdateOptions{}); err != nil {
		r.Log.Warn("service has no address", "service", svc.Namespace+"/"+svc.Name, "error", err)
	}
}
