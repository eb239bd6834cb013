package services

import (
	"maps"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

var compareAddresses = cmp.Options{
	cmp.Comparer(func(a, b netip.Addr) bool { return a == b }),
	cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }),
}

func TestFromService(t *testing.T) {
	t.Parallel()
	ips := func(texts ...string) (out []netip.Addr) {
		for _, text := range texts {
			out = append(out, netip.MustParseAddr(text))
		}
		return out
	}
	name := Name{"ns", "web"}
	for _, c := range []struct {
		name   string
		spec   corev1.ServiceSpec
		status corev1.ServiceStatus
		want   Service
	}{
		{"one address without a list", corev1.ServiceSpec{ClusterIP: "10.43.0.1",
			Ports: []corev1.ServicePort{{Port: 80}}}, corev1.ServiceStatus{},
			Service{Name: name, Type: corev1.ServiceTypeClusterIP, ClusterIPs: ips("10.43.0.1"),
				Ports: []Port{{Protocol: corev1.ProtocolTCP, Port: 80}}}},
		{"two families", corev1.ServiceSpec{ClusterIP: "10.43.0.1", ClusterIPs: []string{"10.43.0.1", "fd00::1"}},
			corev1.ServiceStatus{},
			Service{Name: name, Type: corev1.ServiceTypeClusterIP, ClusterIPs: ips("10.43.0.1", "fd00::1")}},
		{"headless", corev1.ServiceSpec{ClusterIP: "None", ClusterIPs: []string{"None"}}, corev1.ServiceStatus{},
			Service{Name: name, Type: corev1.ServiceTypeClusterIP, Headless: true}},
		{"external name", corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "example.org"},
			corev1.ServiceStatus{},
			Service{Name: name, Type: corev1.ServiceTypeExternalName, ExternalName: "example.org"}},
		{"affinity with the default timeout", corev1.ServiceSpec{ClusterIP: "10.43.0.1",
			SessionAffinity: corev1.ServiceAffinityClientIP}, corev1.ServiceStatus{},
			Service{Name: name, Type: corev1.ServiceTypeClusterIP, ClusterIPs: ips("10.43.0.1"),
				AffinitySeconds: 10800}},
		{"external addresses that would harm the node are left out", corev1.ServiceSpec{ClusterIP: "10.43.0.1",
			ExternalIPs: []string{"127.0.0.1", "169.254.169.254", "192.0.2.1", "::1"}}, corev1.ServiceStatus{},
			Service{Name: name, Type: corev1.ServiceTypeClusterIP, ClusterIPs: ips("10.43.0.1"),
				ExternalIPs: ips("192.0.2.1")}},
		{"load balancer", corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, ClusterIP: "10.43.0.1",
			LoadBalancerSourceRanges: []string{"192.0.2.7/24", "x"}, HealthCheckNodePort: 30000,
			ExternalTrafficPolicy: corev1.ServiceExternalTrafficPolicyLocal},
			corev1.ServiceStatus{LoadBalancer: corev1.LoadBalancerStatus{Ingress: []corev1.LoadBalancerIngress{
				{IP: "198.51.100.1"}, {IP: "198.51.100.2", IPMode: new(corev1.LoadBalancerIPModeProxy)}}}},
			Service{Name: name, Type: corev1.ServiceTypeLoadBalancer, ClusterIPs: ips("10.43.0.1"),
				LoadBalancerIPs:          ips("198.51.100.1"),
				LoadBalancerSourceRanges: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")},
				HealthCheckNodePort:      30000, ExternalLocal: true}},
		{"PreferClose is PreferSameZone", corev1.ServiceSpec{ClusterIP: "None",
			TrafficDistribution: new("PreferClose")},
			corev1.ServiceStatus{}, Service{Name: name, Type: corev1.ServiceTypeClusterIP, Headless: true,
				TrafficDistribution: "PreferSameZone"}},
	} {
		svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web"}, Spec: c.spec,
			Status: c.status}
		TrimService(svc)
		if diff := cmp.Diff(&c.want, FromService(svc), compareAddresses); diff != "" {
			t.Errorf("%s: (-want +got)\n%s", c.name, diff)
		}
	}
}

