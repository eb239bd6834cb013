package controllers

import (
	"context"
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

// quotaResyncPeriod is how often a quota is counted anew that no watch has told about:
// of most kinds only the objects that are made tell, at admission.
const quotaResyncPeriod = 30 * time.Second

// quotaSettlePeriod is how long a quota must stay unwritten before a lower count is taken
// for true. Admission writes the usage first and the object is stored (and heard
// of here) after it: a count in between misses the object, and would give its
// place away a second time.
const quotaSettlePeriod = time.Second

// resourceQuotaController counts what the objects of a namespace use of its quotas.
type resourceQuotaController struct {
	Config

	mu       sync.Mutex
	observed map[string]observedVersion // by key: when this version of a quota was first seen
}

type observedVersion struct {
	version string
	at      time.Time
}

// settleDelay is how long to wait until a lower count of the quota may be written.
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

// maxUsage is the higher of what is recorded and what is counted, and whether
// the count alone is lower anywhere.
func maxUsage(recorded, counted corev1.ResourceList) (out corev1.ResourceList, lower bool) {
	out = corev1.ResourceList{}
	for name, n := range counted {
		if was, ok := recorded[name]; ok && was.Cmp(n) > 0 {
			n, lower = was, true
		}
		out[name] = n
	}
	return out, lower
}

func newResourceQuotaController(c Config) ([]*controller, error) {
	core := c.Informers.Core().V1()
	q := &resourceQuotaController{Config: c, observed: map[string]observedVersion{}}
	w := c.newController(q.sync)
	w.workers = 2
	if err := w.watch(core.ResourceQuotas().Informer(), objectKey); err != nil {
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
		if err := w.watch(i, ofNamespace); err != nil {
			return nil, err
		}
	}
	return []*controller{w}, nil
}

func (q *resourceQuotaController) sync(ctx context.Context, key string) (time.Duration, error) {
	namespace, name, err := cache.SplitMetaNamespaceKey(key)
	if err != nil {
		return 0, nil //nolint:nilerr // no key of ours
	}
	rq, err := q.Informers.Core().V1().ResourceQuotas().Lister().ResourceQuotas(namespace).Get(name)
	if err != nil {
		q.forget(key)
		return 0, ignoreNotFound(err)
	}
	wait := q.settleDelay(key, rq.ResourceVersion, time.Now())
	used, err := q.usage(ctx, rq)
	if err != nil {
		return 0, fmt.Errorf("count for quota %s: %w", key, err)
	}
	again := quotaResyncPeriod
	if atLeast, lower := maxUsage(rq.Status.Used, used); lower && wait > 0 {
		used, again = atLeast, wait
	}
	if apiequality.Semantic.DeepEqual(rq.Status.Hard, rq.Spec.Hard) && apiequality.Semantic.DeepEqual(rq.Status.Used, used) {
		return again, nil
	}
	out := rq.DeepCopy()
	out.Status = corev1.ResourceQuotaStatus{Hard: rq.Spec.Hard.DeepCopy(), Used: used}
	if _, err := q.Client.CoreV1().ResourceQuotas(namespace).UpdateStatus(ctx, out, metav1.UpdateOptions{}); ignoreNotFound(err) != nil {
		return 0, fmt.Errorf("write status of quota %s: %w", key, err)
	}
	return again, nil
}

// usage gives, for each limited resource, how much of it is used.
func (q *resourceQuotaController) usage(ctx context.Context, rq *corev1.ResourceQuota) (corev1.ResourceList, error) {
	sum, err := q.computedUsage(rq)
	if err != nil {
		return nil, err
	}
	out := corev1.ResourceList{}
	for name := range rq.Spec.Hard {
		used, known := sum[name]
		if of, counts := quotas.ParseObjectCountName(name); counts && !known && !quotas.HasScopes(rq) && of.String() != "pods" {
			n, err := q.objectCount(ctx, rq.Namespace, of)
			if err != nil {
				return nil, err
			}
			used = *resource.NewQuantity(n, resource.DecimalSI)
		}
		out[name] = used
	}
	return out, nil
}

// computedUsage adds up what pods, services and claims use.
func (q *resourceQuotaController) computedUsage(rq *corev1.ResourceQuota) (corev1.ResourceList, error) {
	sum, core := corev1.ResourceList{}, q.Informers.Core().V1()
	pods, err := core.Pods().Lister().Pods(rq.Namespace).List(labels.Everything())
	if err != nil {
		return nil, err //nolint:wrapcheck // a lister over memory has no errors
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
		return nil, err //nolint:wrapcheck // a lister over memory has no errors
	}
	for _, s := range services {
		quotas.Add(sum, quotas.ServiceUsage(s))
	}
	claims, err := core.PersistentVolumeClaims().Lister().PersistentVolumeClaims(rq.Namespace).List(labels.Everything())
	if err != nil {
		return nil, err //nolint:wrapcheck // a lister over memory has no errors
	}
	for _, c := range claims {
		quotas.Add(sum, quotas.ClaimUsage(c))
	}
	return sum, nil
}

// objectCount is how many objects of a resource the namespace has; a resource that
// the server does not have counts nothing.
func (q *resourceQuotaController) objectCount(ctx context.Context, namespace string, of schema.GroupResource) (int64, error) {
	version := "v1"
	if of.Group != "" {
		groups, err := q.Client.Discovery().ServerGroups()
		if err != nil {
			return 0, fmt.Errorf("discover what there is: %w", err)
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
		return 0, fmt.Errorf("count %s: %w", of, err)
	}
	if list == nil {
		return 0, nil
	}
	return int64(len(list.Items)), nil
}
