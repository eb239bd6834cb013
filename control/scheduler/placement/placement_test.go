package placement

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"berth/control/volumes"
	"berth/podspec"
)

// podOf parses the manifest of a pod and sets its name and the defaults.
func podOf(t testing.TB, name, text string) *corev1.Pod {
	t.Helper()
	pod := &corev1.Pod{}
	if err := yaml.UnmarshalStrict([]byte(text), pod); err != nil {
		t.Fatalf("test manifest: %v\n%s", err, text)
	}
	pod.Name, pod.UID = name, types.UID(name)
	if pod.Namespace == "" {
		pod.Namespace = "default"
	}
	if pod.Spec.Containers == nil {
		pod.Spec.Containers = []corev1.Container{{Name: "main", Image: "x:1"}}
	}
	podspec.SetDefaults(pod)
	return pod
}

func onNode(pod *corev1.Pod, node string) *corev1.Pod {
	out := pod.DeepCopy()
	out.Spec.NodeName = node
	return out
}

func nodeOf(t testing.TB, name, text string) *corev1.Node {
	t.Helper()
	n := &corev1.Node{}
	if err := yaml.UnmarshalStrict([]byte(text), n); err != nil {
		t.Fatalf("test node: %v\n%s", err, text)
	}
	n.Name = name
	if n.Labels == nil {
		n.Labels = map[string]string{}
	}
	n.Labels[corev1.LabelHostname] = name
	if n.Status.Allocatable == nil {
		if err := yaml.Unmarshal([]byte(`{pods: "10", cpu: "2", memory: 2Gi}`), &n.Status.Allocatable); err != nil {
			t.Fatal(err)
		}
	}
	return n
}

// newTestCluster returns a cluster of the nodes n1, n2, ..., by default in the zones a, a, b, b,
// ...
func newTestCluster(t testing.TB, nodes ...string) *Cluster {
	c := NewCluster()
	c.SetNamespace("default", map[string]string{"team": "red"})
	c.SetNamespace("other", map[string]string{"team": "blue"})
	for i, text := range nodes {
		n := nodeOf(t, fmt.Sprintf("n%d", i+1), text)
		if _, ok := n.Labels["zone"]; !ok {
			n.Labels["zone"] = string(rune('a' + i/2))
		}
		c.SetNode(n)
	}
	return c
}

const (
	nodeAny = "{}"
	// withoutFeatures is a node with the label of a feature that a later version supports.
	withoutFeatures = "metadata: {labels: {unsupported.berth.dev/resource-claims: 'true', " +
		"unsupported.berth.dev/csi-volumes: 'true', unsupported.berth.dev/in-tree-volumes: 'false'}}"
	cordoned = "spec: {unschedulable: true}"
	tainted  = "spec: {taints: [{key: gpu, value: 'yes', effect: NoSchedule}]}"
	cpu1     = "spec: {containers: [{name: a, image: x, resources: {requests: {cpu: 1}}}]}"
	cpu2     = "spec: {containers: [{name: a, image: x, resources: {requests: {cpu: 2}}}]}"
	cpu9     = "spec: {containers: [{name: a, image: x, resources: {requests: {cpu: 9}}}]}"
	claims   = "spec: {resourceClaims: [{name: a, resourceClaimName: b}], volumes: [{name: v, csi: {driver: d}}]}"
	port80   = "spec: {containers: [{name: a, image: x, ports: [{containerPort: 80, hostPort: 80}]}]}"
)

