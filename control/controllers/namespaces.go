package controllers

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/metadata"
)

// remainingContentRetry is how soon a namespace with remaining content is synced again, unless the
// deletion of a pod queues it earlier.
const remainingContentRetry = 2 * time.Second

// namespaceDeleter deletes the content of terminating namespaces and then removes their finalizer.
type namespaceDeleter struct {
	Config

	namespaces corelisters.NamespaceLister
}

func newNamespaceController(c Config) ([]*controller, error) {
	namespaces := c.Informers.Core().V1().Namespaces()
	e := &namespaceDeleter{Config: c, namespaces: namespaces.Lister()}
	ctrl := c.newController(e.sync)
	ctrl.workers = 4
	if err := ctrl.watch(namespaces.Informer(), func(obj any) []string {
		if ns, ok := obj.(*corev1.Namespace); ok && ns.DeletionTimestamp != nil {
			return []string{ns.Name}
		}
		return nil
	}); err != nil {
		return nil, err
	}
	// The deletion of the last pod usually unblocks the namespace.
	return []*controller{ctrl}, ctrl.watch(c.Informers.Core().V1().Pods().Informer(), func(obj any) []string {
		if pod, ok := obj.(*corev1.Pod); ok && pod.DeletionTimestamp != nil {
			if ns, err := e.namespaces.Get(pod.Namespace); err == nil && ns.DeletionTimestamp != nil {
				return []string{ns.Name}
			}
		}
		return nil
	})
}

func (e *namespaceDeleter) sync(ctx context.Context, name string) (time.Duration, error) {
	ns, err := e.namespaces.Get(name)
	if err != nil || ns.DeletionTimestamp == nil || len(ns.Spec.Finalizers) == 0 {
		return 0, ignoreNotFound(err)
	}
	if !slices.Contains(ns.Spec.Finalizers, corev1.FinalizerKubernetes) {
		return 0, nil // waiting for other finalizers
	}
	remaining := e.deleteContent(ctx, name)
	if remaining.done() {
		return 0, e.finalize(ctx, ns)
	}
	if err := e.updateConditions(ctx, ns, remaining); err != nil {
		return 0, err
	}
	return remainingContentRetry, nil
}

// remainingContent is what could not be deleted yet, and why.
type remainingContent struct {
	discovery  error
	failures   []string       // failed deletions
	instances  map[string]int // remaining instances by resource
	finalizers map[string]int // number of instances by finalizer
}

// empty reports whether nothing remains of the resources that were checked.
func (r remainingContent) empty() bool { return len(r.failures) == 0 && len(r.instances) == 0 }

func (r remainingContent) done() bool { return r.discovery == nil && r.empty() }

// deleteContent deletes all objects in the namespace and returns what remains. Other resources are
// deleted after the last pod, because a pod needs its ConfigMaps, service account and network
// policies until it has terminated.
func (e *namespaceDeleter) deleteContent(ctx context.Context, name string) remainingContent {
	out := remainingContent{instances: map[string]int{}, finalizers: map[string]int{}}
	resources, err := deletableResources(e.Client.Discovery(), true)
	out.discovery = err
	pods := corev1.SchemeGroupVersion.WithResource("pods")
	if err := e.deleteResource(ctx, name, pods, &out); err != nil {
		out.failures = append(out.failures, fmt.Sprintf("%s: %v", pods.GroupResource(), err))
	}
	if !out.empty() {
		return out
	}
	for _, r := range resources {
		if e.hasNoCustomResources(ctx, r.GroupResource(), name) {
			continue
		}
		if err := e.deleteResource(ctx, name, r, &out); err != nil && ctx.Err() == nil {
			out.failures = append(out.failures, fmt.Sprintf("%s: %v", r.GroupResource(), err))
		}
	}
	return out
}

// hasNoCustomResources reports whether a resource is a custom one without objects in the namespace. A
// request for it would load the schemas of its definition.
func (e *namespaceDeleter) hasNoCustomResources(ctx context.Context, of schema.GroupResource, namespace string) bool {
	if e.CustomResources == nil {
		return false
	}
	n, custom, err := e.CustomResources.Count(ctx, of, namespace)
	return custom && n == 0 && err == nil
}

func (e *namespaceDeleter) deleteResource(ctx context.Context, name string, resource schema.GroupVersionResource,
	out *remainingContent) error {
	client := e.Metadata.Resource(resource).Namespace(name)
	list, err := client.List(ctx, metav1.ListOptions{})
	if err != nil || len(list.Items) == 0 {
		return err //nolint:wrapcheck // the caller names the resource
	}
	background := metav1.DeletePropagationBackground
	err = client.DeleteCollection(ctx, metav1.DeleteOptions{PropagationPolicy: &background}, metav1.ListOptions{})
	if apierrors.IsMethodNotSupported(err) { // as in some extension API servers
		err = deleteEach(ctx, client, list.Items, metav1.DeleteOptions{PropagationPolicy: &background})
	}
	if err != nil {
		return err //nolint:wrapcheck // the caller names the resource
	}
	list, err = client.List(ctx, metav1.ListOptions{})
	if err != nil {
		return err //nolint:wrapcheck // the caller names the resource
	}
	for i := range list.Items {
		out.instances[resource.GroupResource().String()]++
		for _, f := range list.Items[i].Finalizers {
			out.finalizers[f]++
		}
	}
	return nil
}

