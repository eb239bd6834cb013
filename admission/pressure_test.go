package admission

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// TestPressureRejectsNewPods combines every pressure condition with every class of pods.
func TestPressureRejectsNewPods(t *testing.T) {
	t.Parallel()
	const memory, disk, pids = corev1.NodeMemoryPressure, corev1.NodeDiskPressure, corev1.NodePIDPressure
	pods := map[string]*corev1.Pod{
		"best effort": podOf(t, "{}"), "burstable": requesting(t, "cpu: 10m"),
		"tolerant": podOf(
			t,
			"tolerations: [{key: node.kubernetes.io/memory-pressure, operator: Exists, effect: NoSchedule}]",
		),
		"tolerant of disk": podOf(t, "tolerations: [{key: node.kubernetes.io/disk-pressure, operator: Exists}]"),
		"tolerant of all":  podOf(t, "tolerations: [{operator: Exists}]"),
		"critical":         podOf(t, "priorityClassName: system-node-critical"),
		"of a file":        podOf(t, "{}"),
		"tolerant, to stay": podOf(
			t,
			"tolerations: [{key: node.kubernetes.io/memory-pressure, operator: Exists, effect: NoExecute}]",
		),
	}
	pods["of a file"].Annotations = map[string]string{"kubernetes.io/config.source": "file"}
	in := func(names ...string) map[string]bool {
		out := map[string]bool{}
		for _, n := range names {
			out[n] = true
		}
		return out
	}
	all := in(
		"best effort",
		"burstable",
		"tolerant",
		"tolerant of disk",
		"tolerant of all",
		"critical",
		"of a file",
		"tolerant, to stay",
	)
	for _, row := range []struct {
		under      []corev1.NodeConditionType
		standalone bool
		let        map[string]bool
	}{
		{nil, false, all},
		{[]corev1.NodeConditionType{memory}, false, in("burstable", "tolerant", "tolerant of all", "critical",
			"of a file")},
		{[]corev1.NodeConditionType{memory}, true, in("burstable", "tolerant", "tolerant of all", "critical")},
		{[]corev1.NodeConditionType{disk}, false, in("critical", "of a file")},
		{[]corev1.NodeConditionType{pids}, false, in("critical", "of a file")},
		{[]corev1.NodeConditionType{disk, memory}, false, in("critical", "of a file")},
		{[]corev1.NodeConditionType{disk}, true, in("critical")},
	} {
		node := testNode()
		node.PressureConditions, node.Standalone = row.under, row.standalone
		for name, pod := range pods {
			got := Check(node, Used{}, pod)
			if (len(got) == 0) != row.let[name] {
				t.Errorf("%v, standalone %t, %s pod: got %v", row.under, row.standalone, name, got)
			}
			if len(got) > 0 &&
				(got[0].Reason != "Evicted" || got[0].Message != fmt.Sprintf("The node had condition: %v. ",
					row.under) || !got[0].Recoverable) {
				t.Errorf("%+v", got[0])
			}
		}
	}
}
