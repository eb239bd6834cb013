package pair

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
	"k8s.io/client-go/util/cert"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	servers "berth/test/control"
	"berth/test/hosts"
	"berth/test/images"
)

// webDeployment is a Deployment of two pods, one on each node, and a Service with a node port.
const webDeployment = `apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: default}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 1
      topologySpreadConstraints:
      - {maxSkew: 1, topologyKey: kubernetes.io/hostname, whenUnsatisfiable: DoNotSchedule,
         labelSelector: {matchLabels: {app: web}}}
      containers: [{name: c, image: %q, args: [serve, "8080"], ports: [{name: http, containerPort: 8080}]}]
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: default}
spec:
  type: NodePort
  selector: {app: web}
  ports: [{name: http, port: 80, targetPort: http}]
`

// fromPod runs a command of testbox in a pod.
func (w *TwoHosts) fromPod(pod string, args ...string) (string, error) {
	return w.TryKubectl(w.t, "", append([]string{"exec", pod, "--", "/bin/testbox"}, args...)...)
}

// waitForAnswer waits until a pod gets an answer from a URL.
func (w *TwoHosts) waitForAnswer(pod, url string) {
	w.t.Helper()
	w.A.waitUntil(pod+" to reach "+url, func() string {
		out, err := w.fromPod(pod, "get", url)
		if err == nil && len(strings.Fields(out)) > 0 {
			return ""
		}
		return fmt.Sprint(out, err)
	})
}

// get requests a URL from this machine.
func get(ctx context.Context, url string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return "", err
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return string(text), err
}

