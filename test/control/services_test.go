package control

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/netip"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/control"
	"berth/control/storage"
)

const serviceManifest = `apiVersion: v1
kind: Service
metadata: {name: %s}
spec: {type: %s, selector: {app: web}, ports: [{name: http, port: 80, targetPort: http}]}
`

// waitUntil waits until the condition is true.
func waitUntil(t *testing.T, what string, condition func() bool) {
	t.Helper()
	eventually(t, what, func() (bool, string) { return condition(), what })
}

// TestServiceAllocation checks the allocation of cluster IPs and node ports with kubectl.
func TestServiceAllocation(t *testing.T) {
	t.Parallel()
	s := Shared(t)
	get := func(name, path string) string {
		return s.Kubectl(t, "get", "service", name, "-o", "jsonpath={.spec."+path+"}")
	}
	if out := s.Apply(t, fmt.Sprintf(serviceManifest, "web", "NodePort")); strings.Contains(out, "Warning") {
		t.Errorf("a warning in the output of kubectl apply: %s", out)
	}
	ip, port := get("web", "clusterIP"), get("web", "ports[0].nodePort")
	if a, err := netip.ParseAddr(ip); err != nil || !netip.MustParsePrefix("10.43.0.0/16").Contains(a) {
		t.Errorf("got cluster IP %q, want one in 10.43.0.0/16", ip)
	}
	if get("web", "clusterIPs[0]") != ip || get("web", "ipFamilies[0]") != "IPv4" ||
		get("web", "ipFamilyPolicy") != "SingleStack" {
		t.Errorf("got service %s", s.Kubectl(t, "get", "service", "web", "-o", "yaml"))
	}
	requireRejection := func(want, spec string) {
		t.Helper()
		out, err := s.TryKubectl(t, "apiVersion: v1\nkind: Service\nmetadata: {name: other}\nspec: "+spec, "apply",
			"-f", "-")
		if err == nil || !strings.Contains(out, want) {
			t.Errorf("service %s: got %v, want %q: %s", spec, err, want, out)
		}
	}
	requireRejection("provided IP is already allocated", "{clusterIP: "+ip+", ports: [{port: 80}]}")
	requireRejection("is not in the valid range. The range of valid IPs is 10.43.0.0/16",
		"{clusterIP: 10.96.0.7, ports: [{port: 80}]}")
	requireRejection("provided port is already allocated", "{type: NodePort, ports: [{port: 80, nodePort: "+port+"}]}")
	requireRejection("The range of valid ports is 30000-32767", "{type: NodePort, ports: [{port: 80, nodePort: 80}]}")
	requireRejection("not configured for dual-stack", "{ipFamilyPolicy: RequireDualStack, ports: [{port: 80}]}")
	// A rejected service allocates no address or port.
	requireRejection("name", "{clusterIP: 10.43.0.9, type: NodePort, ports: [{port: 80, nodePort: 30009}, {port: 81}]}")
	s.Apply(t, "apiVersion: v1\nkind: Service\nmetadata: {name: other}\nspec: {clusterIP: 10.43.0.9, type: NodePort, "+
		"ports: [{port: 80, nodePort: 30009}]}")

	s.Apply(t, fmt.Sprintf(serviceManifest, "web", "ClusterIP"))
	if get("web", "clusterIP") != ip || get("web", "ports[0].nodePort") != "" {
		t.Errorf("after the change to ClusterIP: got %s", s.Kubectl(t, "get", "service", "web", "-o", "yaml"))
	}
	s.Apply(t, "apiVersion: v1\nkind: Service\nmetadata: {name: third}\nspec: {type: NodePort, ports: [{port: 80, "+
		"nodePort: "+port+"}]}")
	s.Kubectl(t, "delete", "service", "web")
	s.Apply(t, "apiVersion: v1\nkind: Service\nmetadata: {name: dry}\nspec: {clusterIP: "+ip+", ports: [{port: 80}]}",
		"--dry-run=server")
	s.Apply(t, "apiVersion: v1\nkind: Service\nmetadata: {name: again}\nspec: {clusterIP: "+ip+", ports: [{port: 80}]}")
	s.Apply(t, "apiVersion: v1\nkind: Service\nmetadata: {name: none}\nspec: {clusterIP: None, selector: {a: b}}")
	s.Apply(t, "apiVersion: v1\nkind: Service\nmetadata: {name: elsewhere}\nspec: {type: ExternalName, externalName: "+
		"example.com}")
	if get("none", "clusterIP") != "None" || get("elsewhere", "clusterIP") != "" {
		t.Error("headless or external service has a cluster IP")
	}
}