func TestSchedule(t *testing.T) {
	antiAffinity := func(key, rest string) string {
		return "{metadata: {labels: {app: web}}, spec: {affinity: {podAntiAffinity: " +
			"{requiredDuringSchedulingIgnoredDuringExecution: [{topologyKey: " + key +
			", labelSelector: {matchLabels: {app: web}}" + rest + "}]}}}}"
	}
	selfAffinity := func(rest string) string {
		return "{metadata: {labels: {app: web}}, spec: {affinity: {podAffinity: " +
			"{requiredDuringSchedulingIgnoredDuringExecution: [{topologyKey: zone, labelSelector: {matchLabels: " +
			"{app: web}}" +
			rest + "}]}}}}"
	}
	web := "metadata: {labels: {app: web}}"
	spreadBy := func(rest string) string {
		return "{metadata: {labels: {app: web, v: '2'}}, spec: {topologySpreadConstraints: [{topologyKey: " +
			"zone, maxSkew: " +
			"1, labelSelector: {matchLabels: {app: web}}, " + rest + "}]}}"
	}
	required := "whenUnsatisfiable: DoNotSchedule"
	for _, row := range []struct {
		name     string
		nodes    []string
		existing map[string]string // existing pods: "name@node" to manifest
		pod      string
		want     string // node, or the message
		siblings labels.Selector
	}{
		{name: "no nodes", pod: nodeAny, want: "no nodes available to schedule pods"},
		{name: "a single node", nodes: []string{nodeAny}, pod: nodeAny, want: "n1"},
		{name: "the least allocated node", nodes: []string{nodeAny, nodeAny}, existing: map[string]string{"a@n1": cpu1},
			pod: cpu1, want: "n2"},
		{name: "all reasons are counted", nodes: []string{nodeAny, tainted, tainted}, existing: map[string]string{
			"a@n1": cpu1}, pod: cpu2,
			want: "0/3 nodes are available: 1 Insufficient cpu, 2 node(s) had untolerated taint(s)."},
		{name: "a cordoned node", nodes: []string{cordoned}, pod: nodeAny,
			want: "0/1 nodes are available: 1 node(s) were unschedulable."},
		{name: "a pod that tolerates the cordon", nodes: []string{cordoned}, want: "n1",
			pod: "spec: {tolerations: [{key: node.kubernetes.io/unschedulable, operator: Exists}]}"},
		{name: "a node selector", nodes: []string{nodeAny, nodeAny, nodeAny}, pod: "spec: {nodeSelector: {zone: b}}",
			want: "n3"},
		{name: "a node selector without match", nodes: []string{nodeAny}, pod: "spec: {nodeSelector: {zone: z}}",
			want: "0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector."},
		{name: "a node that supports all pod features", nodes: []string{withoutFeatures, nodeAny}, pod: claims,
			want: "n2"},
		{name: "a pod without special features", nodes: []string{withoutFeatures}, pod: nodeAny, want: "n1"},
		{name: "an unsupported pod feature", nodes: []string{withoutFeatures, withoutFeatures}, pod: claims,
			want: "0/2 nodes are available: 2 node(s) didn't support pod features csi-volumes resource-claims."},
		{name: "a free host port", nodes: []string{nodeAny, nodeAny}, existing: map[string]string{"a@n1": port80},
			pod: port80, want: "n2"},
		{name: "a host port in use on all nodes", nodes: []string{nodeAny}, existing: map[string]string{"a@n1": port80},
			pod:  port80,
			want: "0/1 nodes are available: 1 node(s) didn't have free ports for the requested pod ports."},
		{name: "insufficient resources of all kinds", nodes: []string{"status: {allocatable: {pods: '1', cpu: '1', " +
			"memory: 1Ki}}"}, existing: map[string]string{"a@n1": nodeAny},
			pod: "spec: {containers: [{name: a, image: x, resources: {requests: {cpu: 2, memory: 1Gi, " +
				"example.com/gpu: 1}, " +
				"limits: {example.com/gpu: 1}}}]}",
			want: "0/1 nodes are available: 1 Insufficient cpu, 1 Insufficient example.com/gpu, 1 Insufficient " +
				"memory, 1 Too " +
				"many pods."},
		{name: "a PreferNoSchedule taint", nodes: []string{"spec: {taints: [{key: k, effect: PreferNoSchedule}]}",
			nodeAny}, existing: map[string]string{"a@n2": cpu1}, pod: nodeAny, want: "n2"},
		{name: "a preferred node", nodes: []string{nodeAny, nodeAny, nodeAny}, want: "n3",
			pod: "spec: {affinity: {nodeAffinity: {preferredDuringSchedulingIgnoredDuringExecution: [{weight: 5, " +
				"preference: " +
				"{matchExpressions: [{key: zone, operator: In, values: [b]}]}}]}}}"},
		{name: "the node that has the image", nodes: []string{nodeAny,
			"status: {allocatable: {pods: '9', cpu: '2', memory: 2Gi}, images: [{names: ['big:latest'], sizeBytes: " +
				"2000000000}]}"},
			pod: "spec: {containers: [{name: a, image: big}]}", want: "n2"},

		{name: "anti-affinity by node", nodes: []string{nodeAny, nodeAny}, existing: map[string]string{"a@n1": web},
			pod: antiAffinity("kubernetes.io/hostname", ""), want: "n2"},
		{name: "anti-affinity by zone without a free zone", nodes: []string{nodeAny, nodeAny},
			existing: map[string]string{
				"a@n1": web}, pod: antiAffinity("zone", ""),
			want: "0/2 nodes are available: 2 node(s) didn't match pod anti-affinity rules."},
		{name: "anti-affinity of an existing pod", nodes: []string{nodeAny}, existing: map[string]string{
			"a@n1": antiAffinity("zone",
				"")}, pod: web,
			want: "0/1 nodes are available: 1 node(s) didn't satisfy existing pods anti-affinity rules."},
		{name: "anti-affinity ignores pods in other namespaces", nodes: []string{nodeAny}, existing: map[string]string{
			"a@n1": "metadata: {namespace: other, labels: {app: web}}"}, pod: antiAffinity("zone", ""), want: "n1"},
		{name: "anti-affinity with a namespace selector", nodes: []string{nodeAny}, existing: map[string]string{
			"a@n1": "metadata: {namespace: other, labels: {app: web}}"}, pod: antiAffinity("zone",
			", namespaceSelector: {matchLabels: {team: blue}}"),
			want: "0/1 nodes are available: 1 node(s) didn't match pod anti-affinity rules."},
		{name: "anti-affinity with a namespace name", nodes: []string{nodeAny}, existing: map[string]string{
			"a@n1": "metadata: {namespace: other, labels: {app: web}}"},
			pod:  antiAffinity("zone", ", namespaces: [other]"),
			want: "0/1 nodes are available: 1 node(s) didn't match pod anti-affinity rules."},
		{name: "an empty namespace selector selects all namespaces", nodes: []string{nodeAny},
			existing: map[string]string{
				"a@n1": "metadata: {namespace: other, labels: {app: web}}"},
			pod:  antiAffinity("zone", ", namespaceSelector: {}"),
			want: "0/1 nodes are available: 1 node(s) didn't match pod anti-affinity rules."},
		{name: "anti-affinity with matchLabelKeys", nodes: []string{nodeAny}, existing: map[string]string{
			"a@n1": "metadata: {labels: {app: web, v: '1'}}"},
			pod:  strings.Replace(antiAffinity("zone", ", matchLabelKeys: [v]"), "app: web}", "app: web, v: '2'}", 1),
			want: "n1"},
		{name: "affinity to an existing pod", nodes: []string{nodeAny, nodeAny, nodeAny}, existing: map[string]string{
			"a@n3": web, "b@n3": cpu1}, pod: selfAffinity(""), want: "n3"},
		{name: "self-affinity of the first pod", nodes: []string{nodeAny}, pod: selfAffinity(""), want: "n1"},
		{name: "affinity without a matching pod", nodes: []string{nodeAny},
			want: "0/1 nodes are available: 1 node(s) didn't match pod affinity rules.",
			pod: "spec: {affinity: {podAffinity: {requiredDuringSchedulingIgnoredDuringExecution: " +
				"[{topologyKey: zone, " +
				"labelSelector: {matchLabels: {app: db}}}]}}}"},
		{name: "preferred affinity", nodes: []string{nodeAny, nodeAny, nodeAny}, existing: map[string]string{
			"a@n3": "metadata: {labels: {app: db}}"}, want: "n3",
			pod: "spec: {affinity: {podAffinity: {preferredDuringSchedulingIgnoredDuringExecution: [{weight: 100, " +
				"podAffinityTerm: {topologyKey: zone, labelSelector: {matchLabels: {app: db}}}}]}}}"},

		{name: "spreading over zones", nodes: []string{nodeAny, nodeAny, nodeAny},
			existing: map[string]string{"a@n1": web},
			pod:      spreadBy(required), want: "n3"},
		{name: "spreading with a node without the label", nodes: []string{"metadata: {labels: {zone: a}}"},
			pod: strings.Replace(spreadBy(required), "zone", "rack", 1),
			want: "0/1 nodes are available: 1 node(s) didn't match pod topology spread constraints (missing " +
				"required label)."},
		{name: "spreading with a full zone", nodes: []string{nodeAny, nodeAny, "status: {allocatable: {pods: '0'}}"},
			existing: map[string]string{"a@n1": web}, pod: spreadBy(required),
			want: "0/3 nodes are available: 1 Too many pods, 2 node(s) didn't match pod topology spread constraints."},
		{name: "minDomains is not met", nodes: []string{nodeAny, nodeAny}, existing: map[string]string{"a@n1": web},
			pod:  spreadBy(required + ", minDomains: 2"),
			want: "0/2 nodes are available: 2 node(s) didn't match pod topology spread constraints."},
		{name: "spreading counts tainted zones by default", nodes: []string{nodeAny, nodeAny, tainted},
			existing: map[string]string{"a@n1": web}, pod: spreadBy(required),
			want: "0/3 nodes are available: 1 node(s) had untolerated taint(s), 2 node(s) didn't match " +
				"pod topology " +
				"spread constraints."},
		{name: "spreading ignores tainted zones with nodeTaintsPolicy Honor", nodes: []string{tinyNode(), nodeAny,
			tainted}, existing: map[string]string{"a@n1": web},
			pod: spreadBy(required + ", nodeTaintsPolicy: Honor"), want: "n2"},
		{name: "spreading with matchLabelKeys", nodes: []string{tinyNode(), nodeAny, tainted},
			existing: map[string]string{
				"a@n1": "metadata: {labels: {app: web, v: '1'}}"}, pod: spreadBy(required + ", matchLabelKeys: [v]"),
			want: "n2"},
		{name: "preferred spreading over zones", nodes: []string{nodeAny, nodeAny, nodeAny},
			existing: map[string]string{
				"a@n1": web, "b@n2": web}, pod: spreadBy("whenUnsatisfiable: ScheduleAnyway"), want: "n3"},
		{name: "default spreading of siblings", nodes: []string{nodeAny, nodeAny}, want: "n2",
			existing: map[string]string{
				"a@n1": "metadata: {labels: {app: web}}"}, pod: "metadata: {labels: {app: web}}",
			siblings: labels.SelectorFromSet(labels.Set{"app": "web"})},
	} {
		t.Run(row.name, func(t *testing.T) {
			c := newTestCluster(t, row.nodes...)
			for key, text := range row.existing {
				name, node, _ := strings.Cut(key, "@")
				c.AddPod(onNode(podOf(t, name, text), node))
			}
			choice := c.Schedule(podOf(t, "new", row.pod), Related{Siblings: row.siblings})
			got := choice.Node
			if got == "" {
				got = choice.Message()
			}
			if got != row.want {
				t.Errorf("got  %s\nwant %s", got, row.want)
			}
		})
	}
}

