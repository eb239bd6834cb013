package admission

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/yaml"

	"berth/podspec"
)

// podOf decodes a pod spec. It has one container unless the spec has containers.
func podOf(t testing.TB, spec string) *corev1.Pod {
	t.Helper()
	pod := &corev1.Pod{}
	if err := yaml.UnmarshalStrict([]byte(spec), &pod.Spec); err != nil {
		t.Fatalf("manifest of the test: %v\n%s", err, spec)
	}
	if pod.Spec.Containers == nil {
		pod.Spec.Containers = []corev1.Container{{Name: "main", Image: "x:1"}}
	}
	podspec.SetDefaults(pod)
	return pod
}

// requesting returns a pod with the given requests.
func requesting(t testing.TB, requests string) *corev1.Pod {
	t.Helper()
	return podOf(t, "containers: [{name: main, image: x, resources: {requests: {"+requests+"}}}]")
}

func list(pairs ...string) corev1.ResourceList {
	out := corev1.ResourceList{}
	for i := 0; i < len(pairs); i += 2 {
		out[corev1.ResourceName(pairs[i])] = resource.MustParse(pairs[i+1])
	}
	return out
}

// testNode has 2 CPUs, 1 GiB, 3 pods, 2 devices.
func testNode() Node {
	return Node{
		Name:   "n1",
		Labels: map[string]string{"zone": "a", "size": "8", corev1.LabelOSStable: "linux"},
		Allocatable: list("pods", "3", "cpu", "2", "memory", "1Gi", "ephemeral-storage", "10Gi",
			"hugepages-2Mi", "4Mi", "example.com/gpu", "2"),
	}
}

type row struct {
	sentence string
	pod      *corev1.Pod
	used     []*corev1.Pod
	node     func(*Node)
	want     []Rejection
}

func check(t *testing.T, rows []row) {
	t.Helper()
	for _, r := range rows {
		t.Run(r.sentence, func(t *testing.T) {
			node := testNode()
			if r.node != nil {
				r.node(&node)
			}
			var used Used
			for _, p := range r.used {
				used.Add(p)
			}
			if diff := cmp.Diff(r.want, Check(node, used, r.pod)); diff != "" {
				t.Errorf("want (-) got (+):\n%s", diff)
			}
		})
	}
}