// TestKubernetesService checks the service kubernetes, its endpoints, the names in the serving
// certificate, and the Service of the cluster's DNS.
func TestKubernetesService(t *testing.T) {
	t.Parallel()
	s := Start(t, func(c *control.Config) { c.AdvertiseAddress = netip.MustParseAddr("192.0.2.77") })
	u, err := url.Parse(s.Config.Host)
	if err != nil {
		t.Fatal(err)
	}
	for what, want := range map[string]string{
		"service kubernetes -o " +
			"jsonpath={.spec.clusterIP}": "10.43.0.1",
		"endpoints kubernetes -o " +
			"jsonpath={.subsets[0].addresses[0].ip}:{.subsets[0].ports[0].port}": "192.0.2.77:" + u.Port(),
		"endpointslice kubernetes -o " +
			"jsonpath={.endpoints[0].addresses[0]}:{.ports[0].port}{.metadata.labels.*}": "192.0.2.77:" + u.Port() +
			"kubernetes",
		"service -n kube-system kube-dns -o jsonpath={.spec.clusterIP}:{.spec.ports[*].name}": "10.43.0.10:dns dns-tcp",
	} {
		var got string
		waitUntil(t, what, func() bool {
			got, err = s.TryKubectl(t, "", append([]string{"get"}, strings.Fields(what)...)...)
			return err == nil && strings.HasSuffix(strings.TrimSpace(got), want)
		})
	}
	for _, name := range []string{"192.0.2.77", "10.43.0.1", "kubernetes.default.svc"} {
		c, err := tls.Dial("tcp", u.Host, &tls.Config{RootCAs: s.Authority.Pool(), ServerName: name,
			MinVersion: tls.VersionTLS12})
		if err != nil {
			t.Errorf("serving certificate for %s: %v", name, err)
			continue
		}
		c.Close()
	}
}

// TestIngressesAndServiceRanges uses the kinds of networking.k8s.io that no controller of the server acts
// on, with kubectl.
func TestIngressesAndServiceRanges(t *testing.T) {
	t.Parallel()
	s := Shared(t)
	class := s.Namespace // cluster-scoped, and unique to the test
	s.Apply(t, "apiVersion: networking.k8s.io/v1\nkind: IngressClass\nmetadata: {name: "+class+", annotations: "+
		"{ingressclass.kubernetes.io/is-default-class: 'true'}}\nspec: {controller: example.com/ingress}")
	t.Cleanup(func() {
		err := s.Client.NetworkingV1().IngressClasses().Delete(context.WithoutCancel(t.Context()), class,
			metav1.DeleteOptions{})
		if err != nil {
			t.Error(err)
		}
	})
	waitUntil(t, "the default class of an Ingress", func() bool {
		s.Kubectl(t, "delete", "ingress", "web", "--ignore-not-found")
		s.Kubectl(t, "create", "ingress", "web", "--rule=www.example.org/*=web:80")
		return s.Kubectl(t, "get", "ingress", "web", "-o", "jsonpath={.spec.ingressClassName}") == class
	})
	if out := s.Kubectl(t, "get", "ingress", "web", "--no-headers"); !slices.Equal(strings.Fields(out)[:4],
		[]string{"web", class, "www.example.org", "80"}) {
		t.Errorf("kubectl get ingress: %s", out)
	}
	if out := s.Kubectl(t, "describe", "ingress", "web"); !strings.Contains(out, "www.example.org") {
		t.Errorf("kubectl describe ingress: %s", out)
	}
	if out, err := s.TryKubectl(t, "", "create", "ingress", "bad", "--rule=10.0.0.1/*=web:80"); err == nil ||
		!strings.Contains(out, "spec.rules[0].host: Invalid value") {
		t.Errorf("an Ingress for an IP address: %v %s", err, out)
	}
	waitUntil(t, "the ServiceCIDR of the server", func() bool {
		out, err := s.TryKubectl(t, "", "get", "servicecidr", "kubernetes", "-o",
			"jsonpath={.spec.cidrs[0]} {.status.conditions[?(@.type=='Ready')].status}")
		return err == nil && out == "10.43.0.0/16 True"
	})
}

