package pair

import (
	"regexp"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"

	"berth/control"
	"berth/test/hosts"
)

// TestPodExceedingCapacityIsRejected binds two pods to the node that together request more CPU than
// it has. The second fails immediately, so that its controller can replace it. A pod that is
// created after deletion of the first one runs.
func TestPodExceedingCapacityIsRejected(t *testing.T) {
	t.Parallel()
	p := start(t, pairOptions{})
	cpu, err := resource.ParseQuantity(p.field("node", p.Node, ".status.allocatable.cpu"))
	if err != nil {
		t.Fatal(err)
	}
	most := resource.NewMilliQuantity(cpu.MilliValue()*6/10, resource.DecimalSI).String()
	wants := "resources: {requests: {cpu: " + most + "}}"
	p.Apply(t, p.pod("first", wants, "sleep"))
	p.waitForField("pod", "first", ".status.phase", "Running")
	p.Apply(t, p.pod("second", wants, "sleep"))
	p.waitForField("pod", "second", ".status.phase", "Failed")
	p.waitForField("pod", "second", ".status.reason", "OutOfcpu")
	pattern := regexp.MustCompile(
		`^Pod was rejected: Node didn't have enough resource: cpu, requested: \d+, used: \d+, capacity: \d+$`)
	if message := p.field("pod", "second", ".status.message"); !pattern.MatchString(message) {
		t.Errorf("got message %q", message)
	}
	p.until("its event", func() string {
		out := p.Kubectl(t, "get", "events", "--field-selector", "involvedObject.name=second", "-o",
			`jsonpath={range .items[*]}{.reason} {end}`)
		if !strings.Contains(out, "OutOfcpu") {
			return "got " + out
		}
		return ""
	})
	p.Kubectl(t, "delete", "pod", "second", "--timeout=30s")
	// The object is deleted immediately. Its resources are free after its container has ended.
	p.Kubectl(t, "delete", "pod", "first", "--force", "--grace-period=0", "--timeout=30s")
	p.Apply(t, p.pod("third", wants, "sleep"))
	p.waitForField("pod", "third", ".status.phase", "Running")
}

// TestAdmissionReasons binds pods to the node without the scheduler, each of which the node rejects
// for another reason. They fail with the kubelet's reason and message, also in the event. Pods that
// ran before the node was tainted keep running.
func TestAdmissionReasons(t *testing.T) {
	t.Parallel()
	p := start(t, pairOptions{
		Version: hosts.Version16, // it does not support supplementalGroupsPolicy
		Config:  map[string]any{"maxPods": 9},
		// Otherwise, pods without a toleration are evicted before they can be checked.
		Server: []func(*control.Config){func(c *control.Config) {
			c.Controllers = append(c.Controllers,
				"-taint-eviction-controller")
		}},
	})
	const port = "ports: [{containerPort: 80, hostPort: 28080, hostIP: 127.0.0.1}]"
	p.Apply(t, p.pod("holds", port, "sleep"))
	p.waitForField("pod", "holds", ".status.phase", "Running")
	p.Kubectl(t, "taint", "node", p.Node, "away=now:NoExecute")

	const tolerates, huge = "tolerations: [{operator: Exists}]", "1Pi"
	asks := func(name, amount string) string {
		return "resources: {requests: {" + name + ": " + amount + "}, limits: {" + name + ": " + amount + "}}"
	}
	short := func(name string) string {
		return `Node didn't have enough resource: ` + regexp.QuoteMeta(name) + `, requested: \d+, used: \d+, capacity: \d+`
	}
	for _, row := range []struct{ name, labels, spec, container, reason, message string }{
		{"cpu", "", tolerates, asks("cpu", "1000"), "OutOfcpu", short("cpu")},
		{"memory", "", tolerates, asks("memory", huge), "OutOfmemory", short("memory")},
		{"disk", "", tolerates, asks("ephemeral-storage", huge), "OutOfephemeral-storage", short("ephemeral-storage")},
		{"pages", "", tolerates, "resources: {requests: {cpu: 1m, hugepages-2Mi: 4Mi}, limits: {cpu: 1m, hugepages-2Mi: " +
			"4Mi}}", "OutOfhugepages-2Mi", short("hugepages-2Mi")},
		{"selector", "", tolerates + "\n  nodeSelector: {disk: none}", "", "NodeAffinity",
			`Predicate NodeAffinity failed: .+`},
		{"affinity", "", tolerates + "\n  affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: " +
			"{nodeSelectorTerms: [{matchExpressions: [{key: disk, operator: Exists}]}]}}}", "", "NodeAffinity",
			`Predicate NodeAffinity failed: .+`},
		{"port", "", tolerates, port, "NodePorts", `Predicate NodePorts failed: .+`},
		{"taint", "", "", "", "TaintToleration", `Predicate TaintToleration failed: .+`},
		{"label", "kubernetes.io/os: plan9", tolerates, "", "PodOSSelectorNodeLabelDoesNotMatch",
			"Failed to admit pod as the `kubernetes.io/os` label doesn't match node label"},
		{"system", "", tolerates + "\n  os: {name: windows}", "", "PodOSNotSupported",
			"Failed to admit pod as the OS field doesn't match node OS"},
		{"sysctl", "", tolerates + "\n  securityContext: {sysctls: [{name: kernel.msgmax, value: '65536'}]}", "",
			"SysctlForbidden", `forbidden sysctl: "kernel.msgmax" not allowlisted`},
		{"profile", "", tolerates + "\n  securityContext: {appArmorProfile: {type: RuntimeDefault}}", "", "AppArmor",
			"Cannot enforce AppArmor: AppArmor is not enabled on the host"},
		{"groups", "", tolerates + "\n  securityContext: {supplementalGroupsPolicy: Strict}", "",
			"SupplementalGroupsPolicyNotSupported", "SupplementalGroupsPolicy=Strict is not supported in this node"},
	} {
		text := strings.Replace(p.pod(row.name, row.container, "sleep"), "spec:\n", "spec:\n  "+row.spec+"\n", 1)
		p.Apply(t, strings.Replace(text, "namespace: default}", "namespace: default, labels: {"+row.labels+"}}", 1))
		p.refused(row.name, row.reason, row.message)
	}

	// One of nine pod slots is used. A rejected pod uses none.
	for i := range 8 {
		name := "fills-" + string(rune('a'+i))
		p.Apply(t, strings.Replace(p.pod(name, "", "sleep"), "spec:\n", "spec:\n  "+tolerates+"\n", 1))
		p.waitForField("pod", name, ".status.phase", "Running")
	}
	p.Apply(t, strings.Replace(p.pod("pods", "", "sleep"), "spec:\n", "spec:\n  "+tolerates+"\n", 1))
	p.refused("pods", "OutOfpods", short("pods"))
	if got := p.field("pod", "holds", ".status.phase"); got != "Running" {
		t.Errorf("pod started before the taint: got %s", got)
	}
}

