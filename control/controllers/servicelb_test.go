package controllers

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"

	"berth/control/loadbalancer"
)

func newLoadBalancer(name string, change ...func(*corev1.Service)) *corev1.Service {
	svc := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name)},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeLoadBalancer, IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
			Ports: []corev1.ServicePort{{Protocol: corev1.ProtocolTCP, Port: 80}},
		},
	}
	for _, f := range change {
		f(svc)
	}
	return svc
}

func newNodeAt(name, address string) *corev1.Node {
	n := newNode(name, corev1.ConditionTrue)
	n.Status.Addresses = []corev1.NodeAddress{
		{Type: corev1.NodeInternalIP, Address: address}, {Type: corev1.NodeHostName, Address: name},
	}
	return n
}

// loadBalancerOf returns the addresses, the reason of the condition and the finalizers of a Service.
func loadBalancerOf(t *testing.T, client kubernetes.Interface, name string) string {
	t.Helper()
	svc, err := client.CoreV1().Services("default").Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		return "not found"
	}
	var out []string
	for _, in := range svc.Status.LoadBalancer.Ingress {
		out = append(out, in.IP)
		if in.IPMode == nil || *in.IPMode != corev1.LoadBalancerIPModeVIP {
			t.Errorf("Service %s: %s has no ipMode VIP", name, in.IP)
		}
	}
	if c := meta.FindStatusCondition(svc.Status.Conditions, loadBalancerCondition); c != nil {
		out = append(out, c.Reason)
	}
	if slices.Contains(svc.Finalizers, loadBalancerFinalizer) {
		out = append(out, "finalizer")
	}
	return strings.Join(out, " ")
}

func requireLoadBalancer(t *testing.T, client kubernetes.Interface, name, want string) {
	t.Helper()
	time.Sleep(time.Second) // of the bubble: informers sync and retries run
	synctest.Wait()
	if got := loadBalancerOf(t, client, name); got != want {
		t.Errorf("Service %s: got %q, want %q", name, got, want)
	}
}

func TestServiceLBAssignsAddressesOfNodes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		events := record.NewFakeRecorder(100)
		excluded := newNodeAt("excluded", "192.0.2.9")
		excluded.Labels = map[string]string{corev1.LabelNodeExcludeBalancers: ""}
		other, node, vip := "example.com/other", "n2", corev1.LoadBalancerIPModeVIP
		client := startControllers(t, Config{Events: events}, []string{ServiceLB},
			newNodeAt("n1", "192.0.2.1"), newNodeAt("n2", "192.0.2.2"), excluded,
			newLoadBalancer("web"), newLoadBalancer("yet-another-web"),
			newLoadBalancer("foreign", func(s *corev1.Service) { s.Spec.LoadBalancerClass = &other }),
			newLoadBalancer("served", func(s *corev1.Service) {
				s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "192.0.2.77", IPMode: &vip}}
			}),
			newLoadBalancer("local", func(s *corev1.Service) {
				s.Spec.ExternalTrafficPolicy, s.Spec.Ports[0].Port = corev1.ServiceExternalTrafficPolicyLocal, 81
			}))
		requireLoadBalancer(t, client, "web", "192.0.2.1 192.0.2.2 FromNodes finalizer")
		requireLoadBalancer(t, client, "yet-another-web", "NotAssigned finalizer")
		requireLoadBalancer(t, client, "foreign", "")
		requireLoadBalancer(t, client, "served", "192.0.2.77")
		requireLoadBalancer(t, client, "local", "FromNodes finalizer")

		slice := &discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "local-1", Labels: map[string]string{
				discoveryv1.LabelServiceName: "local"}},
			Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.42.0.1"}, NodeName: &node}},
		}
		if _, err := client.DiscoveryV1().EndpointSlices("default").Create(t.Context(), slice,
			metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		requireLoadBalancer(t, client, "local", "192.0.2.2 FromNodes finalizer")

		gone := newNodeAt("n1", "192.0.2.1")
		gone.Status.Conditions[0].Status = corev1.ConditionUnknown
		if _, err := client.CoreV1().Nodes().UpdateStatus(t.Context(), gone, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		requireLoadBalancer(t, client, "web", "192.0.2.2 FromNodes finalizer")

		svc, err := client.CoreV1().Services("default").Get(t.Context(), "web", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		svc.Spec.Type, svc.ResourceVersion = corev1.ServiceTypeClusterIP, "2" // the fake client sets no versions
		if _, err := client.CoreV1().Services("default").Update(t.Context(), svc, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		requireLoadBalancer(t, client, "web", "")
		requireLoadBalancer(t, client, "yet-another-web", "192.0.2.2 FromNodes finalizer")
		var seen []string
		for len(events.Events) > 0 {
			seen = append(seen, <-events.Events)
		}
		for _, want := range []string{
			"Normal EnsuringLoadBalancer Ensuring load balancer", "Normal EnsuredLoadBalancer Ensured load balancer",
			"Normal UpdatedLoadBalancer Updated load balancer with new hosts",
			"Warning SyncLoadBalancerFailed Error syncing load balancer: failed to ensure load balancer: port 80/TCP " +
				"of 192.0.2.1 belongs to Service default/web",
			"Normal DeletingLoadBalancer Deleting load balancer", "Normal DeletedLoadBalancer Deleted load balancer",
		} {
			if !slices.Contains(seen, want) {
				t.Errorf("no event %q in %q", want, seen)
			}
		}
	})
}

func TestServiceLBAssignsAddressesOfPool(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		pool := loadbalancer.Pool{{First: netip.MustParseAddr("192.0.2.10"), Last: netip.MustParseAddr("192.0.2.11")}}
		invalid := func(s *corev1.Service) { s.Annotations = map[string]string{LoadBalancerAddresses: "web.example"} }
		client := startControllers(t, Config{LoadBalancerPool: pool}, []string{ServiceLB},
			newLoadBalancer("a"), newLoadBalancer("invalid", invalid),
			newLoadBalancer("b", func(s *corev1.Service) { s.Spec.LoadBalancerIP = "192.0.2.10" }))
		requireLoadBalancer(t, client, "a", "192.0.2.11 FromPool finalizer")
		requireLoadBalancer(t, client, "b", "192.0.2.10 FromPool finalizer")
		requireLoadBalancer(t, client, "invalid", "NotAssigned finalizer")

		services := client.CoreV1().Services("default")
		for name, wanted := range map[string]string{"a": "192.0.2.10", "b": "192.0.2.11"} { // in exchange
			svc, err := services.Get(t.Context(), name, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			svc.ResourceVersion = "2" // the fake client sets no versions
			svc.Annotations = map[string]string{LoadBalancerAddresses: wanted}
			if _, err := services.Update(t.Context(), svc, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		// The controller observes one change before the other, or both at once.
		requireLoadBalancer(t, client, "a", "192.0.2.10 FromPool finalizer")
		requireLoadBalancer(t, client, "b", "192.0.2.11 FromPool finalizer")
	})
}