func TestResources(t *testing.T) {
	out := func(name string, recoverable bool, requested, used, capacity int64, message string) []Rejection {
		return []Rejection{{Reason: "OutOf" + name, Message: message, Recoverable: recoverable,
			Resource: corev1.ResourceName(name), Requested: requested, Used: used, Capacity: capacity}}
	}
	small := requesting(t, "cpu: 600m, memory: 512Mi")
	check(t, []row{
		{sentence: "a pod without requests", pod: podOf(t, "{}")},
		{
			sentence: "all remaining resources",
			pod:      requesting(t, "cpu: 1400m, memory: 512Mi"),
			used:     []*corev1.Pod{small},
		},
		{sentence: "too little CPU", pod: requesting(t, "cpu: 1500m"), used: []*corev1.Pod{small},
			want: out(
				"cpu",
				true,
				1500,
				600,
				2000,
				"Node didn't have enough resource: cpu, requested: 1500, used: 600, capacity: 2000",
			)},
		{sentence: "more CPU than the capacity", pod: requesting(t, "cpu: 3"),
			want: out(
				"cpu",
				false,
				3000,
				0,
				2000,
				"Node didn't have enough resource: cpu, requested: 3000, used: 0, capacity: 2000",
			)},
		{sentence: "too little memory", pod: requesting(t, "memory: 513Mi"), used: []*corev1.Pod{small},
			want: out(
				"memory",
				true,
				513<<20,
				512<<20,
				1<<30,
				"Node didn't have enough resource: memory, requested: 537919488, used: 536870912, capacity: 1073741824",
			)},
		{sentence: "too little storage", pod: requesting(t, "ephemeral-storage: 11Gi"),
			want: out(
				"ephemeral-storage",
				false,
				11<<30,
				0,
				10<<30,
				"Node didn't have enough resource: ephemeral-storage, requested: 11811160064, used: 0, capacity: "+
					"10737418240",
			)},
		{sentence: "too few huge pages", pod: requesting(t, "hugepages-2Mi: 8Mi"),
			want: out(
				"hugepages-2Mi",
				false,
				8<<20,
				0,
				4<<20,
				"Node didn't have enough resource: hugepages-2Mi, requested: 8388608, used: 0, capacity: 4194304",
			)},
		{sentence: "an unknown page size", pod: requesting(t, "hugepages-1Gi: 1Gi"),
			want: out(
				"hugepages-1Gi",
				false,
				1<<30,
				0,
				0,
				"Node didn't have enough resource: hugepages-1Gi, requested: 1073741824, used: 0, capacity: 0",
			)},
		{sentence: "more devices may register", pod: requesting(t, "example.com/gpu: 3"),
			want: out(
				"example.com/gpu",
				true,
				3,
				0,
				2,
				"Node didn't have enough resource: example.com/gpu, requested: 3, used: 0, capacity: 2",
			)},
		{sentence: "a device plugin may still register", pod: requesting(t, "example.com/fpga: 1"),
			want: out(
				"example.com/fpga",
				true,
				1,
				0,
				0,
				"Node didn't have enough resource: example.com/fpga, requested: 1, used: 0, capacity: 0",
			)},
		{
			sentence: "an unlisted extended resource may be accounted for elsewhere",
			pod:      requesting(t, "example.com/fpga: 1"),
			node:     func(n *Node) { n.AllowUnlistedExtended = true },
		},
		{sentence: "a listed extended resource is always checked", pod: requesting(t, "example.com/gpu: 3"),
			node: func(n *Node) { n.AllowUnlistedExtended = true },
			want: out(
				"example.com/gpu",
				true,
				3,
				0,
				2,
				"Node didn't have enough resource: example.com/gpu, requested: 3, used: 0, capacity: 2",
			)},
		{sentence: "a zero request", pod: requesting(t, "example.com/fpga: 0")},
		{
			sentence: "too many pods",
			pod:      podOf(t, "{}"),
			used:     []*corev1.Pod{podOf(t, "{}"), podOf(t, "{}"), podOf(t, "{}")},
			want: out(
				"pods",
				true,
				1,
				3,
				3,
				"Node didn't have enough resource: pods, requested: 1, used: 3, capacity: 3",
			),
		},
		{sentence: "sidecars, init containers and overhead", used: []*corev1.Pod{small},
			pod: podOf(
				t,
				"{overhead: {cpu: 100m}, initContainers: [{name: s, image: x, restartPolicy: Always, resources: "+
					"{requests: {cpu: 300m}}}, {name: i, image: x, resources: {requests: {cpu: 1100m}}}], "+
					"containers: [{name: a, image: x, resources: {requests: {cpu: 1}}}]}",
			),
			want: out(
				"cpu",
				true,
				1500,
				600,
				2000,
				"Node didn't have enough resource: cpu, requested: 1500, used: 600, capacity: 2000",
			)},
		{
			sentence: "a request beyond 64 bits does not overflow",
			pod:      requesting(t, "cpu: 9000000000000000000, memory: 9e18"),
			want: []Rejection{
				{Reason: "OutOfcpu", Resource: "cpu", Requested: 9223372036854775807, Capacity: 2000,
					Message: "Node didn't have enough resource: cpu, requested: 9223372036854775807, used: 0, " +
						"capacity: 2000"},
				{Reason: "OutOfmemory", Resource: "memory", Requested: 9000000000000000000, Capacity: 1 << 30,
					Message: "Node didn't have enough resource: memory, requested: 9000000000000000000, used: 0, " +
						"capacity: 1073741824"},
			},
		},
		{
			sentence: "a fraction of a byte",
			pod:      requesting(t, "memory: 1100m"),
			node:     func(n *Node) { n.Allocatable["memory"] = resource.MustParse("1") },
			want: out(
				"memory",
				false,
				2,
				0,
				1,
				"Node didn't have enough resource: memory, requested: 2, used: 0, capacity: 1",
			),
		},
	})
}

