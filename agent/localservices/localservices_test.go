package localservices

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"berth/agent/plan"
	"berth/agent/source"
	"berth/agent/status"
	"berth/podspec"
	"berth/services"
)

var testRange = netip.MustParsePrefix("10.43.0.0/16")

func service(name string, change ...func(*corev1.Service)) *corev1.Service {
	svc := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeClusterIP, Selector: map[string]string{"app": name},
			Ports: []corev1.ServicePort{{Port: 80, Protocol: corev1.ProtocolTCP, TargetPort: intstr.FromInt32(8080)}},
		},
	}
	for _, f := range change {
		f(svc)
	}
	return svc
}

func clusterIP(ip string) func(*corev1.Service) {
	return func(s *corev1.Service) { s.Spec.ClusterIP = ip }
}

func nodePort(n int32) func(*corev1.Service) {
	return func(s *corev1.Service) { s.Spec.Type, s.Spec.Ports[0].NodePort = corev1.ServiceTypeNodePort, n }
}

func TestAllocateRequests(t *testing.T) {
	t.Parallel()
	got, problems := Allocate([]*corev1.Service{
		service("b", clusterIP("10.96.0.9"), nodePort(30001)),
		service("a", clusterIP("10.96.0.9")),
		service("c", nodePort(30001)),
		service("headless", clusterIP("None")),
		service("local", clusterIP("127.0.0.1")),
		service("name", func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeExternalName }),
	}, nil, testRange, Node{})
	name := func(n string) services.Name { return services.Name{Namespace: "default", Name: n} }
	if got[name("a")].ClusterIP.String() != "10.96.0.9" || got[name("headless")].ClusterIP.IsValid() ||
		got[name("name")].ClusterIP.IsValid() || got[name("c")].NodePorts["TCP/80"] != 0 {
		t.Errorf("got %v", got)
	}
	want := map[services.Name]Problem{
		name("b"): {
			"ClusterIPAlreadyAllocated", "spec.clusterIP: 10.96.0.9 is the address of Service default/a", false,
		},
		name("c"): {"PortAlreadyAllocated", "spec.ports: node port 30001/TCP is used by Service default/b", false},
		name("local"): {
			"ClusterIPNotValid", "spec.clusterIP: 127.0.0.1 cannot be the address of a Service", false,
		},
	}
	if !maps.Equal(problems, want) {
		t.Errorf("got problems %v, want %v", problems, want)
	}
}

func loadBalancer(port int32, wanted string) func(*corev1.Service) {
	return func(s *corev1.Service) {
		s.Spec.Type, s.Spec.Ports[0].Port, s.Spec.LoadBalancerIP = corev1.ServiceTypeLoadBalancer, port, wanted
	}
}

var testNode = Node{
	Addresses: []netip.Addr{
		netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("198.51.100.1"),
	},
	Reserved: map[string]string{"TCP/22": "SSH"},
}

// TestLoadBalancersOfNode: Services share the addresses of the node by port, and keep what they had.
func TestLoadBalancersOfNode(t *testing.T) {
	t.Parallel()
	other, none := "example.com/other", false
	all := []*corev1.Service{
		service("a", loadBalancer(80, "")), service("b", loadBalancer(80, "")), service("c", loadBalancer(81, "")),
		service("d", loadBalancer(82, "192.0.2.1")), service("e", loadBalancer(82, " 198.51.100.1")),
		service("f", loadBalancer(83, "192.0.2.9")), service("g", loadBalancer(83, "2001:db8::1")),
		service("h", loadBalancer(22, "")), service("i", loadBalancer(83, "x")),
		service("j", loadBalancer(84, ""), func(s *corev1.Service) { s.Spec.LoadBalancerClass = &other }),
		service("k", loadBalancer(85, ""), func(s *corev1.Service) {
			s.Annotations = map[string]string{loadBalancerAddresses: "198.51.100.1,192.0.2.1"}
			s.Spec.AllocateLoadBalancerNodePorts = &none
		}),
		service("l", loadBalancer(86, ""), clusterIP("fd43::9")),
		service("m", loadBalancer(86, ""), clusterIP("127.0.0.1")),
	}
	had := map[services.Name]Allocation{{Namespace: "default", Name: "b"}: {
		LoadBalancerIPs: []netip.Addr{netip.MustParseAddr("192.0.2.1")},
	}}
	got, problems := Allocate(all, had, testRange, testNode)
	for name, want := range map[string]string{
		"a": "routed [] port 80/TCP of 192.0.2.1 belongs to Service default/b",
		"b": "routed [192.0.2.1 198.51.100.1] ",
		"c": "routed [192.0.2.1 198.51.100.1] ",
		"d": "routed [192.0.2.1] ",
		"e": "routed [198.51.100.1] ",
		"f": "routed [] requested address 192.0.2.9 is not an address of this node",
		"g": "routed [] requested address 2001:db8::1 is not an address of this node",
		"h": "routed [] port 22/TCP of 192.0.2.1 is used by SSH of this node",
		"i": `routed [] requested address "x" is not an IP address`,
		"j": "routed [] ",
		"k": "routed [198.51.100.1 192.0.2.1] ",
		"l": "routed [2001:db8::1] ",
		"m": "not routed [] spec.clusterIP: 127.0.0.1 cannot be the address of a Service",
	} {
		n := services.Name{Namespace: "default", Name: name}
		a, routed := got[n]
		text := "not routed"
		if routed {
			text = "routed"
		}
		if text = fmt.Sprintf("%s %s %s", text, a.LoadBalancerIPs, problems[n].Message); text != want {
			t.Errorf("%s: got %q, want %q", name, text, want)
		}
		if wantPorts := routed && name != "k"; wantPorts != (len(a.NodePorts) == 1) {
			t.Errorf("%s: node ports %v", name, a.NodePorts)
		}
	}
	svc := compact(all[10], got[nameOf(all[10])])
	if svc.Announce || !slices.Equal(svc.LoadBalancerIPs, got[nameOf(all[10])].LoadBalancerIPs) || svc.UID == "" {
		t.Errorf("got %+v", svc)
	}
	if _, problems := Allocate(all[:1], nil, testRange, Node{}); problems[nameOf(all[0])].Message !=
		"this node has no IPv4 address" {
		t.Errorf("without addresses: %v", problems)
	}
}