func TestFromEndpointSlice(t *testing.T) {
	t.Parallel()
	es := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web-1",
			Labels:      map[string]string{discoveryv1.LabelServiceName: "web"},
			Annotations: map[string]string{corev1.EndpointsLastChangeTriggerTime: "2026-01-02T03:04:05.5Z"}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports: []discoveryv1.EndpointPort{{Name: new("http"), Port: new(int32(8080))}, {Name: new("all")},
			{Port: new(int32(53)), Protocol: new(corev1.ProtocolUDP)}},
		Endpoints: []discoveryv1.Endpoint{
			{Addresses: []string{"10.1.0.1", "10.1.0.9"}, NodeName: new("n1"), Hostname: new("h"),
				TargetRef: &corev1.ObjectReference{Kind: "Pod", Name: "p"}},
			{Addresses: []string{"127.0.0.1"}}, {Addresses: []string{"fd00::1"}}, {Addresses: []string{"x"}}, {},
			{Addresses: []string{"10.1.0.2"}, Conditions: discoveryv1.EndpointConditions{Ready: new(false),
				Serving: new(true), Terminating: new(true)},
				Hints: &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: "a"}}}},
			{Addresses: []string{"10.1.0.3"}, Conditions: discoveryv1.EndpointConditions{Ready: new(false)}},
		},
	}
	want := &Slice{Service: Name{"ns", "web"}, Name: "web-1", ChangedAt: time.Date(2026, 1, 2, 3, 4, 5, 5e8, time.UTC),
		Ports: []EndpointPort{{"http", corev1.ProtocolTCP, 8080}, {"", corev1.ProtocolUDP, 53}},
		Endpoints: []Endpoint{
			{Address: netip.MustParseAddr("10.1.0.1"), Node: "n1", Hostname: "h", Pod: "p", Ready: true, Serving: true},
			{Address: netip.MustParseAddr("10.1.0.2"), Serving: true, Terminating: true, ForZones: []string{"a"}},
			{Address: netip.MustParseAddr("10.1.0.3")},
		}}
	if diff := cmp.Diff(want, FromEndpointSlice(es), compareAddresses); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	es.AddressType = discoveryv1.AddressTypeFQDN
	if got := FromEndpointSlice(es); got != nil {
		t.Errorf("slice of names: got %+v, want nil", got)
	}
}

func equal[T any](a, b T) bool { return reflect.DeepEqual(a, b) }

// TestEqualListsChangeNothing: a list that was read again wakes no consumer for what it had before.
func TestEqualListsChangeNothing(t *testing.T) {
	t.Parallel()
	service := func(name string) *Service {
		return &Service{Name: Name{"ns", name}, ClusterIPs: []netip.Addr{netip.MustParseAddr("10.43.0.7")}}
	}
	slice := func(port uint16) *Slice {
		return &Slice{Service: Name{"ns", "web"}, Name: "web-1", Ports: []EndpointPort{{Port: port}}}
	}
	s := NewStore()
	s.ReplaceServices([]*Service{service("web"), service("other")})
	s.ReplaceSlices([]*Slice{slice(80)})
	sub := s.Subscribe()
	defer sub.Close()
	sub.Take()
	s.ReplaceServices([]*Service{service("web"), service("other")})
	s.ReplaceSlices([]*Slice{slice(80)})
	if got := sub.Take(); len(got) > 0 {
		t.Errorf("equal lists: got changes %v", got)
	}
	s.ReplaceServices([]*Service{service("web")})
	if got := sub.Take(); len(got) != 1 {
		t.Errorf("a Service less: got changes %v", got)
	}
	s.ReplaceSlices([]*Slice{slice(81)})
	if got := sub.Take(); len(got) != 1 {
		t.Errorf("another port: got changes %v", got)
	}
}

