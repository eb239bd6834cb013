package metrics

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	corelisters "k8s.io/client-go/listers/core/v1"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"
)

// Options configures the storages.
type Options struct {
	Summary SummaryFunc
	Nodes   corelisters.NodeLister
	Pods    corelisters.PodLister
}

// maxConcurrentRequests limits the nodes that are queried at a time.
const maxConcurrentRequests = 16

// New creates the storages of nodes and pods of metrics.k8s.io.
func New(o Options) (nodes, pods rest.Storage) {
	g := &collector{summary: o.Summary, nodes: map[string]*nodeCache{}}
	return &nodeMetrics{storageBase{o, g}}, &podMetrics{storageBase{o, g}}
}

// storageBase is shared by both storages.
type storageBase struct {
	Options

	collector *collector
}

// Destroy does nothing.
func (storageBase) Destroy() {}

// collect queries nodes concurrently. The result lacks nodes that do not respond. The error is that
// of one of them.
func (s storageBase) collect(ctx context.Context, nodes []*corev1.Node) (map[string]*nodeUsage, error) {
	s.collector.prune(func(name string) bool { _, err := s.Nodes.Get(name); return err == nil })
	out, slots := map[string]*nodeUsage{}, make(chan struct{}, maxConcurrentRequests)
	var mu sync.Mutex
	var wg sync.WaitGroup
	var last error
	for _, n := range nodes {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			f, err := s.collector.get(ctx, n)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				last = err
				return
			}
			out[n.Name] = f
		})
	}
	wg.Wait()
	return out, last
}

type nodeMetrics struct{ storageBase }

// New returns an empty object.
func (*nodeMetrics) New() runtime.Object { return &metricsv1beta1.NodeMetrics{} }

// NewList returns an empty list.
func (*nodeMetrics) NewList() runtime.Object { return &metricsv1beta1.NodeMetricsList{} }

// NamespaceScoped returns false.
func (*nodeMetrics) NamespaceScoped() bool { return false }

// Kind differs from the singular name of the resource.
func (*nodeMetrics) Kind() string { return "NodeMetrics" }

// GetSingularName returns no singular name.
func (*nodeMetrics) GetSingularName() string { return "" }

// Get returns the usage of a node.
func (m *nodeMetrics) Get(ctx context.Context, name string, _ *metav1.GetOptions) (runtime.Object, error) {
	node, err := m.Nodes.Get(name)
	if err != nil {
		return nil, apierrors.NewNotFound(metricsv1beta1.Resource("nodes"), name)
	}
	found, err := m.collect(ctx, []*corev1.Node{node})
	if f := found[name]; f != nil && f.node != nil {
		out := toNodeMetrics(node, f)
		return &out, nil
	}
	return nil, notFound("nodes", name, err)
}

// notFound returns a NotFound error with its reason.
func notFound(resource, name string, cause error) error {
	err := apierrors.NewNotFound(metricsv1beta1.Resource(resource), name)
	if cause != nil {
		err.ErrStatus.Message = fmt.Sprintf("%s: %v", err.ErrStatus.Message, cause)
	}
	return err
}

// List returns the usage of the selected nodes. It leaves out nodes that do not respond.
func (m *nodeMetrics) List(ctx context.Context, o *internalversion.ListOptions) (runtime.Object, error) {
	byLabel, byField := selectors(o)
	list, err := m.Nodes.List(byLabel)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	list = slices.DeleteFunc(
		list,
		func(n *corev1.Node) bool { return !byField.Matches(fields.Set{"metadata.name": n.Name}) },
	)
	slices.SortFunc(list, func(a, b *corev1.Node) int { return cmpNames(a, b) })
	found, _ := m.collect(ctx, list) // Nodes that do not respond are left out, as in metrics-server.
	out := &metricsv1beta1.NodeMetricsList{Items: []metricsv1beta1.NodeMetrics{}}
	for _, n := range list {
		if f := found[n.Name]; f != nil && f.node != nil {
			out.Items = append(out.Items, toNodeMetrics(n, f))
		}
	}
	return out, nil
}

func toNodeMetrics(n *corev1.Node, f *nodeUsage) metricsv1beta1.NodeMetrics {
	return metricsv1beta1.NodeMetrics{
		ObjectMeta: metav1.ObjectMeta{Name: n.Name, Labels: n.Labels, CreationTimestamp: metav1.NewTime(time.Now())},
		Timestamp:  metav1.NewTime(f.node.at), Window: metav1.Duration{Duration: f.node.window}, Usage: f.node.list(),
	}
}

// ConvertToTable returns the table for "kubectl get".
func (*nodeMetrics) ConvertToTable(_ context.Context, obj, _ runtime.Object) (*metav1.Table, error) {
	return table(obj)
}

type podMetrics struct{ storageBase }

// New returns an empty object.
func (*podMetrics) New() runtime.Object { return &metricsv1beta1.PodMetrics{} }

// NewList returns an empty list.
func (*podMetrics) NewList() runtime.Object { return &metricsv1beta1.PodMetricsList{} }

// NamespaceScoped returns true.
func (*podMetrics) NamespaceScoped() bool { return true }

// Kind differs from the singular name of the resource.
func (*podMetrics) Kind() string { return "PodMetrics" }

// GetSingularName returns no singular name.
func (*podMetrics) GetSingularName() string { return "" }

