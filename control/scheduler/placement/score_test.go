package placement

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// TestScores checks scores that were computed by hand. "make placements" compares more of them with kube-scheduler's.
func TestScores(t *testing.T) {
	t.Parallel()
	const large = "status: {allocatable: {pods: '10', cpu: '4', memory: 4000Mi}}"
	zoned := func(zone string) string {
		return "{metadata: {labels: {topology.kubernetes.io/zone: " + zone + "}}, " + large + "}"
	}
	requests := func(cpu, memory string) string {
		return "spec: {containers: [{name: c, image: example.com/c, resources: {requests: {cpu: '" + cpu +
			"', memory: " + memory + "}}}]}"
	}
	web := labels.SelectorFromSet(labels.Set{"app": "web"})
	for name, row := range map[string]struct {
		nodes    []string
		existing map[string]string // node by the name of a pod labeled app=web without requests
		pod      string
		siblings labels.Selector
		plugin   string
		want     []int64 // by node
	}{
		"the mean of both free fractions": {nodes: []string{large}, pod: requests("1", "2000Mi"),
			plugin: "NodeResourcesFit", want: []int64{(75 + 50) / 2}},
		"defaults for missing requests": {nodes: []string{large}, pod: "{}",
			plugin: "NodeResourcesFit", want: []int64{(97 + 95) / 2}},
		"a pod without requests balances nothing": {nodes: []string{large}, pod: "{}",
			plugin: "NodeResourcesBalancedAllocation", want: []int64{0}},
		// The balance falls from 100 to 87: by a quarter of the difference between 75 % and 25 %.
		"a pod that makes the allocation less balanced": {nodes: []string{large}, pod: requests("3", "1000Mi"),
			plugin: "NodeResourcesBalancedAllocation", want: []int64{50 + (50-25)/2}},
		"siblings on the node": {nodes: []string{large, large}, existing: map[string]string{"a": "n1"},
			pod: "{}", siblings: web, plugin: "PodTopologySpread", want: []int64{2 * 66, 2 * 100}},
		"a node without a zone counts with its host name": {nodes: []string{zoned("a"), large}, pod: "{}",
			siblings: web, plugin: "PodTopologySpread", want: []int64{2 * 33, 2 * 100}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newTestCluster(t, row.nodes...)
			for pod, node := range row.existing {
				c.AddPod(onNode(podOf(t, pod, "metadata: {labels: {app: web}}"), node))
			}
			scores := c.Scores(podOf(t, "new", row.pod), Related{Siblings: row.siblings})
			for i, node := range c.names {
				if got := scores[node][row.plugin]; got != row.want[i] {
					t.Errorf("%s of %s: got %d, want %d", row.plugin, node, got, row.want[i])
				}
			}
		})
	}
}

func TestSiblings(t *testing.T) {
	t.Parallel()
	service := func(selector map[string]string) *corev1.Service {
		return &corev1.Service{Spec: corev1.ServiceSpec{Selector: selector}}
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "web", "v": "1"}}}
	for name, row := range map[string]struct {
		services   []*corev1.Service
		controller *metav1.LabelSelector
		want       string // the selector; empty: none
	}{
		"none":                  {},
		"a Service without one": {services: []*corev1.Service{service(nil)}},
		"of another Service":    {services: []*corev1.Service{service(map[string]string{"app": "db"})}},
		"of two Services": {services: []*corev1.Service{service(map[string]string{"app": "web"}),
			service(map[string]string{"v": "1"})}, want: "app=web,v=1"},
		"of the controller": {controller: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}},
			want: "app=web"},
		"of both": {services: []*corev1.Service{service(map[string]string{"app": "web"})},
			controller: &metav1.LabelSelector{MatchLabels: map[string]string{"v": "1"}}, want: "app=web,v=1"},
	} {
		got := ""
		if s := Siblings(pod, row.services, row.controller); s != nil {
			got = s.String()
		}
		if got != row.want {
			t.Errorf("%s: got %q, want %q", name, got, row.want)
		}
	}
}