// tinyNode is a node that only the smallest pod fits, to exclude it from scoring.
func tinyNode() string { return "status: {allocatable: {pods: '1', cpu: '0', memory: '0'}}" }

func withPriority(t testing.TB, name string, priority int32, text, node string) *corev1.Pod {
	pod := podOf(t, name, text)
	pod.Spec.Priority = &priority
	return onNode(pod, node)
}

func TestPreempt(t *testing.T) {
	never := corev1.PreemptNever
	for _, row := range []struct {
		name     string
		nodes    []string
		existing func(t testing.TB) []*corev1.Pod
		pod      func(*corev1.Pod)
		text     string
		budgets  []DisruptionBudget
		want     string // "node: victims", or the message
	}{
		{name: "a pod of lower priority is preempted", nodes: []string{nodeAny}, text: cpu2, want: "n1: low",
			existing: func(t testing.TB) []*corev1.Pod { return []*corev1.Pod{withPriority(t, "low", 0, cpu1, "n1")} }},
		{name: "a pod of equal priority is not preempted", nodes: []string{nodeAny}, text: cpu2,
			existing: func(t testing.TB) []*corev1.Pod {
				return []*corev1.Pod{withPriority(t, "same", 10, cpu1, "n1")}
			},
			want: "0/1 nodes are available: 1 No preemption victims found for incoming pod."},
		{name: "no preemption for a pod that never fits", nodes: []string{nodeAny, tainted}, text: cpu9,
			existing: func(t testing.TB) []*corev1.Pod { return []*corev1.Pod{withPriority(t, "low", 0, cpu1, "n1")} },
			want:     "0/2 nodes are available: 2 Preemption is not helpful for scheduling."},
		{name: "all reasons are counted", nodes: []string{nodeAny, tainted}, text: cpu2,
			existing: func(t testing.TB) []*corev1.Pod {
				return []*corev1.Pod{withPriority(t, "same", 10, cpu1, "n1")}
			},
			want: "0/2 nodes are available: 1 No preemption victims found for incoming pod, 1 Preemption is not " +
				"helpful for " +
				"scheduling."},
		{name: "preemptionPolicy Never", nodes: []string{nodeAny}, text: cpu2, pod: func(p *corev1.Pod) {
			p.Spec.PreemptionPolicy = &never
		},
			existing: func(t testing.TB) []*corev1.Pod { return []*corev1.Pod{withPriority(t, "low", 0, cpu1, "n1")} },
			want:     "not eligible due to preemptionPolicy=Never."},
		{name: "unnecessary victims are spared by priority", nodes: []string{nodeAny}, text: cpu1, want: "n1: b",
			existing: func(t testing.TB) []*corev1.Pod {
				return []*corev1.Pod{withPriority(t, "a", 5, cpu1, "n1"), withPriority(t, "b", 4, cpu1, "n1")}
			}},
		{name: "the node with the lowest victim priority is selected", nodes: []string{nodeAny, nodeAny}, text: cpu2,
			want: "n2: b",
			existing: func(t testing.TB) []*corev1.Pod {
				return []*corev1.Pod{withPriority(t, "a", 5, cpu1, "n1"), withPriority(t, "b", 4, cpu1, "n2")}
			}},
		{name: "a disruption budget changes the selection", nodes: []string{nodeAny, nodeAny}, text: cpu2,
			want: "n1: a",
			budgets: []DisruptionBudget{{Namespace: "default",
				Selector: labels.SelectorFromSet(labels.Set{"app": "db"})}},
			existing: func(t testing.TB) []*corev1.Pod {
				return []*corev1.Pod{withPriority(t, "a", 5, cpu1, "n1"), withPriority(t, "b", 4,
					"{metadata: {labels: {app: db}}, "+cpu1+"}", "n2")}
			}},
		{name: "no preemption while earlier victims terminate", nodes: []string{nodeAny}, text: cpu2,
			pod:  func(p *corev1.Pod) { p.Status.NominatedNodeName = "n1" },
			want: "not eligible due to a terminating pod on the nominated node.",
			existing: func(t testing.TB) []*corev1.Pod {
				p := withPriority(t, "low", 0, cpu1, "n1")
				p.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)}
				p.Status.Conditions = []corev1.PodCondition{{Type: corev1.DisruptionTarget,
					Status: corev1.ConditionTrue, Reason: corev1.PodReasonPreemptionByScheduler}}
				return []*corev1.Pod{p}
			}},
		{name: "a pod that terminates for another reason is a victim", nodes: []string{nodeAny}, text: cpu2,
			pod: func(p *corev1.Pod) { p.Status.NominatedNodeName = "n1" }, want: "n1: low",
			existing: func(t testing.TB) []*corev1.Pod {
				p := withPriority(t, "low", 0, cpu1, "n1")
				p.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)}
				return []*corev1.Pod{p}
			}},
	} {
		t.Run(row.name, func(t *testing.T) {
			c := newTestCluster(t, row.nodes...)
			for _, p := range row.existing(t) {
				c.AddPod(p)
			}
			pod := withPriority(t, "new", 10, row.text, "")
			if row.pod != nil {
				row.pod(pod)
			}
			choice := c.Schedule(pod, Related{})
			if choice.Node != "" {
				t.Fatalf("the pod fits %s without preemption", choice.Node)
			}
			p := c.Preempt(pod, choice, row.budgets, Related{})
			got := p.Message
			if p.Node != "" {
				names := make([]string, 0, len(p.Victims))
				for _, v := range p.Victims {
					names = append(names, v.Name)
				}
				got = p.Node + ": " + strings.Join(names, " ")
			}
			if got != row.want {
				t.Errorf("got  %s\nwant %s", got, row.want)
			}
		})
	}
}