// refused waits until the node has rejected a pod and checks its status and event for the reason
// and the message pattern.
func (p *Pair) refused(name, reason, message string) {
	p.t.Helper()
	p.waitForField("pod", name, ".status.phase", "Failed")
	p.waitForField("pod", name, ".status.reason", reason)
	if got := p.field("pod", name, ".status.message"); !regexp.MustCompile("^Pod was rejected: " + message +
		"$").MatchString(got) {
		p.t.Errorf("%s: got message %q", name, got)
	}
	p.until("the event of "+name, func() string {
		out := p.Kubectl(p.t, "get", "events", "--field-selector", "involvedObject.name="+name, "-o",
			`jsonpath={range .items[*]}{.reason} {end}`)
		if !strings.Contains(out, reason) {
			return "got " + out
		}
		return ""
	})
}

// TestAdvertisedExtendedResource: an administrator adds an extended resource to the Node, as
// documented by Kubernetes. The node keeps it in its status and admits pods that request it,
// because only the scheduler counts it.
func TestAdvertisedExtendedResource(t *testing.T) {
	t.Parallel()
	p := start(t, pairOptions{})
	p.Kubectl(t, "patch", "node", p.Node, "--subresource=status", "--type=json", "-p",
		`[{"op": "add", "path": "/status/capacity/example.com~1dongle", "value": "2"}]`)
	wants := func(name string) string {
		text := p.pod(name, "resources: {requests: {example.com/dongle: 2}, limits: {example.com/dongle: 2}}", "sleep")
		return strings.Replace(text, "  nodeName: "+p.Node+"\n", "", 1)
	}
	p.waitForField("node", p.Node, `.status.allocatable.example\.com/dongle`, "2")
	p.Apply(t, wants("one"))
	p.waitForField("pod", "one", ".status.phase", "Running")
	p.Apply(t, wants("two"))
	p.until("the scheduler to say that there are no more", func() string {
		if text := p.field("pod", "two", `.status.conditions[?(@.type=="PodScheduled")].message`); !strings.Contains(text,
			"Insufficient example.com/dongle") {
			return text
		}
		return ""
	})
	p.Kubectl(t, "delete", "pod", "one", "--timeout=60s")
	p.waitForField("pod", "two", ".status.phase", "Running")
	if got := p.field("node", p.Node, `.status.capacity.example\.com/dongle`); got != "2" {
		t.Errorf("got %q in the node status", got)
	}
}
