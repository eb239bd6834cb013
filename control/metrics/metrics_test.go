package metrics

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/endpoints/request"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	stats "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"
)

// cpu returns CPU statistics. A negative value is left out.
func cpu(at time.Time, rate, total int64) *stats.CPUStats {
	out := &stats.CPUStats{Time: metav1.NewTime(at)}
	if rate >= 0 {
		out.UsageNanoCores = new(uint64(rate))
	}
	if total >= 0 {
		out.UsageCoreNanoSeconds = new(uint64(total))
	}
	return out
}

func memory(n uint64) *stats.MemoryStats { return &stats.MemoryStats{WorkingSetBytes: &n} }

func TestUsageOf(t *testing.T) {
	t.Parallel()
	now := time.Now()
	before := now.Add(-2 * time.Second)
	const core = 1_000_000_000
	for _, c := range []struct {
		name          string
		cpu, previous *stats.CPUStats
		memory        *stats.MemoryStats
		ok            bool
		used          uint64
		window        time.Duration
	}{
		{name: "reported rate", cpu: cpu(now, 7, 100*core), previous: cpu(before, -1, 0), memory: memory(5), ok: true,
			used: 7, window: defaultWindow},
		{name: "no usage at all", cpu: cpu(now, 0, 0), memory: memory(0), ok: true, window: defaultWindow},
		{name: "rate computed from two totals", cpu: cpu(now, -1, 3*core), previous: cpu(before, -1, core),
			memory: memory(5),
			ok:     true, used: core, window: 2 * time.Second},
		{name: "one total gives no rate", cpu: cpu(now, -1, core), memory: memory(5)},
		{name: "missing previous total", cpu: cpu(now, -1, core), previous: cpu(before, 3, -1), memory: memory(5)},
		{name: "restart between the totals", cpu: cpu(now, -1, 1), previous: cpu(before, -1, core), memory: memory(5)},
		{name: "two totals at the same time", cpu: cpu(now, -1, core), previous: cpu(now, -1, 0), memory: memory(5)},
		{name: "totals in the wrong order", cpu: cpu(before, -1, core), previous: cpu(now, -1, 0), memory: memory(5)},
		{name: "no memory statistics", cpu: cpu(now, 7, 0)},
		{name: "no working set", cpu: cpu(now, 7, 0), memory: &stats.MemoryStats{}},
		{name: "no CPU statistics", memory: memory(5)},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			got, ok := usageOf(c.cpu, c.previous, c.memory)
			if ok != c.ok || got.cpu != c.used || got.window != c.window {
				t.Errorf("got %+v, %v", got, ok)
			}
		})
	}
}

// FuzzRates checks that a computed rate never exceeds what the totals allow.
func FuzzRates(f *testing.F) {
	f.Add(uint64(0), uint64(1_000_000_000), int64(time.Second))
	f.Add(uint64(5), uint64(4), int64(time.Second))
	f.Add(uint64(0), uint64(1)<<63, int64(1))
	f.Add(uint64(0), uint64(1), int64(-1))
	f.Fuzz(func(t *testing.T, before, after uint64, over int64) {
		at := time.Unix(1_000_000_000, 0)
		previous := &stats.CPUStats{Time: metav1.NewTime(at), UsageCoreNanoSeconds: &before}
		now := &stats.CPUStats{Time: metav1.NewTime(at.Add(time.Duration(over))), UsageCoreNanoSeconds: &after}
		got, ok := usageOf(now, previous, memory(1))
		if want := over > 0 && after >= before; ok != want {
			t.Fatalf("got %v for %d to %d over %d", ok, before, after, over)
		}
		if ok && over >= int64(time.Second) && got.cpu > after-before+1<<12 { // float rounding
			t.Errorf("%d of %d to %d over %d", got.cpu, before, after, over)
		}
	})
}

// cluster holds nodes and pods in memory, and the summaries of the nodes.
type cluster struct {
	nodes, pods cache.Indexer
	requests    atomic.Int64
	mu          sync.Mutex
	summaries   map[string]func() (*stats.Summary, error)
}

func newCluster() *cluster {
	by := cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc}
	return &cluster{
		nodes: cache.NewIndexer(
			cache.MetaNamespaceKeyFunc,
			cache.Indexers{},
		), pods: cache.NewIndexer(cache.MetaNamespaceKeyFunc, by),
		summaries: map[string]func() (*stats.Summary, error){},
	}
}

func (c *cluster) options() Options {
	return Options{Summary: c.summary, Nodes: corelisters.NewNodeLister(c.nodes),
		Pods: corelisters.NewPodLister(c.pods)}
}

func (c *cluster) summary(_ context.Context, n *corev1.Node) (*stats.Summary, error) {
	c.requests.Add(1)
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.summaries[n.Name]()
}

