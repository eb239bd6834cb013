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

// Repairer reconciles claims with Services.
type Repairer struct {
	Etcd   *clientv3.Client
	Client kubernetes.Interface
	Ranges Ranges
	Events record.EventRecorder
	Log    *slog.Logger
	// Interval must be longer than any request: a claim without a Service in two consecutive runs
	// is released.
	Interval time.Duration

	orphans map[claimKey]int64 // revisions of claims without a Service in the last run
}

// Run syncs immediately and then periodically until ctx is done.
func (r *Repairer) Run(ctx context.Context) error {
	tick := time.NewTicker(r.Interval)
	defer tick.Stop()
	for {
		if err := r.Sync(ctx); err != nil && ctx.Err() == nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// Sync runs once. It lists claims before Services, because keys are claimed before their Service is
// stored.
func (r *Repairer) Sync(ctx context.Context) error {
	c := claimStore{r.Etcd}
	have, err := c.list(ctx)
	if err != nil {
		return err
	}
	list, err := r.Client.CoreV1().Services("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	held := map[claimKey]bool{}
	for i := range list.Items {
		svc := &list.Items[i]
		for _, n := range heldKeys(svc) {
			held[n] = true
			if err := r.ensureClaimed(ctx, svc, n, have); err != nil {
				return err
			}
		}
		if r.needsAllocation(svc) {
			r.triggerAllocation(ctx, svc)
		}
	}
	before := r.orphans
	r.orphans = map[claimKey]int64{}
	for _, n := range slices.Sorted(maps.Keys(have)) {
		old := have[n]
		if held[n] {
			continue
		}
		if before[n] != old.revision {
			r.orphans[n] = old.revision
			continue
		}
		if err := c.release(ctx, old); err != nil {
			return err
		}
		r.Log.Info("orphaned claim released", "claim", n, "service", old.service)
	}
	return nil
}

// ensureClaimed claims a key that a Service holds without a claim.
func (r *Repairer) ensureClaimed(ctx context.Context, svc *corev1.Service, n claimKey, have map[claimKey]claim) error {
	if c, ok := have[n]; ok && c.owner == svc.UID {
		return nil
	}
	service := svc.Namespace + "/" + svc.Name
	// It may have been claimed and stored after the claims were listed, or deleted since.
	now, err := r.Client.CoreV1().Services(svc.Namespace).Get(ctx, svc.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && (now.UID != svc.UID || !holdsKey(now, n)) {
		return nil
	}
	if err != nil {
		return err
	}
	c := claimStore{r.Etcd}
	last, err := c.get(ctx, n)
	if err != nil || last != nil && last.owner == svc.UID {
		return err
	}
	if last != nil {
		r.Log.Warn("address or port held by two services", "claim", n, "service", service, "owner", last.service)
		r.Events.Eventf(
			svc,
			corev1.EventTypeWarning,
			"AlreadyAllocated",
			"%s was assigned to multiple services; please recreate service",
			n,
		)
		return nil
	}
	if _, err = c.acquire(ctx, n, svc.UID, service); err == nil {
		r.Log.Info("missing claim created", "claim", n, "service", service)
	}
	return err
}

// needsAllocation reports whether a Service was stored before addresses were allocated.
func (r *Repairer) needsAllocation(svc *corev1.Service) bool {
	if svc.DeletionTimestamp != nil || !needsAddress(svc) || headless(svc) {
		return false
	}
	if len(svc.Spec.ClusterIPs) == 0 {
		return true
	}
	return allocatesNodePorts(svc) &&
		slices.ContainsFunc(svc.Spec.Ports, func(p corev1.ServicePort) bool { return p.NodePort == 0 })
}

// triggerAllocation updates the Service without a change, which allocates what is missing.
func (r *Repairer) triggerAllocation(ctx context.Context, svc *corev1.Service) {
	if _, err := r.Client.CoreV1().Services(svc.Namespace).Update(ctx, svc, metav1.UpdateOptions{}); err != nil {
		r.Log.Warn("service allocation failed", "service", svc.Namespace+"/"+svc.Name, "err", err)
	}
}
