package controllers

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/cache"

	quotas "berth/control/quota"
)

// quotaResyncPeriod is how often the usage is recalculated without an event. Admission adds the
// usage of new objects, but the deletion of most built-in kinds triggers no event.
const quotaResyncPeriod = 30 * time.Second

// quotaSettlePeriod is how long a quota must remain unchanged before a lower usage is written.
// Admission records the usage before the object is stored, so a recalculation in between misses the
// object and would release its share of the quota.
const quotaSettlePeriod = time.Second

// resourceQuotaController calculates the usage of the quotas of a namespace.
type resourceQuotaController struct {
	Config

	mu       sync.Mutex
	observed map[string]observedVersion // by key: when this resource version was first observed
}

type observedVersion struct {
	version string
	at      time.Time
}

// settleDelay returns how long to wait before a lower usage of the quota may be written.
func (q *resourceQuotaController) settleDelay(key, version string, now time.Time) time.Duration {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.observed[key].version != version {
		q.observed[key] = observedVersion{version, now}
	}
	return quotaSettlePeriod - now.Sub(q.observed[key].at)
}

func (q *resourceQuotaController) forget(key string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.observed, key)
}

// maxUsage returns the larger of the recorded and the counted usage for each resource, and whether
// the counted one is lower for any.
func maxUsage(recorded, counted corev1.ResourceList) (out corev1.ResourceList, lower bool) {
	out = corev1.ResourceList{}
	for name, n := range counted {
		if previous, ok := recorded[name]; ok && previous.Cmp(n) > 0 {
			n, lower = previous, true
		}
		out[name] = n
	}
	return out, lower
}

func newResourceQuotaController(c Config) ([]*controller, error) {
	core := c.Informers.Core().V1()
	q := &resourceQuotaController{Config: c, observed: map[string]observedVersion{}}
	ctrl := c.newController(q.sync)
	ctrl.workers = 2
	if err := ctrl.watch(core.ResourceQuotas().Informer(), objectKey); err != nil {
		return nil, err
	}
	ofNamespace := func(obj any) (keys []string) {
		for _, ns := range namespaceKey(obj) {
			list, err := core.ResourceQuotas().Lister().ResourceQuotas(ns).List(labels.Everything())
			if err != nil {
				return nil
			}
			for _, rq := range list {
				keys = append(keys, objectKey(rq)...)
			}
		}
		return keys
	}
	for _, i := range []cache.SharedIndexInformer{
		core.Pods().Informer(), core.Services().Informer(), core.PersistentVolumeClaims().Informer(),
		core.ConfigMaps().Informer(), core.Secrets().Informer(),
	} {
		if err := ctrl.watch(i, ofNamespace); err != nil {
			return nil, err
		}
	}
	ctrl.background = func(ctx context.Context) {
		stop := c.followCustomResources(ctx, func(metav1.APIResource) cache.ResourceEventHandler {
			return cache.ResourceEventHandlerFuncs{DeleteFunc: func(obj any) {
				for _, key := range ofNamespace(lastKnown(obj)) {
					ctrl.queue.Add(key)
				}
			}}
		}, func(metav1.APIResource) {})
		<-ctx.Done()
		stop()
	}
	return []*controller{ctrl}, nil
}

func (q *resourceQuotaController) sync(ctx context.Context, key string) (time.Duration, error) {
	namespace, name, err := cache.SplitMetaNamespaceKey(key)
	if err != nil {
		return 0, nil //nolint:nilerr // invalid key
	}
	rq, err := q.Informers.Core().V1().ResourceQuotas().Lister().ResourceQuotas(namespace).Get(name)
	if err != nil {
		q.forget(key)
		return 0, ignoreNotFound(err)
	}
	settle := q.settleDelay(key, rq.ResourceVersion, time.Now())
	used, err := q.usage(ctx, rq)
	if used == nil {
		return 0, fmt.Errorf("calculate usage of quota %s: %w", key, err)
	}
	if err != nil { // retried after the update of the other resources
		err = fmt.Errorf("calculate usage of quota %s: %w", key, err)
	}
	requeueAfter := quotaResyncPeriod
	if atLeast, lower := maxUsage(rq.Status.Used, used); lower && settle > 0 {
		used, requeueAfter = atLeast, settle
	}
	if apiequality.Semantic.DeepEqual(rq.Status.Hard, rq.Spec.Hard) && apiequality.Semantic.DeepEqual(rq.Status.Used,
		used) {
		return requeueAfter, err
	}
	out := rq.DeepCopy()
	out.Status = corev1.ResourceQuotaStatus{Hard: rq.Spec.Hard.DeepCopy(), Used: used}
	if _, updateErr := q.Client.CoreV1().ResourceQuotas(namespace).UpdateStatus(ctx, out,
		metav1.UpdateOptions{}); ignoreNotFound(updateErr) != nil {
		return 0, errors.Join(err, fmt.Errorf("update status of quota %s: %w", key, updateErr))
	}
	return requeueAfter, err
}