// node adds a node with its pods by name and their containers' usage.
func (c *cluster) node(t *testing.T, name string, pods map[string][]int64) {
	t.Helper()
	now := time.Now()
	summary := &stats.Summary{Node: stats.NodeStats{NodeName: name, CPU: cpu(now, 9, 9), Memory: memory(90)}}
	for pod, containers := range pods {
		p := &corev1.Pod{Spec: corev1.PodSpec{NodeName: name}}
		p.Namespace, p.Name, p.UID, p.Labels = "default", pod, types.UID("uid of "+pod), map[string]string{"app": pod}
		if err := c.pods.Add(p); err != nil {
			t.Fatal(err)
		}
		one := stats.PodStats{PodRef: stats.PodReference{Name: pod, Namespace: "default", UID: string(p.UID)}}
		for i, n := range containers {
			one.Containers = append(
				one.Containers,
				stats.ContainerStats{Name: fmt.Sprintf("c%d", i), CPU: cpu(now, n, n), Memory: memory(uint64(n))},
			)
		}
		summary.Pods = append(summary.Pods, one)
	}
	n := &corev1.Node{}
	n.Name, n.Labels = name, map[string]string{"node": name}
	if err := c.nodes.Add(n); err != nil {
		t.Fatal(err)
	}
	c.summaries[name] = func() (*stats.Summary, error) { return summary, nil }
}

func TestListPodsAndNodes(t *testing.T) {
	t.Parallel()
	c := newCluster()
	c.node(t, "b", map[string][]int64{"web": {1, 2}, "idle": nil})
	c.node(t, "a", map[string][]int64{"db": {4}})
	c.node(t, "down", map[string][]int64{"lost": {5}})
	c.summaries["down"] = func() (*stats.Summary, error) { return nil, errors.New("node down") }
	nodes, pods := New(c.options())
	ctx := request.WithNamespace(t.Context(), "default")

	list := func(o *internalversion.ListOptions) (out []string) {
		got, err := pods.(*podMetrics).List(ctx, o)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range got.(*metricsv1beta1.PodMetricsList).Items {
			out = append(out, m.Name)
		}
		return out
	}
	if got := list(nil); !slices.Equal(got, []string{"db", "web"}) {
		t.Errorf("pods: %q", got)
	}
	byLabel, err := labels.Parse("app=web")
	if err != nil {
		t.Fatal(err)
	}
	if got := list(&internalversion.ListOptions{LabelSelector: byLabel}); !slices.Equal(got, []string{"web"}) {
		t.Errorf("pods by label: %q", got)
	}
	if got := list(&internalversion.ListOptions{FieldSelector: fields.OneTermEqualSelector("spec.nodeName",
		"a")}); !slices.Equal(
		got,
		[]string{"db"},
	) {
		t.Errorf("pods by node: %q", got)
	}
	one, err := pods.(*podMetrics).Get(ctx, "web", nil)
	if err != nil {
		t.Fatal(err)
	}
	web := one.(*metricsv1beta1.PodMetrics)
	if len(web.Containers) != 2 || web.Containers[1].Name != "c1" || web.Containers[1].Usage.Cpu().String() != "2n" ||
		web.Containers[1].Usage.Memory().Value() != 2 {
		t.Errorf("got %+v", web.Containers)
	}
	table, err := pods.(*podMetrics).ConvertToTable(ctx, web, nil)
	if err != nil || len(table.Rows) != 1 || table.Rows[0].Cells[0] != "web" || table.Rows[0].Cells[1] != "3n" ||
		table.Rows[0].Cells[2] != "3" {
		t.Errorf("got %+v, %v", table, err)
	}

	got, err := nodes.(*nodeMetrics).List(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, m := range got.(*metricsv1beta1.NodeMetricsList).Items {
		names = append(names, m.Name)
	}
	if !slices.Equal(names, []string{"a", "b"}) {
		t.Errorf("nodes: %q", names)
	}
	if _, err := nodes.(*nodeMetrics).Get(ctx, "down", nil); !apierrors.IsNotFound(err) ||
		!strings.Contains(err.Error(), "node down") {
		t.Errorf("node that is down: %v", err)
	}
	for name, get := range map[string]func() error{
		"unknown node": func() error {
			_, err := nodes.(*nodeMetrics).Get(ctx, "nowhere", nil)
			return err
		},
		"unknown pod": func() error {
			_, err := pods.(*podMetrics).Get(ctx, "nowhere", nil)
			return err
		},
		"pod without usage":          func() error { _, err := pods.(*podMetrics).Get(ctx, "idle", nil); return err },
		"pod on a node that is down": func() error { _, err := pods.(*podMetrics).Get(ctx, "lost", nil); return err },
	} {
		if err := get(); !apierrors.IsNotFound(err) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

// TestCollectorSharesRequests checks that concurrent callers share one request and that its result
// is cached for cacheTTL.
func TestCollectorSharesRequests(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newCluster()
		c.node(t, "a", map[string][]int64{"web": {1}})
		nodes, _ := New(c.options())
		get := func() {
			if _, err := nodes.(*nodeMetrics).Get(t.Context(), "a", nil); err != nil {
				t.Error(err)
			}
		}
		var all sync.WaitGroup
		for range 10 {
			all.Go(get)
		}
		all.Wait()
		if n := c.requests.Load(); n != 1 {
			t.Errorf("%d requests for ten concurrent callers", n)
		}
		time.Sleep(cacheTTL - time.Millisecond)
		get()
		if n := c.requests.Load(); n != 1 {
			t.Errorf("%d requests while the cached usage is fresh", n)
		}
		time.Sleep(time.Millisecond)
		get()
		if n := c.requests.Load(); n != 2 {
			t.Errorf("%d requests after the cached usage expired", n)
		}
	})
}

// TestCollectorCachesErrors checks that the error of a node that does not respond is shared and
// cached for cacheTTL, and that a caller does not wait beyond its context.
func TestCollectorCachesErrors(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newCluster()
		c.node(t, "off", nil)
		c.node(t, "on", nil)
		o := c.options()
		requests := map[string]int{}
		o.Summary = func(ctx context.Context, n *corev1.Node) (*stats.Summary, error) {
			c.mu.Lock()
			requests[n.Name]++
			c.mu.Unlock()
			if n.Name == "off" {
				<-ctx.Done()
				return nil, ctx.Err()
			}
			return c.summary(ctx, n)
		}
		nodes, _ := New(o)
		m := nodes.(*nodeMetrics)
		list := func(ctx context.Context) {
			got, err := m.List(ctx, nil)
			if err != nil {
				t.Error(err)
				return
			}
			if items := got.(*metricsv1beta1.NodeMetricsList).Items; ctx.Err() == nil &&
				(len(items) != 1 || items[0].Name != "on") {
				t.Errorf("got %v", items)
			}
		}
		checkCall := func(want time.Duration, times int, f func()) {
			t.Helper()
			start := time.Now()
			f()
			if got := time.Since(start); got != want || requests["off"] != times {
				t.Errorf("took %s, want %s; %d requests, want %d", got, want, requests["off"], times)
			}
		}
		canceledEarly, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		checkCall(time.Second, 1, func() { list(canceledEarly) })
		checkCall(summaryTimeout, 2, func() { // A canceled request is not cached.
			var all sync.WaitGroup
			for range 10 {
				all.Go(func() { list(t.Context()) })
			}
			all.Wait()
		})
		time.Sleep(cacheTTL - time.Millisecond)
		checkCall(0, 2, func() { list(t.Context()) })
		if _, err := m.Get(t.Context(), "off", nil); !apierrors.IsNotFound(err) ||
			!strings.Contains(err.Error(), "deadline") {
			t.Errorf("error: %v", err)
		}
		time.Sleep(time.Millisecond)
		checkCall(summaryTimeout, 3, func() {
			var all sync.WaitGroup
			all.Go(func() { list(t.Context()) })
			synctest.Wait()
			second, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			start := time.Now()
			list(second) // while the first request is in progress
			if waited := time.Since(start); waited != time.Second {
				t.Errorf("the caller waited %s for another caller's request", waited)
			}
			all.Wait()
		})
	})
}

