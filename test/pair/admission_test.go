package pair

import (
	"regexp"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"

	"berth/control"
	"berth/test/hosts"
)

// TestPodExceedingCapacityIsRejected binds two pods to a node. Together, they request more CPU than the
// node has. The second pod fails. A third pod runs after the first one is deleted.
func TestPodExceedingCapacityIsRejected(t *testing.T) {
	t.Parallel()
	p := startPair(t, pairOptions{})
	cpu, err := resource.ParseQuantity(p.field("node", p.Node, ".status.allocatable.cpu"))
	if err != nil {
		t.Fatal(err)
	}
	request := resource.NewMilliQuantity(cpu.MilliValue()*6/10, resource.DecimalSI).String()
	resources := "resources: {requests: {cpu: " + request + "}}"
	p.Apply(t, p.pod("first", resources, "sleep"))
	p.waitForField("pod", "first", ".status.phase", "Running")
	p.Apply(t, p.pod("second", resources, "sleep"))
	p.waitForField("pod", "second", ".status.phase", "Failed")
	p.waitForField("pod", "second", ".status.reason", "OutOfcpu")
	pattern := regexp.MustCompile(
		`^Pod was rejected: Node didn't have enough resource: cpu, requested: \d+, used: \d+, capacity: \d+$`)
	if message := p.field("pod", "second", ".status.message"); !pattern.MatchString(message) {
		t.Errorf("got message %q", message)
	}
	p.waitUntil("the event OutOfcpu", func() string {
		out := p.Kubectl(t, "get", "events", "--field-selector", "involvedObject.name=second", "-o",
			`jsonpath={range .items[*]}{.reason} {end}`)
		if !strings.Contains(out, "OutOfcpu") {
			return "got " + out
		}
		return ""
	})
	p.Kubectl(t, "delete", "pod", "second", "--timeout=4m")
	// The object is deleted immediately. The node frees the resources after the container exits.
	p.Kubectl(t, "delete", "pod", "first", "--force", "--grace-period=0", "--timeout=4m")
	p.Apply(t, p.pod("third", resources, "sleep"))
	p.waitForField("pod", "third", ".status.phase", "Running")
}

// TestAdmissionReasons binds pods to the node without the scheduler. The node rejects each pod for
// another reason. The pod status and the event have the reason and the message of the kubelet. A pod
// that started before the node was tainted keeps running.
func TestAdmissionReasons(t *testing.T) {
	t.Parallel()
	p := startPair(t, pairOptions{
		Version: hosts.Version16, // without support for supplementalGroupsPolicy
		Config:  map[string]any{"maxPods": 9},
		// The taint eviction controller would delete pods without a toleration before the test checks them.
		Server: []func(*control.Config){func(c *control.Config) {
			c.Controllers = append(c.Controllers,
				"-taint-eviction-controller")
		}},
	})
	const port = "ports: [{containerPort: 80, hostPort: 28080, hostIP: 127.0.0.1}]"
	p.Apply(t, p.pod("holds", port, "sleep"))
	p.waitForField("pod", "holds", ".status.phase", "Running")
	p.Kubectl(t, "taint", "node", p.Node, "away=now:NoExecute")

	const tolerateAll, huge = "tolerations: [{operator: Exists}]", "1Pi"
	resources := func(name, amount string) string {
		return "resources: {requests: {" + name + ": " + amount + "}, limits: {" + name + ": " + amount + "}}"
	}
	insufficient := func(name string) string {
		return `Node didn't have enough resource: ` + regexp.QuoteMeta(name) +
			`, requested: \d+, used: \d+, capacity: \d+`
	}
	for _, row := range []struct{ name, labels, spec, container, reason, message string }{
		{"cpu", "", tolerateAll, resources("cpu", "1000"), "OutOfcpu", insufficient("cpu")},
		{"memory", "", tolerateAll, resources("memory", huge), "OutOfmemory", insufficient("memory")},
		{"disk", "", tolerateAll, resources("ephemeral-storage", huge), "OutOfephemeral-storage",
			insufficient("ephemeral-storage")},
		{"pages", "", tolerateAll, "resources: {requests: {cpu: 1m, hugepages-2Mi: 4Mi}, limits: {cpu: 1m, " +
			"hugepages-2Mi: " +
			"4Mi}}", "OutOfhugepages-2Mi", insufficient("hugepages-2Mi")},
		{"selector", "", tolerateAll + "\n  nodeSelector: {disk: none}", "", "NodeAffinity",
			`Predicate NodeAffinity failed: .+`},
		{"affinity", "", tolerateAll +
			"\n  affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: " +
			"{nodeSelectorTerms: [{matchExpressions: [{key: disk, operator: Exists}]}]}}}", "", "NodeAffinity",
			`Predicate NodeAffinity failed: .+`},
		{"port", "", tolerateAll, port, "NodePorts", `Predicate NodePorts failed: .+`},
		{"taint", "", "", "", "TaintToleration", `Predicate TaintToleration failed: .+`},
		{"label", "kubernetes.io/os: plan9", tolerateAll, "", "PodOSSelectorNodeLabelDoesNotMatch",
			"Failed to admit pod as the `kubernetes.io/os` label doesn't match node label"},
		{"system", "", tolerateAll + "\n  os: {name: windows}", "", "PodOSNotSupported",
			"Failed to admit pod as the OS field doesn't match node OS"},
		{"sysctl", "", tolerateAll + "\n  securityContext: {sysctls: [{name: kernel.msgmax, value: '65536'}]}", "",
			"SysctlForbidden", `forbidden sysctl: "kernel.msgmax" not allowlisted`},
		{"profile", "", tolerateAll + "\n  securityContext: {appArmorProfile: {type: RuntimeDefault}}", "", "AppArmor",
			"Cannot enforce AppArmor: AppArmor is not enabled on the host"},
		{"groups", "", tolerateAll + "\n  securityContext: {supplementalGroupsPolicy: Strict}", "",
			"SupplementalGroupsPolicyNotSupported", "SupplementalGroupsPolicy=Strict is not supported in this node"},
	} {
		text := strings.Replace(p.pod(row.name, row.container, "sleep"), "spec:\n", "spec:\n  "+row.spec+"\n", 1)
		p.Apply(t, strings.Replace(text, "namespace: default}", "namespace: default, labels: {"+row.labels+"}}", 1))
		p.waitForRejection(row.name, row.reason, row.message)
	}

	// The node runs one of at most nine pods. Rejected pods do not count.
	for i := range 8 {
		name := "fills-" + string(rune('a'+i))
		p.Apply(t, strings.Replace(p.pod(name, "", "sleep"), "spec:\n", "spec:\n  "+tolerateAll+"\n", 1))
		p.waitForField("pod", name, ".status.phase", "Running")
	}
	p.Apply(t, strings.Replace(p.pod("pods", "", "sleep"), "spec:\n", "spec:\n  "+tolerateAll+"\n", 1))
	p.waitForRejection("pods", "OutOfpods", insufficient("pods"))
	if got := p.field("pod", "holds", ".status.phase"); got != "Running" {
		t.Errorf("pod started before the taint: got phase %s, want Running", got)
	}
}

