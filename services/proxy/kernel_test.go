package proxy

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"

	"berth/services"
)

// world is a lab whose node runs a proxy.
type world struct {
	*lab
	store *services.Store
	proxy *Proxy
	stop  func() // ends Run and waits
	// registry has the metrics of the proxy.
	registry *prometheus.Registry
	// configure changes a proxy before it runs. It may be nil.
	configure func(*Proxy)

	version atomic.Int64 // number of changes of the store
	mu      sync.Mutex
	reached int64 // version that the kernel has
	signal  *sync.Cond
	failure error // of the last sync
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{lab: newLab(t), store: services.NewStore()}
	w.init()
	w.start()
	return w
}

// init makes the store complete.
func (w *world) init() {
	w.signal = sync.NewCond(&w.mu)
	w.store.ReplaceServices(nil)
	w.store.ReplaceSlices(nil)
}

// start starts a proxy and waits until the kernel has its rules.
func (w *world) start() {
	w.t.Helper()
	w.registry = prometheus.NewRegistry()
	p := New(Options{
		Store: w.store, Node: testNode(), NetNS: w.node.ns, Log: logTo(w.t), Metrics: NewMetrics(w.registry),
	})
	p.onSync = func(err error) { w.finished(p, err) }
	if w.proxy = p; w.configure != nil {
		w.configure(p)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- p.Run(ctx) }()
	w.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			w.t.Error(err)
		}
	})
	w.t.Cleanup(func() { w.stop() })
	w.change(func() {})
}

// finished runs on the goroutine of the proxy: the state does not change meanwhile.
func (w *world) finished(p *Proxy, err error) {
	version := w.version.Load()
	current := err == nil
	for _, name := range w.store.Names() {
		svc, all := w.store.Service(name)
		has, its := p.state.Service(name)
		current = current && svc == has && slices.Equal(all, its)
	}
	for name := range p.state.Names() {
		svc, _ := w.store.Service(name)
		current = current && svc != nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.failure = err
	if current {
		w.reached = version
	}
	w.signal.Broadcast()
}

// change changes the store and waits until the kernel has the change.
func (w *world) change(f func()) {
	w.t.Helper()
	f()
	version := w.version.Add(1)
	w.proxy.opt.Store.SetService(marker(version)) // a change even if f makes none
	w.mu.Lock()
	defer w.mu.Unlock()
	for w.reached < version {
		w.signal.Wait()
	}
}

// marker is a Service without frontends.
func marker(int64) *services.Service {
	return &services.Service{Name: services.Name{Namespace: "test", Name: "marker"}, Headless: true}
}

// web is the Service of most tests: 10.43.0.1 and fd43::1, port 80 of all pods and of the other node.
var web = services.Name{Namespace: "default", Name: "web"}

// service makes a Service with the ports tcp 80, udp 53 and sctp 90.
func service(change func(*services.Service)) *services.Service {
	a := netip.MustParseAddr
	s := &services.Service{
		Name: web, Type: corev1.ServiceTypeClusterIP, ClusterIPs: []netip.Addr{a("10.43.0.1"), a("fd43::1")},
		Ports: []services.Port{
			{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80},
			{Name: "dns", Protocol: corev1.ProtocolUDP, Port: 53},
			{Name: "sctp", Protocol: corev1.ProtocolSCTP, Port: 90},
		},
	}
	if change != nil {
		change(s)
	}
	return s
}

// endpoints returns the EndpointSlices of web for ready endpoints. Those in 10.1 are on this node.
func endpoints(all ...string) (out [2]*services.Slice) {
	for i := range out {
		out[i] = &services.Slice{
			Service: web, Name: []string{"v4", "v6"}[i], IPv6: i == 1,
			Ports: []services.EndpointPort{
				{Name: "http", Protocol: corev1.ProtocolTCP, Port: 8080},
				{Name: "dns", Protocol: corev1.ProtocolUDP, Port: 5353},
				{Name: "sctp", Protocol: corev1.ProtocolSCTP, Port: 9090},
			},
		}
	}
	for _, text := range all {
		e := services.Endpoint{Address: netip.MustParseAddr(text), Ready: true, Serving: true, Node: "n2"}
		i := 0
		if e.Address.Is6() {
			i = 1
		}
		if n := testNode(); n.IsLocalPod(e.Address) {
			e.Node = "n1"
		}
		out[i].Endpoints = append(out[i].Endpoints, e)
	}
	return out
}

// set sets web and its endpoints, and waits until the kernel has them.
func (w *world) set(svc *services.Service, all ...string) {
	w.t.Helper()
	w.change(func() {
		w.store.SetService(svc)
		for _, slice := range endpoints(all...) {
			w.store.SetSlice(slice)
		}
	})
}

// serveAll makes all pods and the other node serve.
func (w *world) serveAll() {
	for i, p := range w.pods {
		p.serve("tcp", "8080")
		p.serveUDP(fmt.Sprintf("10.1.0.%d:5353", 11+i))
		p.serveUDP(fmt.Sprintf("[fd01::%d]:5353", 11+i))
	}
	w.other.serve("tcp", "8080")
	w.other.serveUDP("10.2.0.11:5353")
	w.other.serveUDP("[fd02::11]:5353")
}