func TestCheckReasonOrder(t *testing.T) {
	pod := podOf(t, `
nodeName: other
nodeSelector: {zone: b}
os: {name: windows}
securityContext: {sysctls: [{name: vm.swappiness, value: "1"}]}
containers:
- name: a
  image: x
  ports: [{containerPort: 1, hostPort: 80}]
  resources: {requests: {memory: 2Gi, cpu: 3, example.com/gpu: 3, ephemeral-storage: 11Gi, hugepages-2Mi: 6Mi}}
`)
	var used Used
	for range 3 {
		used.Add(podOf(t, "containers: [{name: a, image: x, ports: [{containerPort: 1, hostPort: 80}]}]"))
	}
	node := testNode()
	node.Taints = []corev1.Taint{{Key: "a", Effect: corev1.TaintEffectNoExecute}}
	var reasons []string
	for _, r := range Check(node, used, pod) {
		reasons = append(reasons, r.Reason)
	}
	want := []string{
		"PodOSNotSupported",
		"SysctlForbidden",
		"OutOfpods",
		"OutOfcpu",
		"OutOfmemory",
		"OutOfephemeral-storage",
		"OutOfexample.com/gpu",
		"OutOfhugepages-2Mi",
		"NodeAffinity",
		"NodeName",
		"NodePorts",
		"TaintToleration",
	}
	if diff := cmp.Diff(want, reasons); diff != "" {
		t.Errorf("want (-) got (+):\n%s", diff)
	}
}

func TestNodeSelectorAndAffinity(t *testing.T) {
	rejected := []Rejection{
		{
			Reason:  "NodeAffinity",
			Message: "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector",
		},
	}
	terms := func(s string) *corev1.Pod {
		return podOf(
			t,
			"affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: ["+s+"]}}}",
		)
	}
	label := func(s string) *corev1.Pod { return terms("{matchExpressions: [{" + s + "}]}") }
	check(t, []row{
		{sentence: "a selector that the labels meet", pod: podOf(t, "nodeSelector: {zone: a, size: '8'}")},
		{sentence: "another value", pod: podOf(t, "nodeSelector: {zone: b}"), want: rejected},
		{sentence: "an empty value is not an absent label", pod: podOf(t, "nodeSelector: {gone: ''}"), want: rejected},
		{sentence: "In one of the values", pod: label("key: zone, operator: In, values: [a, b]")},
		{sentence: "In none of the values", pod: label("key: zone, operator: In, values: [b]"), want: rejected},
		{sentence: "In needs the label", pod: label("key: gone, operator: In, values: ['']"), want: rejected},
		{sentence: "NotIn", pod: label("key: zone, operator: NotIn, values: [b]")},
		{sentence: "NotIn of its value", pod: label("key: zone, operator: NotIn, values: [a]"), want: rejected},
		{sentence: "NotIn without the label", pod: label("key: gone, operator: NotIn, values: [a]")},
		{sentence: "Exists", pod: label("key: zone, operator: Exists")},
		{sentence: "Exists without the label", pod: label("key: gone, operator: Exists"), want: rejected},
		{sentence: "DoesNotExist", pod: label("key: gone, operator: DoesNotExist")},
		{sentence: "DoesNotExist with the label", pod: label("key: zone, operator: DoesNotExist"), want: rejected},
		{sentence: "Gt", pod: label("key: size, operator: Gt, values: ['7']")},
		{sentence: "Gt of the same", pod: label("key: size, operator: Gt, values: ['8']"), want: rejected},
		{sentence: "Lt", pod: label("key: size, operator: Lt, values: ['10']")},
		{sentence: "Lt of the same", pod: label("key: size, operator: Lt, values: ['8']"), want: rejected},
		{
			sentence: "Gt of a label that is no number",
			pod:      label("key: zone, operator: Gt, values: ['1']"),
			want:     rejected,
		},
		{sentence: "Gt of no number", pod: label("key: size, operator: Gt, values: [few]"), want: rejected},
		{sentence: "Lt without the label", pod: label("key: gone, operator: Lt, values: ['1']"), want: rejected},
		{
			sentence: "an unknown operator matches nothing",
			pod:      label("key: zone, operator: Like, values: [a]"),
			want:     rejected,
		},
		{
			sentence: "all expressions of a term",
			pod: terms(
				"{matchExpressions: [{key: zone, operator: Exists}, {key: size, operator: Lt, values: ['1']}]}",
			),
			want: rejected,
		},
		{
			sentence: "one term is enough",
			pod: terms(
				"{matchExpressions: [{key: zone, operator: In, values: [b]}]}, {matchExpressions: [{key: zone, " +
					"operator: In, values: [a]}]}",
			),
		},
		{sentence: "an empty term matches nothing", pod: terms("{}"), want: rejected},
		{sentence: "no term matches nothing", pod: terms(""), want: rejected},
		{sentence: "the node's name", pod: terms("{matchFields: [{key: metadata.name, operator: In, values: [n1]}]}")},
		{
			sentence: "another node's name",
			pod:      terms("{matchFields: [{key: metadata.name, operator: In, values: [n2]}]}"),
			want:     rejected,
		},
		{
			sentence: "any but another node's name",
			pod:      terms("{matchFields: [{key: metadata.name, operator: NotIn, values: [n2]}]}"),
		},
		{
			sentence: "another field matches nothing",
			pod:      terms("{matchFields: [{key: metadata.uid, operator: NotIn, values: [x]}]}"),
			want:     rejected,
		},
		{
			sentence: "name and labels",
			pod: terms(
				"{matchFields: [{key: metadata.name, operator: In, values: [n1]}], matchExpressions: [{key: zone, " +
					"operator: In, values: [b]}]}",
			),
			want: rejected,
		},
		{
			sentence: "a selector counts beside an affinity",
			pod: podOf(
				t,
				"{nodeSelector: {zone: b}, affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: "+
					"{nodeSelectorTerms: [{matchExpressions: [{key: zone, operator: Exists}]}]}}}}",
			),
			want: rejected,
		},
		{
			sentence: "preferences are ignored",
			pod: podOf(
				t,
				"affinity: {nodeAffinity: {preferredDuringSchedulingIgnoredDuringExecution: [{weight: 1, preference: "+
					"{matchExpressions: [{key: gone, operator: Exists}]}}]}}",
			),
		},
	})
}