// TestServicesAcrossHosts reaches a Deployment through its Service: by name and cluster IP from pods of both
// nodes, and by node port on both nodes, also on one without an endpoint. Names are resolved by the nodes
// themselves. All of it goes on while the agents restart and the server is away. The address of a load balancer is not
// announced while another host has it, and moves to the other node with and without the server.
func TestServicesAcrossHosts(t *testing.T) {
	t.Parallel()
	w := startTwoHosts(t, nil)
	w.Apply(t, w.A.pod("a", "", "sleep"))
	w.Apply(t, w.B.pod("b", "", "sleep"))
	w.Apply(t, fmt.Sprintf(webDeployment, images.TestboxRef))
	w.Kubectl(t, "rollout", "status", "deployment/web", "--timeout=4m")
	w.A.waitForField("pod", "a", readyStatus, "True")
	w.A.waitForField("pod", "b", readyStatus, "True")
	ip := w.A.field("service", "web", ".spec.clusterIP")
	port := w.A.field("service", "web", ".spec.ports[0].nodePort")
	reachable := func() {
		t.Helper()
		for _, pod := range []string{"a", "b"} {
			w.waitForAnswer(pod, "http://"+ip+"/")
			w.waitForAnswer(pod, "http://web/")
			w.waitForAnswer(pod, "http://web.default.svc.cluster.local/")
		}
		for _, p := range []*Pair{w.A, w.B} {
			url := "http://" + net.JoinHostPort(w.addresses("node", p.Node, internalIPs)[0].String(), port) + "/"
			p.waitUntil("node port at "+url, func() string {
				if _, err := get(t.Context(), url); err != nil {
					return err.Error()
				}
				return ""
			})
		}
	}
	reachable()
	requireDNS(t, w)
	w.requireServerReachesPods()
	var answers []string
	w.A.waitUntil("both pods to answer", func() string {
		out, err := w.fromPod("a", "get", "http://web/")
		if err == nil && !slices.Contains(answers, out) {
			answers = append(answers, out)
		}
		if len(answers) < 2 {
			return fmt.Sprint(answers, err)
		}
		return ""
	})
	w.Kubectl(t, "scale", "deployment/web", "--replicas=1")
	w.A.waitUntil("one pod", func() string {
		out := w.Kubectl(t, "get", "pods", "-l", "app=web", "--no-headers")
		if strings.Count(out, "\n") != 1 {
			return out
		}
		return ""
	})
	reachable() // the node without an endpoint too
	for _, p := range []*Pair{w.A, w.B} {
		if err := p.Agent.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	reachable()
	w.requireAddressConflict()
	w.requireFailover()
	reachable()
	w.requireCommands()
	w.requirePolicies()
	w.requireServicesWithoutServer(ip)
	w.requireFailover()
}

// denyingPod is a pod with a webhook, and its Service and configuration, that denies all new ConfigMaps with the
// label denied. Its arguments are the node, the image, certificate, key, and CA bundle.
const denyingPod = `apiVersion: v1
kind: Pod
metadata: {name: deny, namespace: default, labels: {app: deny}}
spec:
  nodeName: %[1]s
  terminationGracePeriodSeconds: 1
  containers:
  - name: c
    image: %[2]q
    args: [serve, "8080", "8443"]
    env: [{name: TLS_CERT, value: %[3]q}, {name: TLS_KEY, value: %[4]q}]
    readinessProbe: {httpGet: {port: 8443, scheme: HTTPS}, periodSeconds: 1}
---
apiVersion: v1
kind: Service
metadata: {name: deny, namespace: default}
spec: {selector: {app: deny}, ports: [{port: 443, targetPort: 8443}]}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: {name: deny}
webhooks:
- name: deny.example.com
  clientConfig: {service: {namespace: default, name: deny, path: /deny}, caBundle: %[5]s}
  objectSelector: {matchLabels: {denied: "true"}}
  rules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [configmaps]}]
  sideEffects: None
  admissionReviewVersions: [v1]
`

// requireServerReachesPods connects from the server, whose host has no route to pods, to pods: by pods/proxy and
// services/proxy, and to a webhook.
func (w *TwoHosts) requireServerReachesPods() {
	t := w.t
	t.Helper()
	web := w.Kubectl(t, "get", "pods", "-l", "app=web", "-o", "jsonpath={.items[*].metadata.name}")
	for _, pod := range strings.Fields(web) {
		if got := w.Kubectl(t, "get", "--raw", "/api/v1/namespaces/default/pods/"+pod+":8080/proxy/"); got != pod+"\n" {
			t.Errorf("pods/proxy: got %q, want %q", got, pod)
		}
	}
	if got := w.Kubectl(t, "get", "--raw", "/api/v1/namespaces/default/services/web:http/proxy/"); got == "" ||
		!strings.Contains(web, strings.TrimSpace(got)) {
		t.Errorf("services/proxy: got %q, want one of %s", got, web)
	}
	if out, err := w.TryKubectl(t, "", "get", "--raw", "/api/v1/namespaces/default/pods/a:81/proxy/"); err == nil ||
		!strings.Contains(out, "port 81 of pod default/a through node "+w.A.Node) {
		t.Errorf("pods/proxy to a closed port: got %q", out)
	}
	bundle, key, err := cert.GenerateSelfSignedCertKey("deny.default.svc", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	w.Apply(t, fmt.Sprintf(denyingPod, w.B.Node, images.TestboxRef, bundle, key,
		base64.StdEncoding.EncodeToString(bundle)))
	w.B.waitForField("pod", "deny", readyStatus, "True")
	w.A.waitUntil("the webhook to deny", func() string {
		out, err := w.TryKubectl(t, "apiVersion: v1\nkind: ConfigMap\n"+
			"metadata: {generateName: denied-, namespace: default, labels: {denied: \"true\"}}\n", "create", "-f", "-")
		if err == nil || !strings.Contains(out, `"deny.example.com" denied the request: denied by deny`) {
			return out
		}
		return ""
	})
	w.Kubectl(t, "delete", "validatingwebhookconfiguration/deny", "service/deny", "pod/deny")
}

const policies = `apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: web, namespace: default}
spec:
  podSelector: {matchLabels: {app: web}}
  ingress: [{from: [{podSelector: {matchLabels: {client: allowed}}}], ports: [{port: http}]}]
`

// requirePolicies admits only one client to the pods of the Service, then all again.
func (w *TwoHosts) requirePolicies() {
	w.t.Helper()
	w.Kubectl(w.t, "label", "pod", "b", "client=allowed")
	w.Apply(w.t, policies)
	w.A.waitUntil("the policy to reject pod a", func() string {
		if _, err := w.fromPod("a", "dial", "web:80", "1s"); err == nil {
			return "pod a reaches web"
		}
		return w.policyExplanation() // without it, the connection has failed for another reason
	})
	w.waitForAnswer("b", "http://web/")
	w.requireNodePermissions()
	w.Kubectl(w.t, "delete", "networkpolicy", "web")
	w.waitForAnswer("a", "http://web/")
}

// policyExplanation returns what is wrong unless the node of a pod shows its policies and what they have dropped.
func (w *TwoHosts) policyExplanation() string {
	w.t.Helper()
	web := strings.Fields(w.Kubectl(w.t, "get", "pods", "-l", "app=web", "-o",
		"jsonpath={.items[0].metadata.name} {.items[0].spec.nodeName}"))
	p := w.A
	if web[1] == w.B.Node {
		p = w.B
	}
	text, err := p.Agent.Command(w.t.Context(), "why", web[0]).CombinedOutput()
	out := string(text)
	for _, want := range []string{
		"Network policies:", "packets dropped that no policy allows", "    web: ", "1 pods of namespace default",
		"Egress: not isolated",
	} {
		if err != nil || !strings.Contains(out, want) || strings.Contains(out, "Ingress: 0 packets") {
			return fmt.Sprintf("berth why %s: %v, want %q and dropped packets in:\n%s", web[0], err, want, out)
		}
	}
	return ""
}

// requireNodePermissions requires that a node reads the addresses that policies select, but not the pods of
// other nodes.
func (w *TwoHosts) requireNodePermissions() {
	w.t.Helper()
	as := func(args ...string) string {
		return w.Kubectl(w.t, append(args, "--as=system:node:"+w.A.Node, "--as-group=system:nodes")...)
	}
	out := as("get", "networkpolicyaddresses", "-o", "wide")
	if b := w.addresses("pod", "b", ".status.podIPs[*].ip")[0].String(); !strings.Contains(out, b) {
		w.t.Errorf("addresses of policies have no %s:\n%s", b, out)
	}
	for _, args := range [][]string{
		{"list", "pods", "--all-namespaces"}, {"watch", "pods", "--all-namespaces"}, {"list", "namespaces"},
		{"create", "networkpolicyaddresses"},
	} {
		cmd := append([]string{"auth", "can-i"}, args...)
		cmd = append(cmd, "--as=system:node:"+w.A.Node, "--as-group=system:nodes")
		if out, err := w.Server.TryKubectl(w.t, "", cmd...); err == nil || strings.Contains(out, "yes") {
			w.t.Errorf("a node may %s: %s", strings.Join(args, " "), out)
		}
	}
}

// requireCommands runs the commands of a node about Services and DNS.
func (w *TwoHosts) requireCommands() {
	w.t.Helper()
	for _, row := range []struct {
		args []string
		want []string
	}{
		{[]string{"services", "-A"}, []string{"web", "kubernetes", "1 of 1"}},
		{[]string{"services", "web"}, []string{"ClusterIP 10.43.", "NodePort", "to 1 endpoint", ": used"}},
		{[]string{"why", "svc/web"}, []string{
			"this node sends connections for default/web to 1 of 1 endpoint", "Addresses:", ": used",
		}},
		{[]string{"services", "kube-dns", "-n", "kube-system"}, []string{"not routed: ", "berth-dns"}},
		{[]string{"dns", "query", "web"}, []string{"web.default.svc.cluster.local. A: NOERROR, from kubernetes"}},
		{[]string{"dns", "query", "nowhere"}, []string{"NXDOMAIN"}},
	} {
		text, err := w.A.Agent.Command(w.t.Context(), row.args...).CombinedOutput()
		out := string(text)
		for _, want := range row.want {
			if err != nil || !strings.Contains(out, want) {
				w.t.Errorf("berth %s: %v, want %q in:\n%s", strings.Join(row.args, " "), err, want, out)
			}
		}
	}
}

// requireServicesWithoutServer stops the server and restarts an agent, which then knows Services from its own
// store only.
func (w *TwoHosts) requireServicesWithoutServer(clusterIP string) {
	w.t.Helper()
	w.Server.Stop(w.t)
	if err := w.A.Agent.Restart(w.t.Context()); err != nil {
		w.t.Fatal(err)
	}
	for _, url := range []string{"http://web/", "http://" + clusterIP + "/"} {
		w.A.waitUntil(url+" without the server", func() string { return w.A.execSync("a", "get", url) })
	}
}

// execSync runs a command of testbox in the running container of a pod. It returns what is wrong if the output does
// not start with 200.
func (p *Pair) execSync(pod string, args ...string) string {
	out, err := p.execOutput(pod, args...)
	if err != nil || !strings.HasPrefix(out, "200") {
		return fmt.Sprint(err, out)
	}
	return ""
}

// execOutput runs a command of testbox in the running container of a pod, through the runtime.
func (p *Pair) execOutput(pod string, args ...string) (string, error) {
	list, err := p.Host.Runtime.ListContainers(p.t.Context(), &runtimeapi.ListContainersRequest{
		Filter: &runtimeapi.ContainerFilter{
			LabelSelector: map[string]string{"io.kubernetes.pod.name": pod},
			State:         &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_RUNNING},
		},
	})
	if err == nil && len(list.Containers) != 1 {
		err = fmt.Errorf("pod %s has %d running containers", pod, len(list.Containers))
	}
	if err != nil {
		return "", err
	}
	out, err := p.Host.Runtime.ExecSync(p.t.Context(), &runtimeapi.ExecSyncRequest{
		ContainerId: list.Containers[0].Id, Cmd: append([]string{"/bin/testbox"}, args...), Timeout: 20,
	})
	if err == nil && out.ExitCode != 0 {
		err = fmt.Errorf("exit code %d: %s", out.ExitCode, out.Stderr)
	}
	return string(out.GetStdout()), err
}

const internalIPs = `.status.addresses[?(@.type=="InternalIP")].address`

// requireDNS resolves names in a pod.
func requireDNS(t *testing.T, w *TwoHosts) {
	t.Helper()
	conf, err := w.fromPod("a", "cat", "/etc/resolv.conf")
	if err != nil || !strings.Contains(conf, "nameserver 10.43.0.10") ||
		!strings.Contains(conf, "default.svc.cluster.local svc.cluster.local cluster.local") {
		t.Errorf("resolv.conf: %v %s", err, conf)
	}
	for name, want := range map[string]string{
		"kubernetes.default.svc.cluster.local": "10.43.0.1",
		"kube-dns.kube-system":                 "10.43.0.10",
	} {
		w.A.waitUntil("the address of "+name, func() string {
			out, err := w.fromPod("a", "lookup", name)
			if err != nil || !strings.Contains(out, want) {
				return fmt.Sprint(out, err)
			}
			return ""
		})
	}
	if out, err := w.fromPod("a", "lookup", "missing.default.svc.cluster.local"); err == nil {
		t.Errorf("a name that does not exist: %s", out)
	}
}

// fileService is a pod with a Service and a client, all of files. The Service has no server.
const fileService = `apiVersion: v1
kind: Pod
metadata: {name: web, labels: {app: web}}
spec:
  terminationGracePeriodSeconds: 1
  containers: [{name: c, image: %[1]q, args: [serve, "8080"]}]
---
apiVersion: v1
kind: Pod
metadata: {name: client}
spec:
  terminationGracePeriodSeconds: 1
  containers: [{name: c, image: %[1]q, args: [sleep]}]
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {type: NodePort, selector: {app: web}, ports: [{port: 80, targetPort: 8080, nodePort: 30777}]}
---
apiVersion: v1
kind: Service
metadata: {name: web-again}
spec: {type: NodePort, selector: {app: web}, ports: [{port: 80, targetPort: 8080, nodePort: 30777}]}
---
apiVersion: v1
kind: Service
metadata: {name: lb}
spec: {type: LoadBalancer, selector: {app: web}, ports: [{port: 8081, targetPort: 8080}]}
---
apiVersion: v1
kind: Service
metadata: {name: lb-again}
spec: {type: LoadBalancer, selector: {app: web}, ports: [{port: 8081, targetPort: 8080}]}
`

// TestServiceOfFile reaches a Service of a manifest file by name on a node without a server, also after the agent
// was killed. Its address stays. Turned off, the agent removes its rules and the address of the DNS server.
func TestServiceOfFile(t *testing.T) {
	t.Parallel()
	lan, err := hosts.NewLAN()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := lan.Close(); err != nil {
			t.Error(err)
		}
	})
	p := &Pair{t: t, Server: &servers.Server{}}
	p.startStandalone(lan)
	manifest := filepath.Join(p.Agent.ManifestDir, "web.yaml")
	if err := os.WriteFile(manifest, fmt.Appendf(nil, fileService, images.TestboxRef), 0o644); err != nil {
		t.Fatal(err)
	}
	reach := func() (address string) {
		t.Helper()
		p.waitUntil("the Service by name", func() string {
			return p.execSync("client", "get", "http://web/")
		})
		out, err := p.Agent.Command(t.Context(), "services", "web").CombinedOutput()
		if err != nil || !strings.Contains(string(out), ": used") {
			t.Errorf("berth services: %v %s", err, out)
		}
		_, address, _ = strings.Cut(string(out), "ClusterIP ")
		address, _, _ = strings.Cut(address, "/")
		return address
	}
	before := reach()
	host, _, _ := strings.Cut(before, ":")
	if out, err := p.execOutput("client", "env", "WEB_SERVICE_HOST"); err != nil || strings.TrimSpace(out) != host {
		t.Errorf("WEB_SERVICE_HOST is %q, want %s: %v", out, host, err)
	}
	if err := p.Agent.Kill9(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
	defer cancel()
	if err := errors.Join(p.Agent.Start(ctx), p.Agent.WaitReady(ctx)); err != nil {
		t.Fatal(err)
	}
	if after := reach(); after != before {
		t.Errorf("address %s, before the kill %s", after, before)
	}
	p.requireServiceRules(true)
	p.requireRejectedService()
	p.requireLoadBalancer()
	p.requireRestoredAddress()
	config, err := os.OpenFile(p.Agent.ConfigFile, os.O_APPEND|os.O_WRONLY, 0)
	if err == nil {
		_, err = config.WriteString("serviceProxy: \"off\"\nclusterDNSServer: \"off\"\n")
		err = errors.Join(err, config.Close(), p.Agent.Restart(ctx))
	}
	if err != nil {
		t.Fatal(err)
	}
	p.requireServiceRules(false)
	if err := os.Remove(manifest); err != nil {
		t.Fatal(err)
	}
	p.waitUntil("the pods to end", func() string {
		out, err := p.Agent.Command(t.Context(), "ps", "-A", "-o", "json").CombinedOutput()
		if err != nil || !strings.Contains(string(out), `"items": null`) &&
			!strings.Contains(string(out), `"items": []`) {
			return fmt.Sprintf("%v %s", err, out)
		}
		return ""
	})
}