// checkLoadBalancers checks that no two Services have an address and port in common, and that a Service keeps its
// addresses.
func checkLoadBalancers(t *testing.T, files []*corev1.Service, had, got map[services.Name]Allocation,
	problems map[services.Name]Problem,
) {
	t.Helper()
	owners, keeps := map[string]services.Name{}, map[string]int{}
	for _, svc := range files {
		if needsLoadBalancer(svc) && len(had[nameOf(svc)].LoadBalancerIPs) > 0 {
			keeps[portKey(svc.Spec.Ports[0])]++
		}
	}
	for _, svc := range files {
		name, port := nameOf(svc), portKey(svc.Spec.Ports[0])
		for _, ip := range got[name].LoadBalancerIPs {
			key := ip.String() + port
			if other, taken := owners[key]; taken {
				t.Fatalf("L1: %s and %s have %s", name, other, key)
			}
			owners[key] = name
		}
		if !needsLoadBalancer(svc) || !got[name].ClusterIP.IsValid() {
			continue
		}
		if bad := problems[name] != (Problem{}); bad == (len(got[name].LoadBalancerIPs) > 0) {
			t.Fatalf("%s: addresses %v, problem %v", name, got[name].LoadBalancerIPs, problems[name])
		}
		if keeps[port] == 1 && len(had[name].LoadBalancerIPs) > 0 && len(got[name].LoadBalancerIPs) == 0 {
			t.Fatalf("L2: %s lost its addresses: %v", name, problems[name])
		}
	}
}

// TestAllocateModel changes files under seeds and checks L1 and L2 in a range with few addresses.
func TestAllocateModel(t *testing.T) {
	t.Parallel()
	small := netip.MustParsePrefix("10.43.0.0/27") // 15 addresses after the reserved ones
	for seed := range uint64(100) {
		rng := rand.New(rand.NewPCG(seed, 3))
		had := map[services.Name]Allocation{}
		for range 30 {
			var files []*corev1.Service
			for i := range 1 + rng.IntN(20) {
				svc := service(fmt.Sprintf("s%d", i))
				switch rng.IntN(8) {
				case 3:
					loadBalancer(int32(80+rng.IntN(3)), "")(svc)
				case 0:
					clusterIP(fmt.Sprintf("10.43.0.%d", 1+rng.IntN(30)))(svc)
				case 1:
					nodePort(0)(svc)
				case 2:
					nodePort(int32(30000 + rng.IntN(3)))(svc)
				}
				files = append(files, svc)
			}
			got, problems := Allocate(files, had, small, testNode)
			addresses, ports := map[netip.Addr]services.Name{}, map[uint16]services.Name{}
			for name, a := range got {
				if other, taken := addresses[a.ClusterIP]; taken {
					t.Fatalf("seed %d: L1: %s has the address of %s", seed, name, other)
				}
				addresses[a.ClusterIP] = name
				for _, n := range a.NodePorts {
					if other, taken := ports[n]; taken {
						t.Fatalf("seed %d: L1: %s has the node port of %s", seed, name, other)
					}
					ports[n] = name
				}
			}
			checkLoadBalancers(t, files, had, got, problems)
			for _, svc := range files {
				name := nameOf(svc)
				a, ok := got[name]
				if !ok && problems[name] == (Problem{}) {
					t.Fatalf("seed %d: %s has neither an allocation nor a problem", seed, name)
				}
				old, was := had[name]
				requested := slices.ContainsFunc(files, func(s *corev1.Service) bool {
					return s != svc && s.Spec.ClusterIP == old.ClusterIP.String()
				})
				if ok && was && svc.Spec.ClusterIP == "" && !requested && a.ClusterIP != old.ClusterIP {
					t.Fatalf("seed %d: L2: %s lost %s", seed, name, old.ClusterIP)
				}
			}
			reversed := slices.Clone(files)
			slices.Reverse(reversed)
			if again, _ := Allocate(reversed, had, small, testNode); !maps.EqualFunc(got, again, Allocation.equal) {
				t.Fatalf("seed %d: the result depends on the order", seed)
			}
			had = got
		}
	}
}