func TestNodeName(t *testing.T) {
	check(t, []row{
		{sentence: "this node", pod: podOf(t, "nodeName: n1")},
		{sentence: "another node", pod: podOf(t, "nodeName: n2"),
			want: []Rejection{
				{
					Reason:  "NodeName",
					Message: "Predicate NodeName failed: node(s) didn't match the requested node name",
				},
			}},
	})
}

func TestHostPorts(t *testing.T) {
	rejected := []Rejection{
		{
			Reason:      "NodePorts",
			Recoverable: true,
			Message: "Predicate NodePorts failed: node(s) didn't have free ports for the requested pod " +
				"ports: 80/TCP",
		},
	}
	port := func(s string) *corev1.Pod {
		return podOf(t, "containers: [{name: a, image: x, ports: [{containerPort: 1, "+s+"}]}]")
	}
	one := []*corev1.Pod{port("hostPort: 80, hostIP: 10.0.0.1")}
	check(t, []row{
		{sentence: "the same port", pod: port("hostPort: 80, hostIP: 10.0.0.1"), used: one, want: rejected},
		{sentence: "the port on every address", pod: port("hostPort: 80"), used: one, want: rejected},
		{sentence: "the port on 0.0.0.0", pod: port("hostPort: 80, hostIP: 0.0.0.0"), used: one, want: rejected},
		{
			sentence: "one address where every address is taken",
			pod:      port("hostPort: 80, hostIP: 10.0.0.9"),
			used:     []*corev1.Pod{port("hostPort: 80")},
			want:     rejected,
		},
		{sentence: "another address", pod: port("hostPort: 80, hostIP: 10.0.0.2"), used: one},
		{sentence: "another protocol", pod: port("hostPort: 80, protocol: UDP"), used: one},
		{sentence: "another port", pod: port("hostPort: 81"), used: one},
		{sentence: "a container port is not the host's", pod: port("name: x"), used: one},
		{sentence: "a sidecar's port", used: one, want: rejected,
			pod: podOf(
				t,
				"initContainers: [{name: s, image: x, restartPolicy: Always, ports: [{containerPort: 1, "+
					"hostPort: 80}]}]",
			)},
		{sentence: "an init container's port is not reserved", used: one,
			pod: podOf(t, "initContainers: [{name: s, image: x, ports: [{containerPort: 1, hostPort: 80}]}]")},
		{sentence: "in the host's network every port is the host's", used: one, want: rejected,
			pod: podOf(t, "{hostNetwork: true, containers: [{name: a, image: x, ports: [{containerPort: 80}]}]}")},
	})
}