// TestStoreModel compares a Store under seeded changes with plain maps, and what a subscriber has
// seen with both.
func TestStoreModel(t *testing.T) {
	t.Parallel()
	for seed := range uint64(50) {
		rng := rand.New(rand.NewPCG(seed, 1))
		s := NewStore()
		wantServices, wantSlices := map[Name]*Service{}, map[SliceKey]*Slice{}
		service := func() *Service {
			return &Service{Name: Name{string(rune('a' + rng.IntN(2))), string(rune('s' + rng.IntN(3)))}}
		}
		slice := func() *Slice {
			return &Slice{Service: service().Name, Name: string(rune('x' + rng.IntN(3))),
				Ports: []EndpointPort{{Port: uint16(rng.IntN(9))}}}
		}
		sub := s.Subscribe()
		seenServices, seenSlices := map[Name]*Service{}, map[Name][]*Slice{}
		for range 200 {
			switch rng.IntN(7) {
			case 0, 1:
				x := service()
				s.SetService(x)
				wantServices[x.Name] = x
			case 2:
				x := service()
				s.DeleteService(x.Name)
				delete(wantServices, x.Name)
			case 3, 4:
				x := slice()
				s.SetSlice(x)
				wantSlices[x.Key()] = x
			case 5:
				x := slice()
				s.DeleteSlice(x.Key())
				delete(wantSlices, x.Key())
			case 6:
				x, y := service(), slice()
				s.ReplaceServices([]*Service{x})
				s.ReplaceSlices([]*Slice{y})
				wantServices, wantSlices = map[Name]*Service{x.Name: x}, map[SliceKey]*Slice{y.Key(): y}
			}
			if rng.IntN(3) == 0 {
				for name := range sub.Take() {
					seenServices[name], seenSlices[name] = s.Service(name)
					if seenServices[name] == nil {
						delete(seenServices, name)
					}
					if len(seenSlices[name]) == 0 {
						delete(seenSlices, name)
					}
				}
				want := map[Name][]*Slice{}
				for _, key := range slices.SortedFunc(maps.Keys(wantSlices), func(a, b types.NamespacedName) int {
					return Name{a.Namespace, a.Name}.Compare(Name{b.Namespace, b.Name})
				}) {
					want[wantSlices[key].Service] = append(want[wantSlices[key].Service], wantSlices[key])
				}
				if !maps.EqualFunc(seenServices, wantServices, equal) {
					t.Fatalf("seed %d: got Services %v, want %v", seed, seenServices, wantServices)
				}
				if !maps.EqualFunc(seenSlices, want, equal) {
					t.Fatalf("seed %d: got EndpointSlices %v, want %v", seed, seenSlices, want)
				}
				for _, ns := range []string{"a", "b"} {
					has := slices.ContainsFunc(s.Names(), func(n Name) bool { return n.Namespace == ns })
					if s.HasNamespace(ns) != has {
						t.Fatalf("seed %d: HasNamespace(%s) is not %t", seed, ns, has)
					}
				}
			}
		}
		sub.Close()
	}
}

func TestSynced(t *testing.T) {
	t.Parallel()
	s := NewStore()
	sub := s.Subscribe()
	<-sub.Changed()
	s.ReplaceServices(nil)
	if s.Synced() {
		t.Error("synced without EndpointSlices")
	}
	s.ReplaceSlices(nil)
	if !s.Synced() {
		t.Error("not synced after both lists")
	}
	select {
	case <-sub.Changed():
	default:
		t.Error("no signal when the store became synced")
	}
}

// TestVersion: every change has a new version, and Take without a change returns nil.
func TestVersion(t *testing.T) {
	t.Parallel()
	s := NewStore()
	sub := s.Subscribe()
	defer sub.Close()
	if sub.Take() != nil {
		t.Error("an empty store has changes")
	}
	svc := &Service{Name: Name{"ns", "web"}}
	slice := &Slice{Service: svc.Name, Name: "web-1"}
	for i, change := range []func(){
		func() { s.SetService(svc) }, func() { s.SetSlice(slice) }, func() { s.DeleteSlice(slice.Key()) },
		func() { s.DeleteService(svc.Name) }, func() { s.ReplaceServices(nil) }, func() { s.ReplaceSlices(nil) },
	} {
		before := s.Version()
		if change(); s.Version() == before {
			t.Errorf("change %d keeps the version", i)
		}
	}
	if len(sub.Take()) != 1 || sub.Take() != nil {
		t.Error("changes are returned twice")
	}
}

// TestView: a view has the state of the store, also what a subscription has not taken.
func TestView(t *testing.T) {
	t.Parallel()
	s := NewStore()
	sub := s.Subscribe()
	defer sub.Close()
	svc := &Service{Name: Name{"ns", "web"}}
	s.ReplaceServices([]*Service{svc})
	s.SetSlice(&Slice{Service: svc.Name, Name: "web-1"})
	check := func(synced bool, pending int) {
		t.Helper()
		s.View(func(v View) {
			got, slices := v.Service(svc.Name)
			_, taken := v.Pending(sub)[svc.Name]
			if got != svc || len(slices) != 1 || !v.HasNamespace("ns") || v.HasNamespace("other") ||
				v.Synced() != synced ||
				len(v.Pending(sub)) != pending || taken != (pending > 0) {
				t.Errorf("view: %v, %d slices, synced %t, pending %v", got, len(slices), v.Synced(), v.Pending(sub))
			}
		})
	}
	check(false, 1)
	s.ReplaceSlices([]*Slice{{Service: svc.Name, Name: "web-1"}})
	check(true, 1)
	sub.Take()
	check(true, 0)
}