func pod(name, ip string, ready bool, change ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name),
			Labels: map[string]string{"app": "web"}},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Ports: []corev1.ContainerPort{{Name: "http",
			ContainerPort: 8080}}}}},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIPs: []corev1.PodIP{{IP: ip}}},
	}
	if ready {
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	}
	for _, f := range change {
		f(p)
	}
	return p
}

func TestEndpoints(t *testing.T) {
	t.Parallel()
	named := service("web", func(s *corev1.Service) {
		s.Spec.Ports = []corev1.ServicePort{{Port: 80, Protocol: corev1.ProtocolTCP,
			TargetPort: intstr.FromString("http")}}
	})
	pods := []*corev1.Pod{
		pod("a", "10.1.0.2", true), pod("b", "10.1.0.1", false),
		pod("done", "10.1.0.3", false, func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }),
		pod("leaving", "10.1.0.4", true, func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{} }),
		pod("other", "10.1.0.5", true, func(p *corev1.Pod) { p.Labels = nil }),
		pod("elsewhere", "10.1.0.6", true, func(p *corev1.Pod) { p.Namespace = "x" }),
		pod("port", "10.1.0.7", true, func(p *corev1.Pod) { p.Spec.Containers[0].Ports[0].ContainerPort = 9090 }),
		pod("unnamed", "10.1.0.8", true, func(p *corev1.Pod) { p.Spec.Containers[0].Ports = nil }),
		pod("both", "10.1.0.9", true, func(p *corev1.Pod) {
			p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: "fd00::9"})
			p.Spec.Hostname, p.Spec.Subdomain = "h", "web"
		}),
	}
	var got []string
	for _, s := range Endpoints(named, pods, "n1") {
		for _, e := range s.Endpoints {
			got = append(got, fmt.Sprintf("%s:%d %s ready=%t serving=%t terminating=%t %s", e.Address, s.Ports[0].Port,
				e.Pod,
				e.Ready, e.Serving, e.Terminating, e.Hostname))
		}
	}
	slices.Sort(got)
	want := []string{
		"10.1.0.1:8080 b ready=false serving=false terminating=false ",
		"10.1.0.2:8080 a ready=true serving=true terminating=false ",
		"10.1.0.4:8080 leaving ready=false serving=true terminating=true ",
		"10.1.0.7:9090 port ready=true serving=true terminating=false ",
		"10.1.0.9:8080 both ready=true serving=true terminating=false h",
		"fd00::9:8080 both ready=true serving=true terminating=false h",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// TestServicesOverRestarts follows files and pods, and keeps addresses over a restart.
func TestServicesOverRestarts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		disk := map[string][]byte{}
		name := services.Name{Namespace: "default", Name: "web"}
		var address netip.Addr
		for round := range 3 {
			store := services.NewStore()
			events := make(chan status.Event)
			s := New(Options{
				NodeName: "n1", Range: testRange, Services: store, Stored: maps.Clone(disk),
				Log:    slog.New(slog.DiscardHandler),
				Record: func(corev1.ObjectReference, string, string) {}, Created: func(types.UID) {},
				Deleted: func(types.UID) {},
				Put: func(values map[string][]byte) {
					maps.Copy(disk, values)
					maps.DeleteFunc(disk, func(_ string, v []byte) bool { return v == nil })
				},
				Watch: func(ctx context.Context, handle func(status.Event) error) error {
					for {
						select {
						case <-ctx.Done():
							return nil
						case e := <-events:
							if err := handle(e); err != nil {
								return err
							}
						}
					}
				},
			})
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error)
			go func() { ended <- s.Run(ctx) }()
			snapshot := func(p *corev1.Pod) *status.Snapshot { return &status.Snapshot{Pod: p, Status: p.Status} }
			ready := pod("a", "10.1.0.2", true)
			events <- status.Event{Added: snapshot(ready)}
			s.SetFiles(source.Snapshot{Ready: true, Services: []*corev1.Service{service("web")}})
			synctest.Wait()
			if store.Synced() {
				t.Error("synced before the pods of the start are known")
			}
			events <- status.Event{Synced: true}
			synctest.Wait()
			svc, slices := store.Service(name)
			if svc == nil || len(slices) != 1 || !slices[0].Endpoints[0].Ready || !store.Synced() {
				t.Fatalf("round %d: %+v %+v", round, svc, slices)
			}
			if round > 0 && svc.ClusterIPs[0] != address {
				t.Errorf("round %d: address %s, before the restart %s", round, svc.ClusterIPs[0], address)
			}
			address = svc.ClusterIPs[0]
			events <- status.Event{Deleted: snapshot(ready)}
			synctest.Wait()
			if _, slices := store.Service(name); len(slices) != 0 {
				t.Errorf("endpoints of a deleted pod: %+v", slices)
			}
			cancel()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
		if len(disk) != 1 {
			t.Errorf("stored %d values, want 1", len(disk))
		}
	})
}

