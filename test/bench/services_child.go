package main

import (
	"context"
	"log/slog"
	"net/netip"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"

	"berth/services"
	"berth/services/proxy"
)

// proxyEnv makes this program the Service proxy of the agent, for a process of its own. Its value is the URL
// of the API server with the Services.
const proxyEnv = "BERTH_BENCH_PROXY"

// runProxy runs the proxy until it is stopped.
func runProxy(api string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	client, err := kubernetes.NewForConfig(&rest.Config{Host: api, QPS: -1})
	if err != nil {
		return err
	}
	store := services.NewStore()
	all, slices := client.CoreV1().Services(""), client.DiscoveryV1().EndpointSlices("")
	watchInto(ctx, &corev1.Service{}, serviceStore{store},
		func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return all.List(ctx, o) }, all.Watch)
	watchInto(ctx, &discoveryv1.EndpointSlice{}, sliceStore{store},
		func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return slices.List(ctx, o) },
		slices.Watch)
	go func() { // as the agent does
		for ctx.Err() == nil {
			time.Sleep(2 * time.Second)
			debug.FreeOSMemory()
		}
	}()
	return proxy.New(proxy.Options{
		Store: store, Log: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
		Node: proxy.Node{
			Name: benchNode, Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.1")},
			PodCIDRs:          []netip.Prefix{netip.MustParsePrefix(benchPods)},
			NodePortAddresses: []netip.Addr{netip.MustParseAddr("192.0.2.1")},
		},
	}).Run(ctx)
}

func watchInto(ctx context.Context, kind runtime.Object, into cache.ReflectorStore,
	list func(context.Context, metav1.ListOptions) (runtime.Object, error),
	watchFrom func(context.Context, metav1.ListOptions) (watch.Interface, error)) {
	from := &cache.ListWatch{ListWithContextFunc: list, WatchFuncWithContext: watchFrom}
	r := cache.NewReflector(from, kind, into, 0)
	go r.RunWithContext(ctx)
}

// serviceStore and sliceStore put what is watched into the store of the node.
type (
	serviceStore struct{ *services.Store }
	sliceStore   struct{ *services.Store }
)

func (s serviceStore) Add(o any) error {
	if svc, ok := o.(*corev1.Service); ok {
		s.SetService(services.FromService(svc))
	}
	return nil
}

func (s serviceStore) Update(o any) error { return s.Add(o) }

func (s serviceStore) Delete(o any) error {
	if svc, ok := o.(*corev1.Service); ok {
		s.DeleteService(services.Name{Namespace: svc.Namespace, Name: svc.Name})
	}
	return nil
}

func (s serviceStore) Replace(all []any, _ string) error {
	var out []*services.Service
	for _, o := range all {
		if svc, ok := o.(*corev1.Service); ok {
			out = append(out, services.FromService(svc))
		}
	}
	s.ReplaceServices(out)
	return nil
}

func (serviceStore) Resync() error { return nil }

func (s sliceStore) Add(o any) error {
	if slice, ok := o.(*discoveryv1.EndpointSlice); ok {
		if compact := services.FromEndpointSlice(slice); compact != nil {
			s.SetSlice(compact)
		}
	}
	return nil
}

func (s sliceStore) Update(o any) error { return s.Add(o) }

func (s sliceStore) Delete(o any) error {
	if slice, ok := o.(*discoveryv1.EndpointSlice); ok {
		s.DeleteSlice(services.SliceKey{Namespace: slice.Namespace, Name: slice.Name})
	}
	return nil
}

func (s sliceStore) Replace(all []any, _ string) error {
	var out []*services.Slice
	for _, o := range all {
		if slice, ok := o.(*discoveryv1.EndpointSlice); ok {
			if compact := services.FromEndpointSlice(slice); compact != nil {
				out = append(out, compact)
			}
		}
	}
	s.ReplaceSlices(out)
	return nil
}

func (sliceStore) Resync() error { return nil }