// requireRejectedService checks what berth says of a Service that requests the node port of another one.
func (p *Pair) requireRejectedService() {
	p.t.Helper()
	const problem = "node port 30777/TCP is used by Service default/web"
	for _, args := range [][]string{{"why", "svc/web-again"}, {"services", "web-again"}, {"events"}} {
		out, err := p.Agent.Command(p.t.Context(), args...).CombinedOutput()
		if err != nil || !strings.Contains(string(out), problem) {
			p.t.Errorf("berth %s: %v %s", strings.Join(args, " "), err, out)
		}
	}
}

// requireRestoredAddress removes the address of the DNS server as another program does, and waits for it.
func (p *Pair) requireRestoredAddress() {
	p.t.Helper()
	ns, err := netns.GetFromName(p.Host.Name)
	if err != nil {
		p.t.Fatal(err)
	}
	defer ns.Close()
	links, err := netlink.NewHandleAt(ns, unix.NETLINK_ROUTE)
	if err != nil {
		p.t.Fatal(err)
	}
	defer links.Close()
	lo, err := links.LinkByName("lo")
	if err != nil {
		p.t.Fatal(err)
	}
	address, err := netlink.ParseAddr("10.43.0.10/32")
	if err == nil {
		err = links.AddrDel(lo, address)
	}
	if err != nil {
		p.t.Fatal(err)
	}
	p.requireServiceRules(true)
}