// usage returns the used amount of each limited resource. If objects cannot be counted, which an extension API server
// may cause, it returns the recorded amount of them together with an error.
func (q *resourceQuotaController) usage(ctx context.Context, rq *corev1.ResourceQuota) (corev1.ResourceList, error) {
	sum, err := q.computedUsage(rq)
	if err != nil {
		return nil, err
	}
	out := corev1.ResourceList{}
	var errs []error
	for name := range rq.Spec.Hard {
		used, known := sum[name]
		if of, counts := quotas.ParseObjectCountName(name); counts && !known && !quotas.HasScopes(rq) &&
			of.String() != "pods" {
			n, err := q.objectCount(ctx, rq.Namespace, of)
			if err != nil {
				errs = append(errs, err)
				if recorded, ok := rq.Status.Used[name]; ok {
					out[name] = recorded
				}
				continue
			}
			used = *resource.NewQuantity(n, resource.DecimalSI)
		}
		out[name] = used
	}
	return out, errors.Join(errs...)
}

// computedUsage sums the usage of pods, services and PersistentVolumeClaims.
func (q *resourceQuotaController) computedUsage(rq *corev1.ResourceQuota) (corev1.ResourceList, error) {
	sum, core := corev1.ResourceList{}, q.Informers.Core().V1()
	pods, err := core.Pods().Lister().Pods(rq.Namespace).List(labels.Everything())
	if err != nil {
		return nil, err //nolint:wrapcheck // the lister does not fail
	}
	for _, pod := range pods {
		if quotas.Matches(rq, pod) {
			quotas.Add(sum, quotas.PodUsage(pod, time.Now()))
		}
	}
	if quotas.HasScopes(rq) {
		return sum, nil
	}
	services, err := core.Services().Lister().Services(rq.Namespace).List(labels.Everything())
	if err != nil {
		return nil, err //nolint:wrapcheck // the lister does not fail
	}
	for _, s := range services {
		quotas.Add(sum, quotas.ServiceUsage(s))
	}
	claims, err := core.PersistentVolumeClaims().Lister().PersistentVolumeClaims(rq.Namespace).List(labels.Everything())
	if err != nil {
		return nil, err //nolint:wrapcheck // the lister does not fail
	}
	for _, c := range claims {
		quotas.Add(sum, quotas.ClaimUsage(c))
	}
	return sum, nil
}

// objectCount returns the number of objects of a resource in the namespace, or 0 for an unknown
// resource.
func (q *resourceQuotaController) objectCount(ctx context.Context, namespace string,
	of schema.GroupResource) (int64, error) {
	if q.CustomResources != nil {
		if n, custom, err := q.CustomResources.Count(ctx, of, namespace); custom || err != nil {
			return n, err //nolint:wrapcheck // names the resource
		}
	}
	version := "v1"
	if of.Group != "" {
		groups, err := q.Client.Discovery().ServerGroups()
		if err != nil {
			return 0, fmt.Errorf("discover resources: %w", err)
		}
		version = ""
		for _, g := range groups.Groups {
			if g.Name == of.Group {
				version = g.PreferredVersion.Version
			}
		}
		if version == "" {
			return 0, nil
		}
	}
	list, err := q.Metadata.Resource(of.WithVersion(version)).Namespace(namespace).List(ctx, metav1.ListOptions{})
	if ignoreNotFound(err) != nil {
		return 0, fmt.Errorf("list %s: %w", of, err)
	}
	if list == nil {
		return 0, nil
	}
	return int64(len(list.Items)), nil
}
