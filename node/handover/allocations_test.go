package handover

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
)

// TestChecksumOfCheckpoint compares a checksum with that of a checkpoint in the tests of the kubelet.
func TestChecksumOfCheckpoint(t *testing.T) {
	t.Parallel()
	const data = `{"entries":{"pod1":{"ContainerResources":{"container1":{"requests":{"cpu":"1Ki","memory":"1Ki"}}}}}}`
	if got, want := checksum(data), uint32(1178570812); got != want {
		t.Errorf("got %d, want %d", got, want)
	}
}

// TestHandbackConvertsResizedPods resizes a pod under berth. The plan converts the checkpoints, after which nothing is
// left to convert, and nothing else has changed.
func TestHandbackConvertsResizedPods(t *testing.T) {
	t.Parallel()
	amounts := func(cpu string) corev1.ResourceList {
		return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}
	}
	checkpoint := func(data string) string {
		text, err := json.Marshal(map[string]any{"data": data, "checksum": checksum(data)})
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	const other = `"u2":{"ContainerResources":{"c":{"limits":{"cpu":"7"}}},"future":[1]}`
	dir := t.TempDir()
	for name, entry := range map[string]string{
		allocatedPods: `"u1":{"ContainerResources":{"c":{"limits":{"cpu":"1"}},"d":{}},` +
			`"PodLevelResources":{"limits":{"cpu":"2"}},"future":true}`,
		actuatedPods: `"u1":{"ContainerResources":{"c":{"limits":{"cpu":"1"}},"d":{"limits":{"cpu":"2"}},` +
			`"debugger":{}},"PodLevelResources":null}`,
	} {
		text := checkpoint(`{"entries":{` + entry + "," + other + `}}`)
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	p := &corev1.Pod{}
	p.Namespace, p.Name, p.UID = "shop", "db", "u1"
	p.Spec.Containers = []corev1.Container{{Name: "c"}, {Name: "d"}}
	p.Spec.Containers[0].Resources.Limits = amounts("3")
	p.Spec.Resources = &corev1.ResourceRequirements{Limits: amounts("5")}
	plan := func() Plan {
		checkpoints, _, err := ReadState(dir)
		if err != nil {
			t.Fatal(err)
		}
		return MakeHandback(HandbackFacts{Pods: []*corev1.Pod{p}, Checkpoints: checkpoints, KubeletVersion: "v1.37.2"})
	}
	first := plan()
	if len(first.Rejected()) > 0 || len(first.Resized) != 1 {
		t.Fatalf("got %+v", first)
	}
	for range 2 { // it can be repeated
		if err := WriteResized(dir, first.Resized); err != nil {
			t.Fatal(err)
		}
	}
	if again := plan(); len(again.Resized) > 0 {
		t.Errorf("the pod still differs: %+v", again.Resized)
	}
	checkpoints, _, err := ReadState(dir)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{allocatedPods: "3 -", actuatedPods: "3 5"} {
		var outer struct {
			Data     string
			Checksum uint32
		}
		err := json.Unmarshal([]byte(checkpoints[name]), &outer)
		if err != nil || outer.Checksum != checksum(outer.Data) {
			t.Errorf("%s: %v, checksum %d", name, err, outer.Checksum)
		}
		if !strings.Contains(outer.Data, other) {
			t.Errorf("%s: the other pod has changed: %s", name, outer.Data)
		}
		all, err := parseAllocations(checkpoints[name])
		if err != nil {
			t.Fatal(err)
		}
		var limits []string
		for _, container := range []string{"c", "d"} {
			limit, set := all["u1"].ContainerResources[container].Limits[corev1.ResourceCPU]
			if limits = append(limits, limit.String()); !set {
				limits[len(limits)-1] = "-"
			}
		}
		if diff := cmp.Diff(want, strings.Join(limits, " ")); diff != "" {
			t.Errorf("%s: limits of both containers: %s", name, diff)
		}
		fields := all["u1"].unappliedFields(p, all["u1"])
		if len(fields) > 0 {
			t.Errorf("%s: %v", name, fields)
		}
	}
	allocated, err := parseAllocations(checkpoints[allocatedPods])
	if err != nil {
		t.Fatal(err)
	}
	actuated, err := parseAllocations(checkpoints[actuatedPods])
	if err != nil {
		t.Fatal(err)
	}
	if got := allocated["u1"].unappliedFields(p, actuated["u1"]); len(got) > 0 {
		t.Errorf("the kubelet would resize %v", got)
	}
	if limit := allocated["u1"].PodLevelResources.Limits[corev1.ResourceCPU]; limit.String() != "5" {
		t.Errorf("limit of the pod is %s", limit.String())
	}
	if err := WriteResized(t.TempDir(), first.Resized); err != nil {
		t.Errorf("without checkpoints: %v", err)
	}
	if _, err := WithResized(allocatedPods, "{", map[types.UID]Allocation{}); err == nil {
		t.Error("a damaged checkpoint is converted")
	}
}