func TestNominatedPodReservesResources(t *testing.T) {
	c := newTestCluster(t, nodeAny)
	c.Nominate("first", withPriority(t, "first", 10, cpu2, ""), "n1")
	if got := c.Schedule(withPriority(t, "second", 9, cpu1, ""), Related{}); got.Node != "" {
		t.Errorf("a pod of lower priority uses the reserved resources on %s", got.Node)
	}
	if got := c.Schedule(withPriority(t, "third", 11, cpu1, ""), Related{}); got.Node != "n1" {
		t.Errorf("a pod of higher priority was rejected: %s", got.Message())
	}
	first := withPriority(t, "first", 10, cpu2, "")
	first.Status.NominatedNodeName = "n1"
	if got := c.Schedule(first, Related{}); got.Node != "n1" {
		t.Errorf("the nominated pod was rejected: %s", got.Message())
	}
	c.RemovePod("first")
	if got := c.Schedule(withPriority(t, "second", 9, cpu1, ""), Related{}); got.Node != "n1" {
		t.Errorf("the resources are still reserved: %s", got.Message())
	}
}

// TestAntiAffinityOfNominatedPod: as in upstream, the anti-affinity of a nominated pod matters only beside the
// anti-affinity of a pod on a node, or of the scheduled pod.
func TestAntiAffinityOfNominatedPod(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, nodeAny, nodeAny)
	alone := "{metadata: {labels: {app: web}}, spec: {affinity: {podAntiAffinity: {" +
		"requiredDuringSchedulingIgnoredDuringExecution: [{topologyKey: kubernetes.io/hostname, " +
		"labelSelector: {matchLabels: {app: web}}}]}}}}"
	web := "{metadata: {labels: {app: web}}}"
	c.Nominate("first", podOf(t, "first", alone), "n1")
	feasible := func() []string { return slices.Sorted(maps.Keys(c.Scores(podOf(t, "second", web), Related{}))) }
	if got := feasible(); !slices.Equal(got, []string{"n1", "n2"}) {
		t.Errorf("feasible: %v, want both nodes", got)
	}
	c.AddPod(onNode(podOf(t, "third", alone), "n2"))
	if got := feasible(); len(got) > 0 {
		t.Errorf("feasible beside a pod with anti-affinity: %v, want none", got)
	}
}

