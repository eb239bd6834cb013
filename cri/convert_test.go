package cri

import (
	"reflect"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"berth/agent/plan"
	"berth/cri/criconfig"
	"berth/podspec"
)

// TestASandboxWithoutItsNetworks is not ready, or while they are made has no
// address. Nobody is asked about one that needs none.
func TestASandboxWithoutItsNetworks(t *testing.T) {
	t.Parallel()
	pod := &corev1.Pod{}
	pod.Namespace, pod.Name, pod.UID = "ns", "p", "u-1"
	plain, err := criconfig.Sandbox(criconfig.Node{}, pod, plan.SandboxSetup{})
	if err != nil {
		t.Fatal(err)
	}
	pod.Annotations = map[string]string{podspec.NetworksAnnotation: "a"}
	more, err := criconfig.Sandbox(criconfig.Node{}, pod, plan.SandboxSetup{})
	if err != nil {
		t.Fatal(err)
	}
	seen := plan.Sandbox{ID: "s", Ready: true, IPs: []string{"10.0.0.2"}}
	for _, row := range []struct {
		what         string
		annotations  map[string]string
		done, making bool
		want         plan.Sandbox
	}{
		{"needs none", plain.Annotations, false, false, seen},
		{"has them", more.Annotations, true, true, seen},
		{"gets them", more.Annotations, false, true, plan.Sandbox{ID: "s", Ready: true}},
		{"has not got them", more.Annotations, false, false, plan.Sandbox{ID: "s", IPs: seen.IPs}},
	} {
		c := &Client{attached: func(uid, sandbox string) (done, making bool) {
			if uid != "u-1" || sandbox != "s" {
				t.Errorf("asked about %s of %s", sandbox, uid)
			}
			return row.done, row.making
		}}
		if got := c.judged(seen, more.Labels, row.annotations); !reflect.DeepEqual(got, row.want) {
			t.Errorf("one that %s: %+v", row.what, got)
		}
	}
}