// Get returns the usage of a pod.
func (m *podMetrics) Get(ctx context.Context, name string, _ *metav1.GetOptions) (runtime.Object, error) {
	pod, err := m.Pods.Pods(request.NamespaceValue(ctx)).Get(name)
	if err != nil {
		return nil, apierrors.NewNotFound(metricsv1beta1.Resource("pods"), name)
	}
	found, err := m.toPodMetrics(ctx, []*corev1.Pod{pod})
	if len(found) == 1 {
		return &found[0], nil
	}
	return nil, notFound("pods", name, err)
}

// List returns the usage of the selected pods. It leaves out pods of nodes that do not respond.
func (m *podMetrics) List(ctx context.Context, o *internalversion.ListOptions) (runtime.Object, error) {
	byLabel, byField := selectors(o)
	list, err := m.Pods.Pods(request.NamespaceValue(ctx)).List(byLabel)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	list = slices.DeleteFunc(list, func(p *corev1.Pod) bool {
		return !byField.Matches(
			fields.Set{"metadata.name": p.Name, "metadata.namespace": p.Namespace, "spec.nodeName": p.Spec.NodeName},
		)
	})
	slices.SortFunc(list, func(a, b *corev1.Pod) int { return cmpNames(a, b) })
	found, _ := m.toPodMetrics(ctx, list)
	return &metricsv1beta1.PodMetricsList{Items: found}, nil
}

func (m *podMetrics) toPodMetrics(ctx context.Context, pods []*corev1.Pod) ([]metricsv1beta1.PodMetrics, error) {
	byName := map[string]*corev1.Node{}
	for _, p := range pods {
		if n, err := m.Nodes.Get(p.Spec.NodeName); err == nil {
			byName[n.Name] = n
		}
	}
	found, err := m.collect(ctx, slices.Collect(maps.Values(byName)))
	out := []metricsv1beta1.PodMetrics{}
	for _, p := range pods {
		f := found[p.Spec.NodeName]
		if f == nil || f.pods[nameOf(p)] == nil {
			continue
		}
		one := metricsv1beta1.PodMetrics{ObjectMeta: metav1.ObjectMeta{
			Namespace: p.Namespace, Name: p.Name, Labels: p.Labels, CreationTimestamp: metav1.NewTime(time.Now()),
		}}
		for _, name := range slices.Sorted(maps.Keys(f.pods[nameOf(p)])) {
			u := f.pods[nameOf(p)][name]
			one.Timestamp, one.Window = metav1.NewTime(u.at), metav1.Duration{Duration: u.window}
			one.Containers = append(one.Containers, metricsv1beta1.ContainerMetrics{Name: name, Usage: u.list()})
		}
		out = append(out, one)
	}
	return out, err
}

func nameOf(p *corev1.Pod) types.NamespacedName {
	return types.NamespacedName{Namespace: p.Namespace, Name: p.Name}
}

// ConvertToTable returns the table for "kubectl get".
func (*podMetrics) ConvertToTable(_ context.Context, obj, _ runtime.Object) (*metav1.Table, error) {
	return table(obj)
}

func selectors(o *internalversion.ListOptions) (labels.Selector, fields.Selector) {
	byLabel, byField := labels.Everything(), fields.Everything()
	if o != nil && o.LabelSelector != nil {
		byLabel = o.LabelSelector
	}
	if o != nil && o.FieldSelector != nil {
		byField = o.FieldSelector
	}
	return byLabel, byField
}

func cmpNames(a, b metav1.Object) int {
	if a.GetNamespace() != b.GetNamespace() {
		if a.GetNamespace() < b.GetNamespace() {
			return -1
		}
		return 1
	}
	if a.GetName() < b.GetName() {
		return -1
	}
	return 1
}

// table returns a row per node or pod with the sum over its containers.
func table(obj runtime.Object) (*metav1.Table, error) {
	out := &metav1.Table{ColumnDefinitions: []metav1.TableColumnDefinition{
		{Name: "Name", Type: "string", Format: "name"}, {Name: "CPU", Type: "string"},
		{Name: "Memory", Type: "string"}, {Name: "Window", Type: "string"},
	}}
	add := func(one runtime.Object, name string, window metav1.Duration, usages ...corev1.ResourceList) {
		cpu, memory := usages[0].Cpu().DeepCopy(), usages[0].Memory().DeepCopy()
		for _, u := range usages[1:] {
			cpu.Add(*u.Cpu())
			memory.Add(*u.Memory())
		}
		out.Rows = append(out.Rows, metav1.TableRow{
			Cells: []any{
				name,
				cpu.String(),
				memory.String(),
				window.Duration.String(),
			}, Object: runtime.RawExtension{Object: one},
		})
	}
	err := meta.EachListItem(listOf(obj), func(item runtime.Object) error {
		switch m := item.(type) {
		case *metricsv1beta1.NodeMetrics:
			add(m, m.Name, m.Window, m.Usage)
		case *metricsv1beta1.PodMetrics:
			usages := make([]corev1.ResourceList, 0, len(m.Containers))
			for _, c := range m.Containers {
				usages = append(usages, c.Usage)
			}
			if len(usages) > 0 {
				add(m, m.Name, m.Window, usages...)
			}
		}
		return nil
	})
	return out, err
}

// listOf wraps a single object in a list.
func listOf(obj runtime.Object) runtime.Object {
	switch m := obj.(type) {
	case *metricsv1beta1.NodeMetrics:
		return &metricsv1beta1.NodeMetricsList{Items: []metricsv1beta1.NodeMetrics{*m}}
	case *metricsv1beta1.PodMetrics:
		return &metricsv1beta1.PodMetricsList{Items: []metricsv1beta1.PodMetrics{*m}}
	}
	return obj
}