// TestTwoServersAllocateUniquely creates services through two servers concurrently.
func TestTwoServersAllocateUniquely(t *testing.T) {
	t.Parallel()
	endpoints := startEtcdCluster(t)
	// 16 node ports for 16 services.
	withEtcd := func(c *control.Config) {
		c.Etcd, c.ServiceNodePorts.Last = storage.ClientConfig{Endpoints: endpoints}, c.ServiceNodePorts.First+15
	}
	one := Start(t, withEtcd)
	two := Start(t, withEtcd, func(c *control.Config) {
		c.EncryptionConfig = filepath.Join(one.DataDir, "pki",
			"encryption.yaml")
	})
	var wg sync.WaitGroup
	for i := range 16 {
		server := []*Server{one, two}[i%2]
		wg.Go(func() {
			svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{GenerateName: "s-"}, Spec: corev1.ServiceSpec{
				Type: corev1.ServiceTypeNodePort, Ports: []corev1.ServicePort{{Port: 80}}}}
			if _, err := server.Client.CoreV1().Services("default").Create(t.Context(), svc,
				metav1.CreateOptions{}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	list, err := two.Client.CoreV1().Services("default").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var allocated []string
	for i := range list.Items {
		s := &list.Items[i].Spec
		for _, value := range []string{s.ClusterIP, fmt.Sprint(s.Ports[0].NodePort)} {
			if value != "0" && slices.Contains(allocated, value) {
				t.Errorf("%s was allocated twice", value)
			}
			allocated = append(allocated, value)
		}
	}
	_, err = one.Client.CoreV1().Services("default").Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "more"}, Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort,
			Ports: []corev1.ServicePort{{Port: 80}}},
	}, metav1.CreateOptions{})
	if err == nil || !strings.Contains(err.Error(), "range is full") {
		t.Errorf("service without a free node port: got %v", err)
	}
}

// TestEndpointsFollowPods checks the Endpoints and EndpointSlices of a service while its pod changes.
func TestEndpointsFollowPods(t *testing.T) {
	t.Parallel()
	s := Shared(t)
	s.Apply(t, fmt.Sprintf(serviceManifest, "web", "ClusterIP"))
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "a", Labels: map[string]string{"app": "web"}},
		Spec: corev1.PodSpec{NodeName: "n", Containers: []corev1.Container{{Name: "c", Image: "i",
			Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: 8080}}}}},
	}
	pods := s.Client.CoreV1().Pods(s.Namespace)
	var err error
	waitUntil(t, "creation of the pod", func() bool {
		var created *corev1.Pod
		if created, err = pods.Create(t.Context(), pod, metav1.CreateOptions{}); err == nil {
			pod = created
		}
		return err == nil
	})
	updateStatus := func(ready corev1.ConditionStatus) {
		pod.Status = corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "10.42.0.5",
			PodIPs:     []corev1.PodIP{{IP: "10.42.0.5"}},
			Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: ready}}}
		if pod, err = pods.UpdateStatus(t.Context(), pod, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	waitForEndpoints := func(endpoints, slice string) {
		t.Helper()
		waitUntil(t, "endpoints "+endpoints, func() bool {
			a, _ := s.TryKubectl(t, "", "get", "endpoints", "web", "-o", "jsonpath={.subsets}")
			b, _ := s.TryKubectl(t, "", "get", "endpointslices", "-l", "kubernetes.io/service-name=web", "-o",
				"jsonpath={.items[*].endpoints[*].conditions.ready} {.items[*].ports[*].port}")
			return strings.Contains(a, endpoints) && strings.Contains(b, slice)
		})
	}
	updateStatus(corev1.ConditionFalse)
	waitForEndpoints(`"notReadyAddresses":[{"ip":"10.42.0.5"`, "false 8080")
	updateStatus(corev1.ConditionTrue)
	waitForEndpoints(`"addresses":[{"ip":"10.42.0.5"`, "true 8080")
	s.Kubectl(t, "delete", "pod", "a", "--force", "--grace-period=0")
	waitForEndpoints("", " ")
	s.Kubectl(t, "delete", "service", "web")
	waitUntil(t, "deletion of the endpoints", func() bool {
		out, err := s.TryKubectl(t, "", "get", "endpointslices,endpoints", "-l", "endpoints.kubernetes.io/managed-by",
			"-o",
			"name")
		return err == nil && !strings.Contains(out, "/web")
	})
}
