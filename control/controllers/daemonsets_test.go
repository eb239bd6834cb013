package controllers

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/flowcontrol"

	"berth/workloads"
)

// newDaemonSet returns a set for the nodes with the labels.
func newDaemonSet(name string, on map[string]string, tolerations ...corev1.Toleration) *appsv1.DaemonSet {
	app := map[string]string{"app": name}
	return &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name)},
		Spec: appsv1.DaemonSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: app},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: app}, Spec: corev1.PodSpec{
				NodeSelector: on, Tolerations: tolerations,
				Containers: []corev1.Container{{Name: "c", Image: "i"}},
			}},
		},
	}
}

// TestNodeUpdateQueuesAffectedDaemonSets: an update of a node queues the sets whose pods it affects and no others.
func TestNodeUpdateQueuesAffectedDaemonSets(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		change func(*corev1.Node)
		want   string
	}{
		"heartbeat": {func(n *corev1.Node) {
			n.ResourceVersion, n.Status.Conditions[0].LastHeartbeatTime = "2", metav1.Now()
		}, ""},
		"condition": {func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionFalse }, ""},
		"images":    {func(n *corev1.Node) { n.Status.Images = []corev1.ContainerImage{{SizeBytes: 1}} }, ""},
		"allocatable": {func(n *corev1.Node) {
			n.Status.Allocatable = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}
		}, ""},
		"annotation":      {func(n *corev1.Node) { n.Annotations = map[string]string{"a": "b"} }, ""},
		"label of no set": {func(n *corev1.Node) { n.Labels = map[string]string{"zone": "a"} }, ""},
		"label of a set":  {func(n *corev1.Node) { n.Labels = map[string]string{"disk": "fast"} }, "fast"},
		"taint": {func(n *corev1.Node) {
			n.Spec.Taints = taints("k", corev1.TaintEffectNoSchedule)
		}, "everywhere"},
		"taint that evicts": {func(n *corev1.Node) {
			n.Spec.Taints = taints("k", corev1.TaintEffectNoExecute)
		}, "everywhere"},
		"cordon": {func(n *corev1.Node) {
			n.Spec.Unschedulable = true
			n.Spec.Taints = taints(corev1.TaintNodeUnschedulable, corev1.TaintEffectNoSchedule)
		}, ""}, // pods of DaemonSets tolerate it
	} {
		synctest.Test(t, func(t *testing.T) {
			node := newNode("n", corev1.ConditionTrue)
			client := fake.NewClientset(node.DeepCopy(), newDaemonSet("everywhere", nil),
				newDaemonSet("fast", map[string]string{"disk": "fast"}),
				newDaemonSet("tolerant", nil, corev1.Toleration{Operator: corev1.TolerationOpExists}))
			c := Config{Client: client, Log: slog.New(slog.DiscardHandler), Events: record.NewFakeRecorder(10),
				Informers: informers.NewSharedInformerFactory(client, 0)}
			created, err := newDaemonSetController(c)
			if err != nil {
				t.Fatal(err)
			}
			queue := created[0].queue // without workers
			defer queue.ShutDown()
			ctx, cancel := context.WithCancel(t.Context())
			defer c.Informers.Shutdown()
			defer cancel()
			c.Informers.Start(ctx.Done())
			queued := func() (keys []string) {
				for waitForSync(); queue.Len() > 0; {
					key, _ := queue.Get()
					keys = append(keys, strings.TrimPrefix(key, "default/"))
					queue.Done(key)
				}
				slices.Sort(keys)
				return keys
			}
			queued() // the added sets
			row.change(node)
			if _, err := client.CoreV1().Nodes().Update(t.Context(), node, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
			if got := strings.Join(queued(), " "); got != row.want {
				t.Errorf("%s: queued %q, want %q", name, got, row.want)
			}
		})
	}
}

func taints(key string, effect corev1.TaintEffect) []corev1.Taint {
	return []corev1.Taint{{Key: key, Effect: effect}}
}

// TestDaemonSetFollowsNodes: pods follow added, relabeled and heartbeating nodes.
func TestDaemonSetFollowsNodes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		client := startControllers(t, Config{Client: newNamingClient(
			newDaemonSet("fast", map[string]string{"disk": "fast"}), newNode("a", corev1.ConditionTrue))},
			[]string{DaemonSets})
		check := func(when string, want int) {
			t.Helper()
			waitForSync()
			if got := podNames(t, client); len(got) != want {
				t.Errorf("%s: got pods %v, want %d", when, got, want)
			}
		}
		check("no label", 0)
		for i, name := range []string{"a", "b"} {
			node := newNode(name, corev1.ConditionTrue)
			node.Labels = map[string]string{"disk": "fast"}
			if name == "b" {
				if _, err := client.CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{}); err != nil {
					t.Fatal(err)
				}
			} else if _, err := client.CoreV1().Nodes().Update(t.Context(), node, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
			check("node "+name, i+1)
		}
		node := getNode(t, client, "a")
		node.Status.Conditions[0].Reason = "heartbeat"
		if _, err := client.CoreV1().Nodes().UpdateStatus(t.Context(), node, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		check("heartbeat", 2)
	})
}

// TestFailedDaemonPodBackOffEndsWithChange: the delay of a node belongs to the generation of the set whose pods fail.
func TestFailedDaemonPodBackOffEndsWithChange(t *testing.T) {
	t.Parallel()
	now := time.Now()
	failures := failedDaemonPods{flowcontrol.NewBackOff(failedPodDelay, maxFailedPodDelay)}
	set := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "agent", UID: "set"}}
	set.Status.ObservedGeneration = 1
	pod := newPod("agent-1", "node", func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed })
	pods := []*corev1.Pod{pod}
	if at := failures.retryAfter(set, pods, now)["node"]; !at.IsZero() {
		t.Errorf("the first failed pod has to wait until %v", at)
	}
	failures.record(set, []workloads.Write{{Verb: workloads.Delete, Object: pod}}, now)
	if at := failures.retryAfter(set, pods, now)["node"]; !at.After(now) {
		t.Errorf("the second failed pod has to wait until %v, want later than %v", at, now)
	}
	set.Status.ObservedGeneration = 2
	if at := failures.retryAfter(set, pods, now)["node"]; !at.IsZero() {
		t.Errorf("a failed pod of the changed set has to wait until %v", at)
	}
}