// TestNominationMoves: a pod has one nominated node. A node without a Node object is known only while it has pods.
func TestNominationMoves(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, nodeAny)
	first, second := withPriority(t, "first", 10, cpu2, ""), withPriority(t, "second", 9, cpu1, "")
	for _, name := range []string{"unknown", "n1", "n1", "unknown", ""} {
		c.Nominate("first", first, name)
		if got := c.Schedule(second, Related{}).Node == ""; got != (name == "n1") {
			t.Errorf("nominated for %q: resources of n1 are reserved: %v", name, got)
		}
		if _, known := c.nodes["unknown"]; known != (name == "unknown") {
			t.Errorf("nominated for %q: the node unknown is known: %v", name, known)
		}
	}
	if len(c.nominated) != 0 {
		t.Errorf("got nominations %v after the last was removed", c.nominated)
	}
}

// TestNominationAfterAttempt checks the nominated node after a failed attempt of a pod that is nominated for n1.
func TestNominationAfterAttempt(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		policy  corev1.PreemptionPolicy
		victims string // the node of a pod of lower priority
		want    string
	}{
		"never preempts":     {policy: corev1.PreemptNever, victims: "n2", want: "n1"},
		"preempts elsewhere": {policy: corev1.PreemptLowerPriority, victims: "n2", want: "n2"},
		"has no victims":     {policy: corev1.PreemptLowerPriority, want: ""},
	} {
		c := newTestCluster(t, nodeAny, nodeAny)
		for _, node := range []string{"n1", "n2"} {
			priority := int32(20)
			if node == row.victims {
				priority = 5
			}
			c.AddPod(withPriority(t, node, priority, cpu2, node))
		}
		pod := withPriority(t, "new", 10, cpu2, "")
		pod.Spec.PreemptionPolicy, pod.Status.NominatedNodeName = &row.policy, "n1"
		result := c.Schedule(pod, Related{})
		if got := c.Preempt(pod, result, nil, Related{}).Nominated(pod); got != row.want {
			t.Errorf("%s: nominated for %q, want %q", name, got, row.want)
		}
	}
}

