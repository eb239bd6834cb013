package main

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// serviceAPI is an API server with Services, EndpointSlices and one Node. Both proxies watch it, each in a
// network namespace of its own, where no real server is reached.
type serviceAPI struct {
	mu       sync.Mutex
	version  int
	objects  map[string][]runtime.Object // by resource
	watchers map[chan watchEvent]string  // resource
	closed   chan struct{}
}

// watchEvent is an event as the API encodes it.
type watchEvent struct {
	Type   string         `json:"type"`
	Object runtime.Object `json:"object"`
}

const (
	servicesResource = "services"
	slicesResource   = "endpointslices"
	nodesResource    = "nodes"
	benchNode        = "n1"
	benchPods        = "10.1.0.0/24"
)

func newServiceAPI(services []*corev1.Service, slices []*discoveryv1.EndpointSlice) *serviceAPI {
	a := &serviceAPI{
		version: 1, objects: map[string][]runtime.Object{}, watchers: map[chan watchEvent]string{},
		closed: make(chan struct{}),
	}
	for _, s := range services {
		a.objects[servicesResource] = append(a.objects[servicesResource], s)
	}
	for _, s := range slices {
		a.objects[slicesResource] = append(a.objects[slicesResource], s)
	}
	node := &corev1.Node{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Node"},
		ObjectMeta: metav1.ObjectMeta{Name: benchNode, UID: benchNode, ResourceVersion: "1"},
		Spec:       corev1.NodeSpec{PodCIDR: benchPods, PodCIDRs: []string{benchPods}},
		Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{
			{Type: corev1.NodeInternalIP, Address: "192.0.2.1"}}},
	}
	a.objects[nodesResource] = []runtime.Object{node}
	return a
}

// serve answers on a listener until it is closed.
func (a *serviceAPI) serve(l net.Listener) *http.Server {
	s := &http.Server{Handler: a, ReadHeaderTimeout: time.Minute}
	go func() { _ = s.Serve(l) }()
	return s
}

// update replaces an EndpointSlice.
func (a *serviceAPI) update(s *discoveryv1.EndpointSlice) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.version++
	s.ResourceVersion = fmt.Sprint(a.version)
	for i, old := range a.objects[slicesResource] {
		if o, ok := old.(*discoveryv1.EndpointSlice); ok && o.Name == s.Name && o.Namespace == s.Namespace {
			a.objects[slicesResource][i] = s
		}
	}
	for w, resource := range a.watchers {
		if resource == slicesResource {
			w <- watchEvent{"MODIFIED", s}
		}
	}
}

// ServeHTTP answers lists and watches. What it does not have does not exist.
func (a *serviceAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	path := r.URL.Path
	resource := path[strings.LastIndexByte(path, '/')+1:]
	a.mu.Lock()
	all, known := a.objects[resource]
	version := a.version
	switch {
	case path == "/api/v1/nodes/"+benchNode:
		node := a.objects[nodesResource][0]
		a.mu.Unlock()
		_ = json.NewEncoder(w).Encode(node)
		return
	case !known:
		a.mu.Unlock()
		w.WriteHeader(http.StatusNotFound)
		return
	case r.URL.Query().Get("watch") != "":
		events := make(chan watchEvent, 1000)
		a.watchers[events] = resource
		a.mu.Unlock()
		initial := all
		if r.URL.Query().Get("sendInitialEvents") != "true" {
			initial = nil
		}
		a.watch(w, r, events, initial, version)
		return
	}
	a.mu.Unlock()
	kind := map[string]string{
		servicesResource: "ServiceList", slicesResource: "EndpointSliceList", nodesResource: "NodeList"}[resource]
	group := map[string]string{slicesResource: "discovery.k8s.io/v1"}[resource]
	if group == "" {
		group = "v1"
	}
	_ = json.NewEncoder(w).Encode(map[string]any{
		"apiVersion": group, "kind": kind, "metadata": map[string]string{"resourceVersion": fmt.Sprint(version)},
		"items": all,
	})
}

// watch sends events until the client goes away.
func (a *serviceAPI) watch(
	w http.ResponseWriter, r *http.Request, events chan watchEvent, initial []runtime.Object, version int,
) {
	defer func() {
		a.mu.Lock()
		delete(a.watchers, events)
		a.mu.Unlock()
	}()
	out, control := json.NewEncoder(w), http.NewResponseController(w)
	for _, o := range initial {
		_ = out.Encode(watchEvent{"ADDED", o})
	}
	if initial != nil {
		end := initial[0].DeepCopyObject()
		if m, ok := end.(metav1.Object); ok {
			m.SetResourceVersion(fmt.Sprint(version))
			m.SetAnnotations(map[string]string{metav1.InitialEventsAnnotationKey: "true"})
		}
		_ = out.Encode(watchEvent{"BOOKMARK", end})
	}
	_ = control.Flush()
	for {
		select {
		case e := <-events:
			_ = out.Encode(e)
			_ = control.Flush()
		case <-r.Context().Done():
			return
		case <-a.closed:
			return
		}
	}
}

// probeService is the Service that is changed and connected to.
const (
	probeService   = "probe"
	probeClusterIP = "10.43.255.1"
	firstEndpoint  = "10.200.0.1"
	secondEndpoint = "10.200.0.2"
)

// benchServices makes n Services with five endpoints each, and the one that is probed.
func benchServices(n int) (services []*corev1.Service, slices []*discoveryv1.EndpointSlice) {
	for i := range n {
		name := fmt.Sprint("service-", i)
		ip := fmt.Sprintf("10.43.%d.%d", i>>8, i&255)
		services = append(services, benchService(name, ip))
		var endpoints []string
		for e := range 5 {
			at := 5*i + e
			endpoints = append(endpoints, fmt.Sprintf("10.%d.%d.%d", 128+at>>16, at>>8&255, at&255))
		}
		slices = append(slices, benchSlice(name, endpoints...))
	}
	return append(services, benchService(probeService, probeClusterIP)),
		append(slices, benchSlice(probeService, firstEndpoint))
}

func benchService(name, ip string) *corev1.Service {
	return &corev1.Service{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Service"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: "1", ResourceVersion: "1"},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeClusterIP, ClusterIP: ip, ClusterIPs: []string{ip},
			SessionAffinity: corev1.ServiceAffinityNone, IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
			Ports: []corev1.ServicePort{{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP}},
		},
	}
}

func benchSlice(name string, endpoints ...string) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		TypeMeta: metav1.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name + "-1", UID: "1", ResourceVersion: "1",
			Labels: map[string]string{discoveryv1.LabelServiceName: name}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports: []discoveryv1.EndpointPort{
			{Name: new("http"), Port: new(int32(8080)), Protocol: new(corev1.ProtocolTCP)}},
	}
	for i, a := range endpoints {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{a}, NodeName: new(fmt.Sprint("node-", i)),
			Conditions: discoveryv1.EndpointConditions{Ready: new(true), Serving: new(true), Terminating: new(false)},
			TargetRef:  &corev1.ObjectReference{Kind: "Pod", Namespace: "default", Name: fmt.Sprint(name, "-", i)},
		})
	}
	return s
}
