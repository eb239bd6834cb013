package admission

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/cache"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	podresources "k8s.io/component-helpers/resource"
)

const limitRangerAnnotation = "kubernetes.io/limit-ranger"

// limitRanger applies the LimitRanges of a namespace: defaults for containers, then minimum,
// maximum and ratio for containers, pods and PersistentVolumeClaims.
type limitRanger struct {
	*admission.Handler

	ranges          corelisters.LimitRangeLister
	client          kubernetes.Interface
	emptyNamespaces *cache.LRUExpireCache // namespaces known to have no LimitRange
}

const (
	// emptyTTL is how long a namespace is assumed to have no LimitRange unless the cache has one.
	// emptySize is the maximum number of such namespaces.
	emptyTTL  = 30 * time.Second
	emptySize = 4096
)

func newLimitRanger(c Config) (admission.Interface, error) {
	return &limitRanger{
		admission.NewHandler(admission.Create, admission.Update), c.Informers.Core().V1().LimitRanges().Lister(),
		c.Client,
		cache.NewLRUExpireCache(emptySize),
	}, nil
}

// limitRanges returns the LimitRanges of the namespace. If the cache has none, it asks the API
// server, because a LimitRange may be newer than the cache.
func (l *limitRanger) limitRanges(ctx context.Context, namespace string) ([]*corev1.LimitRange, error) {
	all, err := l.ranges.LimitRanges(namespace).List(labels.Everything())
	if err != nil || len(all) > 0 {
		return all, err
	}
	if _, known := l.emptyNamespaces.Get(namespace); known {
		return nil, nil
	}
	live, err := l.client.CoreV1().LimitRanges(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	if len(live.Items) == 0 {
		l.emptyNamespaces.Add(namespace, nil, emptyTTL)
	}
	for i := range live.Items {
		all = append(all, &live.Items[i])
	}
	return all, nil
}

// items returns all limits of one type in the namespace.
func (l *limitRanger) items(ctx context.Context, namespace string,
	kind corev1.LimitType) (out []corev1.LimitRangeItem, _ error) {
	all, err := l.limitRanges(ctx, namespace)
	if err != nil {
		return nil, err
	}
	slices.SortFunc(all, func(x, y *corev1.LimitRange) int { return strings.Compare(x.Name, y.Name) })
	for _, r := range all {
		for i := range r.Spec.Limits {
			if r.Spec.Limits[i].Type == kind {
				out = append(out, r.Spec.Limits[i])
			}
		}
	}
	return out, nil
}

// Admit sets the default requests and limits of containers.
func (l *limitRanger) Admit(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	pod, ok := podOf(a)
	if !ok || a.GetOperation() != admission.Create {
		return nil
	}
	items, err := l.items(ctx, a.GetNamespace(), corev1.LimitTypeContainer)
	if err != nil || len(items) == 0 {
		return err
	}
	var changes []string
	for i := range pod.Spec.Containers {
		changes = append(changes, applyDefaults(&pod.Spec.Containers[i], "container", items)...)
	}
	for i := range pod.Spec.InitContainers {
		changes = append(changes, applyDefaults(&pod.Spec.InitContainers[i], "init container", items)...)
	}
	if len(changes) > 0 {
		if pod.Annotations == nil {
			pod.Annotations = map[string]string{}
		}
		pod.Annotations[limitRangerAnnotation] = "LimitRanger plugin set: " + strings.Join(changes, "; ")
	}
	return nil
}

func applyDefaults(c *corev1.Container, kind string, items []corev1.LimitRangeItem) (changes []string) {
	// A limit without a request implies the request first, so that a default request is never
	// larger than the container's own limit.
	set := func(list *corev1.ResourceList, from func(corev1.LimitRangeItem) corev1.ResourceList) (names []string) {
		for _, item := range items {
			for name, q := range from(item) {
				if _, ok := (*list)[name]; ok {
					continue
				}
				if *list == nil {
					*list = corev1.ResourceList{}
				}
				(*list)[name] = q.DeepCopy()
				names = append(names, string(name))
			}
		}
		slices.Sort(names)
		return names
	}
	for _, name := range sortedNames(c.Resources.Limits) {
		if _, ok := c.Resources.Requests[name]; !ok {
			if c.Resources.Requests == nil {
				c.Resources.Requests = corev1.ResourceList{}
			}
			c.Resources.Requests[name] = c.Resources.Limits[name].DeepCopy()
		}
	}
	if names := set(&c.Resources.Requests, defaultRequest); len(names) > 0 {
		changes = append(changes, fmt.Sprintf("%s request for %s %s", strings.Join(names, ", "), kind, c.Name))
	}
	if names := set(&c.Resources.Limits, defaultLimit); len(names) > 0 {
		changes = append(changes, fmt.Sprintf("%s limit for %s %s", strings.Join(names, ", "), kind, c.Name))
	}
	return changes
}

// defaultLimit returns the defaults of limits: Default, otherwise Max.
func defaultLimit(i corev1.LimitRangeItem) corev1.ResourceList { return overlay(i.Max, i.Default) }

func defaultRequest(i corev1.LimitRangeItem) corev1.ResourceList {
	return overlay(overlay(i.Min, defaultLimit(i)), i.DefaultRequest)
}

func overlay(base, override corev1.ResourceList) corev1.ResourceList {
	out := corev1.ResourceList{}
	for _, l := range []corev1.ResourceList{base, override} {
		maps.Copy(out, l)
	}
	return out
}

// Validate checks new pods, resized pods, and PersistentVolumeClaims. Objects being deleted are not
// checked, so that their finalizers can be removed.
func (l *limitRanger) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if old, err := meta.Accessor(a.GetOldObject()); err == nil && old.GetDeletionTimestamp() != nil {
		return nil
	}
	var errs []error
	switch o := a.GetObject().(type) {
	case *corev1.LimitRange:
		l.emptyNamespaces.Remove(a.GetNamespace())
	case *corev1.Pod:
		if !isResource(a, "", "pods") || a.GetOperation() == admission.Update && a.GetSubresource() != "resize" ||
			a.GetOperation() == admission.Create && a.GetSubresource() != "" {
			return nil
		}
		found, err := l.pod(ctx, a.GetNamespace(), o)
		if err != nil {
			return err
		}
		errs = found
	case *corev1.PersistentVolumeClaim:
		if a.GetSubresource() != "" {
			return nil
		}
		items, err := l.items(ctx, a.GetNamespace(), corev1.LimitTypePersistentVolumeClaim)
		if err != nil {
			return err
		}
		for _, item := range items {
			errs = append(errs, checkBounds(item, o.Spec.Resources.Requests, nil, true)...)
		}
	}
	if len(errs) > 0 {
		return admission.NewForbidden(a, utilerrors.NewAggregate(errs))
	}
	return nil
}