func TestNominatedBelow(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, nodeAny, nodeAny)
	c.Nominate("low", withPriority(t, "low", 5, cpu1, ""), "n1")
	c.Nominate("equal", withPriority(t, "equal", 10, cpu1, ""), "n1")
	c.Nominate("elsewhere", withPriority(t, "elsewhere", 5, cpu1, ""), "n2")
	if got := c.NominatedBelow(10, "n1"); len(got) != 1 || got[0].Name != "low" {
		t.Errorf("got %v, want the pod low", got)
	}
	if got := c.NominatedBelow(10, "unknown"); len(got) > 0 {
		t.Errorf("pods on an unknown node: %v", got)
	}
}

// TestPendingResizeCountsAsUsed: an infeasible resize uses no resources.
func TestPendingResizeCountsAsUsed(t *testing.T) {
	sized := func(name, desired, has string, pending string) *corev1.Pod {
		pod := onNode(podOf(t, name, "spec: {containers: [{name: c, image: x, resources: {requests: {cpu: "+desired+
			"}}}]}"),
			"n1")
		list := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(has)}
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "c", AllocatedResources: list,
			Resources: &corev1.ResourceRequirements{Requests: list}}}
		if pending != "" {
			pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodResizePending, Status: corev1.ConditionTrue,
				Reason: pending}}
		}
		return pod
	}
	preemptor := withPriority(t, "newcomer", 10, cpu1, "")
	for _, row := range []struct {
		name   string
		placed *corev1.Pod
		fits   bool
	}{
		{"an infeasible resize is not counted", sized("p", "100", "500m", corev1.PodReasonInfeasible), true},
		{"a deferred resize is counted", sized("p", "1500m", "500m", corev1.PodReasonDeferred), false},
		{"a pending decrease is not released yet", sized("p", "500m", "1500m", ""), false},
		{"a completed decrease is released", sized("p", "500m", "500m", ""), true},
	} {
		c := newTestCluster(t, nodeAny)
		c.AddPod(row.placed)
		choice := c.Schedule(preemptor, Related{})
		if got := choice.Node == "n1"; got != row.fits {
			t.Errorf("%s: %q %s", row.name, choice.Node, choice.Message())
		}
		if p := c.Preempt(preemptor, choice, nil, Related{}); !row.fits && len(p.Victims) != 1 {
			t.Errorf("%s: got no preemption: %s", row.name, p.Message)
		}
		c.RemovePod(row.placed.UID)
		if used := c.nodes["n1"].used; used.Pods != 0 || len(used.Requests) != 0 {
			t.Errorf("%s: pod removed, got usage %+v", row.name, used)
		}
	}
}