func TestOperatingSystem(t *testing.T) {
	labeled := podOf(t, "{}")
	labeled.Labels = map[string]string{corev1.LabelOSStable: "windows"}
	right := podOf(t, "os: {name: linux}")
	right.Labels = map[string]string{corev1.LabelOSStable: "linux"}
	check(t, []row{
		{sentence: "a Linux pod", pod: right},
		{sentence: "a Windows pod", pod: podOf(t, "os: {name: windows}"),
			want: []Rejection{
				{Reason: "PodOSNotSupported", Message: "Failed to admit pod as the OS field doesn't match node OS"},
			}},
		{sentence: "a Windows node", pod: podOf(t, "os: {name: windows}"), node: func(n *Node) { n.OS = "windows" }},
		{sentence: "a pod that is labeled for Windows", pod: labeled,
			want: []Rejection{
				{
					Reason:  "PodOSSelectorNodeLabelDoesNotMatch",
					Message: "Failed to admit pod as the `kubernetes.io/os` label doesn't match node label",
				},
			}},
	})
}

func TestTaints(t *testing.T) {
	rejected := []Rejection{
		{
			Reason:  "TaintToleration",
			Message: "Predicate TaintToleration failed: node(s) had taints that the pod didn't tolerate",
		},
	}
	tainted := func(ts ...corev1.Taint) func(*Node) { return func(n *Node) { n.Taints = ts } }
	taint := corev1.Taint{Key: "k", Value: "5", Effect: corev1.TaintEffectNoExecute}
	tolerating := func(s string) *corev1.Pod { return podOf(t, "tolerations: [{"+s+"}]") }
	static := podOf(t, "{}")
	static.Annotations = map[string]string{"kubernetes.io/config.source": "file"}
	check(t, []row{
		{sentence: "a taint that is not tolerated", pod: podOf(t, "{}"), node: tainted(taint), want: rejected},
		{
			sentence: "only NoExecute rejects",
			pod:      podOf(t, "{}"),
			node:     tainted(corev1.Taint{Key: "k", Effect: corev1.TaintEffectNoSchedule}),
		},
		{sentence: "a static pod is the node's own", pod: static, node: tainted(taint)},
		{sentence: "everything is tolerated", pod: tolerating("operator: Exists"), node: tainted(taint)},
		{
			sentence: "the key is tolerated",
			pod:      tolerating("key: k, operator: Exists, effect: NoExecute"),
			node:     tainted(taint),
		},
		{
			sentence: "another key is",
			pod:      tolerating("key: j, operator: Exists"),
			node:     tainted(taint),
			want:     rejected,
		},
		{
			sentence: "another effect is",
			pod:      tolerating("key: k, operator: Exists, effect: NoSchedule"),
			node:     tainted(taint),
			want:     rejected,
		},
		{sentence: "the value is tolerated", pod: tolerating("key: k, value: '5'"), node: tainted(taint)},
		{
			sentence: "another value is",
			pod:      tolerating("key: k, operator: Equal, value: '6'"),
			node:     tainted(taint),
			want:     rejected,
		},
		{
			sentence: "a smaller value is tolerated",
			pod:      tolerating("key: k, operator: Lt, value: '6'"),
			node:     tainted(taint),
		},
		{
			sentence: "a larger value is not smaller",
			pod:      tolerating("key: k, operator: Lt, value: '5'"),
			node:     tainted(taint),
			want:     rejected,
		},
		{
			sentence: "a larger value is tolerated",
			pod:      tolerating("key: k, operator: Gt, value: '4'"),
			node:     tainted(taint),
		},
		{
			sentence: "a word is not larger",
			pod:      tolerating("key: k, operator: Gt, value: low"),
			node:     tainted(taint),
			want:     rejected,
		},
		{
			sentence: "an unknown operator tolerates nothing",
			pod:      tolerating("key: k, operator: Near, value: '5'"),
			node:     tainted(taint),
			want:     rejected,
		},
		{
			sentence: "every taint must be tolerated",
			pod:      tolerating("key: k, operator: Exists"),
			node:     tainted(taint, corev1.Taint{Key: "j", Effect: corev1.TaintEffectNoExecute}),
			want:     rejected,
		},
	})
}