// TestCollectorComputesRatesFromTotals checks that two requests are made at first, and one later,
// when the previous totals are cached.
func TestCollectorComputesRatesFromTotals(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newCluster()
		c.node(t, "a", nil)
		start := time.Now()
		c.summaries["a"] = func() (*stats.Summary, error) { // half a core
			now := time.Now()
			return &stats.Summary{Node: stats.NodeStats{CPU: cpu(now, -1, int64(now.Sub(start))/2), Memory: memory(1)}},
				nil
		}
		nodes, _ := New(c.options())
		for i, want := range []int64{2, 3} {
			got, err := nodes.(*nodeMetrics).Get(t.Context(), "a", nil)
			if err != nil {
				t.Fatal(err)
			}
			if use := got.(*metricsv1beta1.NodeMetrics).Usage.Cpu().MilliValue(); use != 500 {
				t.Errorf("request %d: %d millicores", i, use)
			}
			if n := c.requests.Load(); n != want {
				t.Errorf("request %d: %d calls", i, n)
			}
			time.Sleep(2 * cacheTTL)
		}
	})
}

// TestCollectorPrunesDeletedNodes checks that the cache does not grow with each deleted node.
func TestCollectorPrunesDeletedNodes(t *testing.T) {
	t.Parallel()
	c := newCluster()
	c.node(t, "a", nil)
	c.node(t, "b", nil)
	nodes, _ := New(c.options())
	m := nodes.(*nodeMetrics)
	if _, err := m.List(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	deleted, _, _ := c.nodes.GetByKey("b")
	if err := c.nodes.Delete(deleted); err != nil {
		t.Fatal(err)
	}
	if _, err := m.List(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	if len(m.collector.nodes) != 1 || m.collector.nodes["a"] == nil {
		t.Errorf("cached nodes: %v", m.collector.nodes)
	}
}