func TestClaims(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, nodeAny, nodeAny)
	class := "local"
	waiting := func(volumesOf ...string) volumes.PodClaims {
		out := volumes.PodClaims{
			Classes: map[string]*storagev1.StorageClass{class: {Provisioner: "kubernetes.io/no-provisioner"}},
			Claims: []*corev1.PersistentVolumeClaim{{
				Spec: corev1.PersistentVolumeClaimSpec{StorageClassName: &class}}},
		}
		for _, node := range volumesOf {
			out.Volumes = append(out.Volumes, &corev1.PersistentVolume{
				ObjectMeta: metav1.ObjectMeta{Name: "on-" + node},
				Spec: corev1.PersistentVolumeSpec{StorageClassName: class, NodeAffinity: &corev1.VolumeNodeAffinity{
					Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchFields: []corev1.
						NodeSelectorRequirement{{Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn,
						Values: []string{node}}}}}}}},
				Status: corev1.PersistentVolumeStatus{Phase: corev1.VolumeAvailable},
			})
		}
		return out
	}
	pod := podOf(t, "p", nodeAny)
	got := c.Schedule(pod, Related{Claims: waiting("n3", "n2")})
	if got.Node != "n2" || len(got.Volumes.Bind) != 1 || got.Volumes.Bind[0].Volume.Name != "on-n2" {
		t.Errorf("got node %q and volumes %+v, want n2 with its volume", got.Node, got.Volumes)
	}
	want := "0/2 nodes are available: 2 node(s) didn't find available persistent volumes to bind."
	if got := c.Schedule(pod, Related{Claims: waiting("n3")}).Message(); got != want {
		t.Error(got)
	}
	want = "0/2 nodes are available: 2 node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)."
	if got := c.Schedule(pod, Related{MissingVolume: true}).Message(); got != want {
		t.Error(got)
	}
}