func TestSysctls(t *testing.T) {
	rejected := func(message string) []Rejection { return []Rejection{{Reason: "SysctlForbidden", Message: message}} }
	setting := func(name, more string) *corev1.Pod {
		return podOf(t, "{"+more+"securityContext: {sysctls: [{name: "+name+", value: '1'}]}}")
	}
	allow := func(patterns ...string) func(*Node) { return func(n *Node) { n.UnsafeSysctls = patterns } }
	check(t, []row{
		{sentence: "a safe one", pod: setting("net.ipv4.tcp_syncookies", "")},
		{sentence: "a safe one with slashes", pod: setting("net/ipv4/tcp_syncookies", "")},
		{
			sentence: "an unsafe one",
			pod:      setting("net.core.somaxconn", ""),
			want:     rejected(`forbidden sysctl: "net.core.somaxconn" not allowlisted`),
		},
		{
			sentence: "an allowed unsafe sysctl",
			pod:      setting("net.core.somaxconn", ""),
			node:     allow("net.core.somaxconn"),
		},
		{sentence: "an allowed prefix", pod: setting("kernel.msgmax", ""), node: allow("net.*", "kernel.msg*")},
		{
			sentence: "a name is not a prefix",
			pod:      setting("net.core.somaxconn", ""),
			node:     allow("net.core"),
			want:     rejected(`forbidden sysctl: "net.core.somaxconn" not allowlisted`),
		},
		{
			sentence: "a sysctl of the host cannot be allowed",
			pod:      setting("vm.swappiness", ""),
			node:     allow("vm.*"),
			want:     rejected(`forbidden sysctl: "vm.swappiness" not allowlisted`),
		},
		{
			sentence: "a network sysctl in the host network",
			pod:      setting("net.ipv4.tcp_syncookies", "hostNetwork: true, "),
			want:     rejected(`forbidden sysctl: "net.ipv4.tcp_syncookies" not allowed with host net enabled`),
		},
		{
			sentence: "an IPC sysctl in the host IPC namespace",
			pod:      setting("kernel.shm_rmid_forced", "hostIPC: true, "),
			want:     rejected(`forbidden sysctl: "kernel.shm_rmid_forced" not allowed with host ipc enabled`),
		},
	})
}

func TestUsedCopiesAreIndependent(t *testing.T) {
	pod := podOf(
		t,
		"containers: [{name: a, image: x, ports: [{containerPort: 1, hostPort: 80}], resources: {requests: {cpu: 1}}}]",
	)
	var used Used
	used.Add(pod)
	before := used
	used.Add(pod)
	used.Remove(pod)
	used.Remove(pod)
	if cpu := before.Requests["cpu"]; before.Pods != 1 || cpu.String() != "1" ||
		before.Ports[podspec.HostPort{Protocol: "TCP", Port: 80}] != 1 {
		t.Errorf("the copy was modified: %+v", before)
	}
	if used.Pods != 0 || len(used.Requests) != 0 || len(used.Ports) != 0 {
		t.Errorf("resources left: %+v", used)
	}
	used.Remove(pod)
	if used.Pods != 0 || len(used.Ports) != 0 {
		t.Errorf("negative usage: %+v", used)
	}
}

func TestRejectionString(t *testing.T) {
	got := Check(testNode(), Used{}, podOf(t, "nodeName: n2"))[0].String()
	if !strings.HasPrefix(got, "NodeName: Predicate NodeName failed") {
		t.Error(got)
	}
	if !slices.IsSorted(safeSysctls) {
		t.Error("the safe sysctls are not sorted")
	}
}

func TestShuttingDownNodeRejectsPods(t *testing.T) {
	pod := &corev1.Pod{}
	pod.Spec.Priority = new(int32(2_000_001_000))
	got := Check(Node{ShuttingDown: true}, Used{}, pod)
	want := Rejection{
		Reason:      "NodeShutdown",
		Message:     "Pod was rejected as the node is shutting down.",
		Recoverable: true,
	}
	if len(got) == 0 || got[len(got)-1] != want {
		t.Errorf("%+v", got)
	}
}
