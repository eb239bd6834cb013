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

// limitRanger applies the LimitRanges of a namespace: defaults for containers, then
// minimum, maximum and ratio for containers, pods and claims.
type limitRanger struct {
	*admission.Handler

	ranges          corelisters.LimitRangeLister
	client          kubernetes.Interface
	emptyNamespaces *cache.LRUExpireCache // namespaces that were seen to have no range
}

const (
	// emptyTTL is how long a namespace without ranges is not looked at again before a
	// watch tells of one; noneOf is of how many this is remembered.
	emptyTTL  = 30 * time.Second
	emptySize = 4096
)

func newLimitRanger(c Config) (admission.Interface, error) {
	return &limitRanger{
		admission.NewHandler(admission.Create, admission.Update), c.Informers.Core().V1().LimitRanges().Lister(), c.Client, cache.NewLRUExpireCache(emptySize),
	}, nil
}

// limitRanges are the ranges of the namespace. Of one that was made just before what it shall
// limit no watch has told yet.
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

// items are the limits of one type in the namespace, of all its ranges.
func (l *limitRanger) items(ctx context.Context, namespace string, kind corev1.LimitType) (out []corev1.LimitRangeItem, _ error) {
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

// Admit gives containers the requests and limits that they lack.
func (l *limitRanger) Admit(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	pod, ok := podOf(a)
	if !ok || a.GetOperation() != admission.Create {
		return nil
	}
	items, err := l.items(ctx, a.GetNamespace(), corev1.LimitTypeContainer)
	if err != nil || len(items) == 0 {
		return err
	}
	var said []string
	for i := range pod.Spec.Containers {
		said = append(said, applyDefaults(&pod.Spec.Containers[i], "container", items)...)
	}
	for i := range pod.Spec.InitContainers {
		said = append(said, applyDefaults(&pod.Spec.InitContainers[i], "init container", items)...)
	}
	if len(said) > 0 {
		if pod.Annotations == nil {
			pod.Annotations = map[string]string{}
		}
		pod.Annotations[limitRangerAnnotation] = "LimitRanger plugin set: " + strings.Join(said, "; ")
	}
	return nil
}

func applyDefaults(c *corev1.Container, kind string, items []corev1.LimitRangeItem) (said []string) {
	// What a limit alone says about the request was settled before: a default
	// request never goes above the container's own limit.
	set := func(list *corev1.ResourceList, from func(corev1.LimitRangeItem) corev1.ResourceList) (names []string) {
		for _, item := range items {
			for name, q := range from(item) {
				if _, have := (*list)[name]; have {
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
		if _, have := c.Resources.Requests[name]; !have {
			if c.Resources.Requests == nil {
				c.Resources.Requests = corev1.ResourceList{}
			}
			c.Resources.Requests[name] = c.Resources.Limits[name].DeepCopy()
		}
	}
	if names := set(&c.Resources.Requests, defaultRequest); len(names) > 0 {
		said = append(said, fmt.Sprintf("%s request for %s %s", strings.Join(names, ", "), kind, c.Name))
	}
	if names := set(&c.Resources.Limits, defaultLimit); len(names) > 0 {
		said = append(said, fmt.Sprintf("%s limit for %s %s", strings.Join(names, ", "), kind, c.Name))
	}
	return said
}

// defaultLimit is Default, and Max where there is none; defaultRequest is
// DefaultRequest, then the default limit, then Min: as the API documents them.
func defaultLimit(i corev1.LimitRangeItem) corev1.ResourceList { return overlay(i.Max, i.Default) }

func defaultRequest(i corev1.LimitRangeItem) corev1.ResourceList {
	return overlay(overlay(i.Min, defaultLimit(i)), i.DefaultRequest)
}

func overlay(below, above corev1.ResourceList) corev1.ResourceList {
	out := corev1.ResourceList{}
	for _, l := range []corev1.ResourceList{below, above} {
		maps.Copy(out, l)
	}
	return out
}

// Validate judges new pods, resized pods and claims. What is being deleted may end,
// whatever its size.
func (l *limitRanger) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if old, err := meta.Accessor(a.GetOldObject()); err == nil && old.GetDeletionTimestamp() != nil {
		return nil
	}
	var errs []error
	switch o := a.GetObject().(type) {
	case *corev1.LimitRange:
		l.emptyNamespaces.Remove(a.GetNamespace())
	case *corev1.Pod:
		if !isResource(a, "", "pods") || a.GetOperation() == admission.Update && a.GetSubresource() != "resize" || a.GetOperation() == admission.Create && a.GetSubresource() != "" {
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
	requests, upper := podresources.PodRequests(pod, options), podresources.PodLimits(pod, options)
	for _, item := range items {
		errs = append(errs, checkBounds(item, requests, upper, false)...)
	}
	return errs, nil
}

// checkBounds holds requests and limits against one item. A claim has requests only,
// and its maximum is for them.
func checkBounds(item corev1.LimitRangeItem, requests, upper corev1.ResourceList, claim bool) (errs []error) {
	for _, name := range sortedNames(item.Min) {
		q, low := requests[name], item.Min[name]
		said, ok := requests[name]
		switch {
		case !ok:
			errs = append(errs, fmt.Errorf("minimum %s usage per %s is %s.  No request is specified", name, item.Type, low.String()))
		case said.Cmp(low) < 0:
			errs = append(errs, fmt.Errorf("minimum %s usage per %s is %s, but request is %s", name, item.Type, low.String(), q.String()))
		}
		if top, ok := upper[name]; ok && top.Cmp(low) < 0 {
			errs = append(errs, fmt.Errorf("minimum %s usage per %s is %s, but limit is %s", name, item.Type, low.String(), top.String()))
		}
	}
	for _, name := range sortedNames(item.Max) {
		high := item.Max[name]
		top, ok := upper[name]
		said, asked := requests[name]
		switch {
		case claim:
		case !ok:
			errs = append(errs, fmt.Errorf("maximum %s usage per %s is %s.  No limit is specified", name, item.Type, high.String()))
		case top.Cmp(high) > 0:
			errs = append(errs, fmt.Errorf("maximum %s usage per %s is %s, but limit is %s", name, item.Type, high.String(), top.String()))
		}
		if asked && said.Cmp(high) > 0 {
			errs = append(errs, fmt.Errorf("maximum %s usage per %s is %s, but request is %s", name, item.Type, high.String(), said.String()))
		}
	}
	for _, name := range sortedNames(item.MaxLimitRequestRatio) {
		if err := checkRatio(item, name, requests, upper); err != nil {
			errs = append(errs, err)
		}
	}
	return errs
}

func checkRatio(item corev1.LimitRangeItem, name corev1.ResourceName, requests, upper corev1.ResourceList) error {
	most := item.MaxLimitRequestRatio[name]
	request, top := requests[name], upper[name]
	switch {
	case request.IsZero():
		return fmt.Errorf("%s max limit to request ratio per %s is %s, but no request is specified or request is 0", name, item.Type, most.String())
	case top.IsZero():
		return fmt.Errorf("%s max limit to request ratio per %s is %s, but no limit is specified or limit is 0", name, item.Type, most.String())
	}
	got, allowed := top.AsApproximateFloat64()/request.AsApproximateFloat64(), most.AsApproximateFloat64()
	if got > allowed {
		return fmt.Errorf("%s max limit to request ratio per %s is %s, but provided ratio is %f", name, item.Type, most.String(), got)
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