func TestClaimOfSinglePod(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, nodeAny, nodeAny)
	using := func(name string, priority int32) *corev1.Pod {
		pod := podOf(t, name, nodeAny)
		pod.Spec.Priority = &priority
		pod.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}}}
		return pod
	}
	first := using("first", 0)
	first.Spec.NodeName = "n1"
	c.AddPod(first)
	with := Related{SinglePodClaims: []string{"data"}}
	second := using("second", 10)
	result := c.Schedule(second, with)
	want := "0/2 nodes are available: 2 node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod " +
		"access mode already in-use by another pod."
	if got := result.Message(); got != want {
		t.Error(got)
	}
	if p := c.Preempt(second, result, nil, with); p.Node != "n1" || len(p.Victims) != 1 {
		t.Errorf("got preemption %+v, want that of the pod that uses the claim", p)
	}
	c.RemovePod(first.UID)
	if c.Schedule(second, with).Node == "" {
		t.Error("rejected without another pod")
	}
}

func TestVolumeNodeAffinity(t *testing.T) {
	c := newTestCluster(t, nodeAny, nodeAny, nodeAny)
	in := func(zone string) *corev1.PersistentVolume {
		return &corev1.PersistentVolume{Spec: corev1.PersistentVolumeSpec{NodeAffinity: &corev1.VolumeNodeAffinity{
			Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{
				{MatchExpressions: []corev1.NodeSelectorRequirement{
					{Key: "zone", Operator: corev1.NodeSelectorOpIn, Values: []string{zone}},
				}}}}}}}
	}
	pod := podOf(t, "p", nodeAny)
	if got := c.Schedule(pod, Related{Volumes: []*corev1.PersistentVolume{in("b")}}).Node; got != "n3" {
		t.Errorf("got node %q, want the volume's node n3", got)
	}
	choice := c.Schedule(pod, Related{Volumes: []*corev1.PersistentVolume{in("a"), in("b")}})
	want := "0/3 nodes are available: 3 node(s) didn't match PersistentVolume's node affinity."
	if got := choice.Message(); got != want {
		t.Error(got)
	}
	choice = c.Unschedulable("pod has unbound immediate PersistentVolumeClaims")
	got := choice.Message() + " preemption: " + c.Preempt(pod, choice, nil, Related{}).Message
	want = "0/3 nodes are available: pod has unbound immediate PersistentVolumeClaims. preemption: 0/3 nodes are " +
		"available: 3 Preemption is not helpful for scheduling."
	if got != want {
		t.Error(got)
	}
}

func TestClusterAddAndRemoveNode(t *testing.T) {
	c := NewCluster()
	c.AddPod(onNode(podOf(t, "early", cpu2), "n1"))
	c.SetNode(nodeOf(t, "n1", nodeAny))
	const full = "0/1 nodes are available: 1 Insufficient cpu."
	if got := c.Schedule(podOf(t, "p", cpu1), Related{}).Message(); got != full {
		t.Errorf("a pod added before its node is not counted: %s", got)
	}
	c.RemoveNode("n1")
	if got := c.Schedule(podOf(t, "p", cpu1), Related{}).Message(); got != "no nodes available to schedule pods" {
		t.Error(got)
	}
	c.RemovePod("early")
	if len(c.nodes) != 0 {
		t.Errorf("nodes left: %v", c.nodes)
	}
}