// deleteEach deletes objects one by one.
func deleteEach(ctx context.Context, client metadata.ResourceInterface, all []metav1.PartialObjectMetadata,
	options metav1.DeleteOptions) error {
	var errs []error
	for i := range all {
		errs = append(errs, ignoreNotFound(client.Delete(ctx, all[i].Name, options)))
	}
	return errors.Join(errs...)
}

// finalize removes the kubernetes finalizer from the namespace.
func (e *namespaceDeleter) finalize(ctx context.Context, ns *corev1.Namespace) error {
	out := ns.DeepCopy()
	out.Spec.Finalizers = slices.DeleteFunc(out.Spec.Finalizers, func(f corev1.FinalizerName) bool {
		return f == corev1.FinalizerKubernetes
	})
	if _, err := e.Client.CoreV1().Namespaces().Finalize(ctx, out, metav1.UpdateOptions{}); ignoreNotFound(err) != nil {
		return fmt.Errorf("finalize namespace %s: %w", ns.Name, err)
	}
	e.Log.Info("namespace finalized", "namespace", ns.Name)
	return nil
}

// updateConditions writes the reasons for the pending deletion into the namespace's status.
func (e *namespaceDeleter) updateConditions(ctx context.Context, ns *corev1.Namespace,
	remaining remainingContent) error {
	out := ns.DeepCopy()
	changed := false
	set := func(of corev1.NamespaceConditionType, problem bool, reason, message, okReason, okMessage string) {
		c := corev1.NamespaceCondition{Type: of, Status: corev1.ConditionFalse, Reason: okReason, Message: okMessage,
			LastTransitionTime: metav1.Now()}
		if problem {
			c.Status, c.Reason, c.Message = corev1.ConditionTrue, reason, message
		}
		i := slices.IndexFunc(out.Status.Conditions, func(have corev1.NamespaceCondition) bool {
			return have.Type == of
		})
		if i < 0 {
			out.Status.Conditions = append(out.Status.Conditions, c)
			changed = true
			return
		}
		have := out.Status.Conditions[i]
		if have.Status == c.Status && have.Reason == c.Reason && have.Message == c.Message {
			return
		}
		if have.Status == c.Status {
			c.LastTransitionTime = have.LastTransitionTime
		}
		out.Status.Conditions[i] = c
		changed = true
	}
	set(corev1.NamespaceDeletionDiscoveryFailure, remaining.discovery != nil, "DiscoveryFailed",
		fmt.Sprintf("Discovery failed for some groups, %v", remaining.discovery), "ResourcesDiscovered",
		"All resources successfully discovered")
	set(corev1.NamespaceDeletionGVParsingFailure, false, "", "", "ParsedGroupVersions",
		"All legacy kube types successfully parsed")
	set(corev1.NamespaceDeletionContentFailure, len(remaining.failures) > 0, "ContentDeletionFailed",
		"Failed to delete all resource types, "+fmt.Sprint(len(remaining.failures))+" remaining: "+strings.Join(
			remaining.failures, ", "),
		"ContentDeleted", "All content successfully deleted, may be waiting on finalization")
	set(corev1.NamespaceContentRemaining, len(remaining.instances) > 0, "SomeResourcesRemain",
		"Some resources are remaining: "+formatCounts(remaining.instances, "%s has %d resource instances"),
		"ContentRemoved", "All content successfully removed")
	set(corev1.NamespaceFinalizersRemaining, len(remaining.finalizers) > 0, "SomeFinalizersRemain",
		"Some content in the namespace has finalizers remaining: "+formatCounts(remaining.finalizers,
			"%s in %d resource instances"),
		"ContentHasNoFinalizers", "All content-preserving finalizers finished")
	if !changed {
		return nil
	}
	_, err := e.Client.CoreV1().Namespaces().UpdateStatus(ctx, out, metav1.UpdateOptions{})
	if ignoreNotFound(err) != nil && !apierrors.IsConflict(err) {
		return fmt.Errorf("update status of namespace %s: %w", ns.Name, err)
	}
	return nil
}

func formatCounts(counts map[string]int, format string) string {
	out := make([]string, 0, len(counts))
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		out = append(out, fmt.Sprintf(format, name, counts[name]))
	}
	return strings.Join(out, ", ")
}

// deletableResources returns the resources that support list, watch and delete, in the preferred
// version. If discovery fails for some groups, it returns the others together with an error.
func deletableResources(client discovery.DiscoveryInterface, namespaced bool) ([]schema.GroupVersionResource, error) {
	lists, err := client.ServerPreferredResources()
	var out []schema.GroupVersionResource
	for _, list := range lists {
		gv, bad := schema.ParseGroupVersion(list.GroupVersion)
		if bad != nil {
			err = errors.Join(err, bad)
			continue
		}
		for _, r := range list.APIResources {
			if r.Namespaced == namespaced && slices.Contains(r.Verbs, "delete") && slices.Contains(r.Verbs, "list") &&
				slices.Contains(r.Verbs, "watch") {
				out = append(out, gv.WithResource(r.Name))
			}
		}
	}
	return out, err
}
