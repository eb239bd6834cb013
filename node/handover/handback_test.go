package handover

import (
	"encoding/json"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/podspec"
)

// TestHandbackRejectedRows changes one thing of a pod that can be handed back.
func TestHandbackRejectedRows(t *testing.T) {
	t.Parallel()
	static := func(f *HandbackFacts, adopted, content string) {
		p := f.Pods[0]
		p.Annotations = map[string]string{"kubernetes.io/config.source": "file"}
		for name, value := range map[string]string{
			podspec.AdoptedAnnotation: adopted, podspec.ContentAnnotation: content,
		} {
			if value != "" {
				p.Annotations[name] = value
			}
		}
	}
	memory := func(f *HandbackFacts, recorded, now string) {
		data := `{"entries":{"u1":{"ContainerResources":{"c":{"limits":{"memory":"` + recorded + `"}}}}}}`
		text, err := json.Marshal(map[string]any{"data": data, "checksum": 1})
		if err != nil {
			t.Fatal(err)
		}
		f.Checkpoints = map[string]string{allocatedPods: string(text)}
		f.Pods[0].Spec.Containers[0].Resources.Limits = corev1.ResourceList{
			corev1.ResourceMemory: resource.MustParse(now), "example.com/other": resource.MustParse("1"),
		}
	}
	allocated := func(f *HandbackFacts, entry string) {
		text, err := json.Marshal(map[string]any{"data": `{"entries":{"u1":` + entry + `}}`, "checksum": 1})
		if err != nil {
			t.Fatal(err)
		}
		f.Checkpoints = map[string]string{allocatedPods: string(text)}
	}
	const uid, device = "metadata.uid", "status.containerStatuses[c].allocatedResourcesStatus"
	const id = "status.containerStatuses[c].containerID"
	for name, c := range map[string]struct {
		change  func(*HandbackFacts)
		subject string // empty: not rejected
	}{
		"nothing special":     {func(*HandbackFacts) {}, ""},
		"static pod of berth": {func(f *HandbackFacts) { static(f, "", "1") }, uid},
		"adopted static pod":  {func(f *HandbackFacts) { static(f, "1", "1") }, ""},
		"edited static pod":   {func(f *HandbackFacts) { static(f, "1", "2") }, uid},
		"finished static pod": {func(f *HandbackFacts) {
			static(f, "", "1")
			f.Pods[0].Status.Phase = corev1.PodSucceeded
		}, ""},
		"devices": {func(f *HandbackFacts) {
			f.Pods[0].Status.ContainerStatuses[0].AllocatedResourcesStatus = []corev1.ResourceStatus{
				{Name: "example.com/gpu"},
			}
		}, device},
		"resized":     {func(f *HandbackFacts) { memory(f, "1Gi", "2Gi") }, ""},
		"not resized": {func(f *HandbackFacts) { memory(f, "1Gi", "1024Mi") }, ""},
		"resized as a pod": {func(f *HandbackFacts) {
			allocated(f, `{"ContainerResources":{"c":{}},"PodLevelResources":{"requests":{"cpu":"1"}}}`)
			f.Pods[0].Spec.Resources = &corev1.ResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("2")},
			}
		}, ""},
		"pod resources that the kubelet does not resize": {func(f *HandbackFacts) {
			allocated(f, `{"ContainerResources":{"c":{}}}`)
			f.Pods[0].Spec.Resources = &corev1.ResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("2")},
			}
		}, ""},
		"resized volume": {func(f *HandbackFacts) {
			allocated(f, `{"ContainerResources":{"c":{}},"EmptyDirVolumeLimits":{"v":"1Mi"}}`)
			limit := resource.MustParse("2Mi")
			f.Pods[0].Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
				EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory, SizeLimit: &limit},
			}}}
		}, "spec.volumes[v].emptyDir.sizeLimit"},
		"unknown checkpoint": {func(f *HandbackFacts) {
			f.Checkpoints = map[string]string{allocatedPods: "{"}
		}, allocatedPods},
		"berth does not answer": {func(f *HandbackFacts) { f.PodsErr = "connection refused" }, "pods of this node"},
		"resize in progress": {func(f *HandbackFacts) {
			f.Pods[0].Status.Conditions = []corev1.PodCondition{
				{Type: corev1.PodResizeInProgress, Status: corev1.ConditionTrue},
			}
		}, "status.conditions[PodResizeInProgress]"},
		"old kubelet, container of berth":   {func(f *HandbackFacts) { f.KubeletVersion = "Kubernetes v1.30.14" }, id},
		"newer kubelet, container of berth": {func(f *HandbackFacts) { f.KubeletVersion = "Kubernetes v1.31.0" }, ""},
		"old kubelet, container of the kubelet": {func(f *HandbackFacts) {
			f.KubeletVersion = "Kubernetes v1.29.0"
			f.Before = []Pod{{Name: "shop/db", Containers: map[string]string{"c": "containerd://1"}}}
		}, ""},
		"unknown kubelet": {func(f *HandbackFacts) { f.KubeletVersion = "" }, ""},
	} {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "db", UID: "u1"}}
		p.Spec.Containers = []corev1.Container{{Name: "c"}}
		p.Status.Phase = corev1.PodRunning
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{
			Name: "c", ContainerID: "containerd://1", State: corev1.ContainerState{
				Running: &corev1.ContainerStateRunning{},
			},
		}}
		f := HandbackFacts{Pods: []*corev1.Pod{p}, KubeletVersion: "Kubernetes v1.37.2"}
		c.change(&f)
		rejected := MakeHandback(f).Rejected()
		if c.subject == "" && len(rejected) == 0 {
			continue
		}
		if !slices.ContainsFunc(rejected, func(r Row) bool { return r.Subject == c.subject && r.Note != "" }) {
			t.Errorf("%s: got %+v, want %q", name, rejected, c.subject)
		}
		for _, r := range rejected {
			if r.Pod != "shop/db" && r.Subject != allocatedPods && r.Subject != "pods of this node" {
				t.Errorf("%s: %s does not name the pod", name, r.Subject)
			}
		}
	}
}

// The status of a mirror pod is valid until berth has adopted the pod.
func TestMirrorStatusOfRecord(t *testing.T) {
	t.Parallel()
	mirror, other := &corev1.Pod{}, &corev1.Pod{}
	mirror.Namespace, mirror.Name, other.Namespace, other.Name = "kube-system", "etcd", "shop", "db"
	mirror.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "1"}
	mirror.Status.Phase = corev1.PodRunning
	r := &Record{Direction: Takeover, Mirrors: MirrorStatuses([]*corev1.Pod{mirror, other})}
	if st := r.MirrorStatus("kube-system", "etcd"); st == nil || st.Phase != corev1.PodRunning {
		t.Errorf("got %+v", st)
	}
	if st := r.MirrorStatus("shop", "db"); st != nil {
		t.Errorf("got %+v for a pod of the API server", st)
	}
	if r.Completed = true; r.MirrorStatus("kube-system", "etcd") != nil {
		t.Error("a status from before the takeover is still valid")
	}
	if r = nil; r.MirrorStatus("kube-system", "etcd") != nil {
		t.Error("got a status without a record")
	}
}