func (l *limitRanger) pod(ctx context.Context, namespace string, pod *corev1.Pod) (errs []error, _ error) {
	items, err := l.items(ctx, namespace, corev1.LimitTypeContainer)
	if err != nil {
		return nil, err
	}
	for _, item := range items {
		for _, list := range [][]corev1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
			for i := range list {
				errs = append(errs, checkBounds(item, list[i].Resources.Requests, list[i].Resources.Limits, false)...)
			}
		}
	}
	if items, err = l.items(ctx, namespace, corev1.LimitTypePod); err != nil || len(items) == 0 {
		return errs, err
	}
	options := podresources.PodResourcesOptions{}
	requests, limits := podresources.PodRequests(pod, options), podresources.PodLimits(pod, options)
	for _, item := range items {
		errs = append(errs, checkBounds(item, requests, limits, false)...)
	}
	return errs, nil
}

// checkBounds checks requests and limits against one item. For a PersistentVolumeClaim, the maximum
// applies to the request.
func checkBounds(item corev1.LimitRangeItem, requests, limits corev1.ResourceList, claim bool) (errs []error) {
	for _, name := range sortedNames(item.Min) {
		q, low := requests[name], item.Min[name]
		request, ok := requests[name]
		switch {
		case !ok:
			errs = append(errs, fmt.Errorf("minimum %s usage per %s is %s.  No request is specified", name, item.Type,
				low.String()))
		case request.Cmp(low) < 0:
			errs = append(errs, fmt.Errorf("minimum %s usage per %s is %s, but request is %s", name, item.Type,
				low.String(),
				q.String()))
		}
		if limit, ok := limits[name]; ok && limit.Cmp(low) < 0 {
			errs = append(errs, fmt.Errorf("minimum %s usage per %s is %s, but limit is %s", name, item.Type,
				low.String(),
				limit.String()))
		}
	}
	for _, name := range sortedNames(item.Max) {
		high := item.Max[name]
		limit, ok := limits[name]
		request, hasRequest := requests[name]
		switch {
		case claim:
		case !ok:
			errs = append(errs, fmt.Errorf("maximum %s usage per %s is %s.  No limit is specified", name, item.Type,
				high.String()))
		case limit.Cmp(high) > 0:
			errs = append(errs, fmt.Errorf("maximum %s usage per %s is %s, but limit is %s", name, item.Type,
				high.String(),
				limit.String()))
		}
		if hasRequest && request.Cmp(high) > 0 {
			errs = append(errs, fmt.Errorf("maximum %s usage per %s is %s, but request is %s", name, item.Type,
				high.String(),
				request.String()))
		}
	}
	for _, name := range sortedNames(item.MaxLimitRequestRatio) {
		if err := checkRatio(item, name, requests, limits); err != nil {
			errs = append(errs, err)
		}
	}
	return errs
}

func checkRatio(item corev1.LimitRangeItem, name corev1.ResourceName, requests, limits corev1.ResourceList) error {
	most := item.MaxLimitRequestRatio[name]
	request, limit := requests[name], limits[name]
	switch {
	case request.IsZero():
		return fmt.Errorf("%s max limit to request ratio per %s is %s, but no request is specified or request is 0",
			name,
			item.Type, most.String())
	case limit.IsZero():
		return fmt.Errorf("%s max limit to request ratio per %s is %s, but no limit is specified or limit is 0", name,
			item.Type, most.String())
	}
	got, allowed := limit.AsApproximateFloat64()/request.AsApproximateFloat64(), most.AsApproximateFloat64()
	if got > allowed {
		return fmt.Errorf("%s max limit to request ratio per %s is %s, but provided ratio is %f", name, item.Type,
			most.String(), got)
	}
	return nil
}

func sortedNames(l corev1.ResourceList) (out []corev1.ResourceName) {
	for name := range l {
		out = append(out, name)
	}
	slices.Sort(out)
	return out
}