// requireServiceRules waits until the host has, or does not have, the rules of Services and the address of the DNS
// server.
func (p *Pair) requireServiceRules(want bool) {
	p.t.Helper()
	ns, err := netns.GetFromName(p.Host.Name)
	if err != nil {
		p.t.Fatal(err)
	}
	defer ns.Close()
	rules, err := nftables.New(nftables.WithNetNSFd(int(ns)))
	if err != nil {
		p.t.Fatal(err)
	}
	links, err := netlink.NewHandleAt(ns, unix.NETLINK_ROUTE)
	if err != nil {
		p.t.Fatal(err)
	}
	defer links.Close()
	p.waitUntil(fmt.Sprintf("rules and address of Services: %t", want), func() string {
		tables, err := rules.ListTables()
		addresses, err2 := links.AddrList(nil, netlink.FAMILY_V4)
		hasTable := slices.ContainsFunc(tables, func(t *nftables.Table) bool { return t.Name == "berth-services" })
		hasAddress := slices.ContainsFunc(addresses, func(a netlink.Addr) bool { return a.IP.String() == "10.43.0.10" })
		if err := errors.Join(err, err2); err != nil || hasTable != want || hasAddress != want {
			return fmt.Sprintf("table %t, address %t, %v", hasTable, hasAddress, err)
		}
		return ""
	})
}

// startStandalone starts a host on the LAN with an agent that has joined no server.
func (p *Pair) startStandalone(lan *hosts.LAN) {
	p.t.Helper()
	built, err := artifacts()
	if err != nil {
		p.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), waitTimeout)
	defer cancel()
	p.Host, err = hosts.Start(ctx, hosts.Options{Version: hosts.Version2, LAN: lan, Images: built.local})
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() {
		if err := p.stop(); err != nil {
			p.t.Error(err)
		}
	})
	p.Agent, err = hosts.StartAgent(ctx, hosts.AgentOptions{
		Binary: built.berth, Client: built.client, Host: p.Host,
		BerthConfig: map[string]any{"cniPodCIDRs": []string{"10.206.9.0/24"}},
		Env:         []string{"GORACE=halt_on_error=1 exitcode=66 atexit_sleep_ms=0"},
	})
	if err == nil {
		err = p.Agent.WaitReady(ctx)
	}
	if err != nil {
		p.t.Fatal(err)
	}
}