// TestEventsOfServices records a problem once, and again when it changes.
func TestEventsOfServices(t *testing.T) {
	t.Parallel()
	var got []string
	s := New(Options{
		NodeName: "n1", Range: testRange, Services: services.NewStore(), Log: slog.New(slog.DiscardHandler),
		Put: func(map[string][]byte) {},
		Record: func(ref corev1.ObjectReference, reason, _ string) {
			got = append(got, ref.Kind+" "+ref.Name+" "+reason)
		},
		Created: func(uid types.UID) { got = append(got, "created "+string(uid)) },
		Deleted: func(uid types.UID) { got = append(got, "deleted "+string(uid)) },
	})
	s.listed = true
	for _, files := range [][]*corev1.Service{
		{service("a", nodePort(30001)), service("b", nodePort(30001))},
		{service("a", nodePort(30001)), service("b", nodePort(30001))},
		{service("a", nodePort(30001)), service("b", clusterIP("127.0.0.1"))},
		{service("a", nodePort(30001)), service("b")},
		{service("b")},
	} {
		s.SetFiles(source.Snapshot{Ready: true, Services: files})
		s.sync()
	}
	want := []string{
		"created service-default/a", "created service-default/b", "Service b PortAlreadyAllocated",
		"Service b ClusterIPNotValid", "deleted service-default/a",
	}
	if !slices.Equal(got, want) || len(s.Problems()) != 0 {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestEnvironmentOfServices gives a pod the addresses that its Services have from the first snapshot on.
func TestEnvironmentOfServices(t *testing.T) {
	t.Parallel()
	stored := map[string][]byte{}
	s := New(Options{
		NodeName: "n1", Range: testRange, Services: services.NewStore(), Log: slog.New(slog.DiscardHandler),
		Put: func(values map[string][]byte) { maps.Copy(stored, values) },
	})
	web := pod("web-1", "10.1.0.1", true)
	web.Annotations = map[string]string{source.AnnotationSource: source.File}
	objects := map[source.ObjectKey]plan.Object{}
	got := s.SetFiles(source.Snapshot{
		Ready: true, Services: []*corev1.Service{service("web"), service("none", clusterIP("None"))},
		Pods: []*corev1.Pod{web}, Objects: objects,
	})
	value := func(name string) string {
		for _, r := range podspec.References(web) {
			for _, v := range got.Objects[source.KeyOf(web, plan.Ref{Kind: plan.RefKind(r.Kind), Name: r.Name})].Env {
				if v.Name == name {
					return v.Value
				}
			}
		}
		return ""
	}
	ip := s.stored[services.Name{Namespace: "default", Name: "web"}].ClusterIP.String()
	if value("WEB_SERVICE_HOST") != ip || value("WEB_SERVICE_PORT") != "80" || value("NONE_SERVICE_HOST") != "" ||
		len(stored) != 2 || len(objects) != 0 {
		t.Errorf("got %v, want the address %s", got.Objects, ip)
	}
	web.Spec.EnableServiceLinks = new(bool)
	if value("WEB_SERVICE_HOST") != "" {
		t.Error("a pod with enableServiceLinks: false has links")
	}
}