// waitForRejection waits until the node rejects a pod for the given reason, in the status and in an
// event. It checks the status message against a pattern.
func (p *Pair) waitForRejection(name, reason, message string) {
	p.t.Helper()
	p.waitForField("pod", name, ".status.phase", "Failed")
	p.waitForField("pod", name, ".status.reason", reason)
	if got := p.field("pod", name, ".status.message"); !regexp.MustCompile("^Pod was rejected: " + message +
		"$").MatchString(got) {
		p.t.Errorf("%s: got message %q, want %q", name, got, message)
	}
	p.waitUntil("the event "+reason+" of "+name, func() string {
		out := p.Kubectl(p.t, "get", "events", "--field-selector", "involvedObject.name="+name, "-o",
			`jsonpath={range .items[*]}{.reason} {end}`)
		if !strings.Contains(out, reason) {
			return "got " + out
		}
		return ""
	})
}

// TestAdvertisedExtendedResource adds an extended resource to the Node, as the Kubernetes documentation
// describes. The node keeps it in its status. It admits pods that request it, because only the
// scheduler counts it.
func TestAdvertisedExtendedResource(t *testing.T) {
	t.Parallel()
	p := startPair(t, pairOptions{})
	p.Kubectl(t, "patch", "node", p.Node, "--subresource=status", "--type=json", "-p",
		`[{"op": "add", "path": "/status/capacity/example.com~1dongle", "value": "2"}]`)
	manifest := func(name string) string {
		text := p.pod(name, "resources: {requests: {example.com/dongle: 2}, limits: {example.com/dongle: 2}}", "sleep")
		return strings.Replace(text, "  nodeName: "+p.Node+"\n", "", 1)
	}
	p.waitForField("node", p.Node, `.status.allocatable.example\.com/dongle`, "2")
	p.Apply(t, manifest("one"))
	p.waitForField("pod", "one", ".status.phase", "Running")
	p.Apply(t, manifest("two"))
	p.waitUntil("pod two to be unschedulable", func() string {
		if text := p.field("pod", "two", `.status.conditions[?(@.type=="PodScheduled")].message`); !strings.Contains(
			text,
			"Insufficient example.com/dongle") {
			return text
		}
		return ""
	})
	p.Kubectl(t, "delete", "pod", "one", "--timeout=4m")
	p.waitForField("pod", "two", ".status.phase", "Running")
	if got := p.field("node", p.Node, `.status.capacity.example\.com/dongle`); got != "2" {
		t.Errorf("got capacity %q in the node status, want 2", got)
	}
}
