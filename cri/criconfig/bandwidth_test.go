package criconfig

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"berth/podspec"
)

func TestBandwidthThatIsNotToBeHad(t *testing.T) {
	t.Parallel()
	limited := &corev1.Pod{}
	limited.Annotations = map[string]string{podspec.EgressBandwidth: "10M"}
	onHost := limited.DeepCopy()
	onHost.Spec.HostNetwork = true
	for _, row := range []struct {
		what string
		pod  *corev1.Pod
		node Node
		want string
	}{
		{"it is", limited, Node{}, ""},
		{"nobody asks", &corev1.Pod{}, Node{NoBandwidthReason: "no plugin"}, ""},
		{"the network has no plugin for it", limited, Node{NoBandwidthReason: "no plugin"}, "no plugin"},
		{"the host's network has no limits", onHost, Node{}, "host's network"},
	} {
		got := BandwidthWarnings(row.node, row.pod)
		if (len(got) == 0) != (row.want == "") || len(got) > 0 && !strings.Contains(got[0].String(), row.want) {
			t.Errorf("%s: %v", row.what, got)
		}
	}
}
