package criruntime

import (
	"context"
	"errors"
	"log/slog"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/agent"
	"berth/agent/plan"
	"berth/cri"
	"berth/cri/criconfig"
	"berth/cri/crifake"
	"berth/podspec"
)

func TestPodsAreAdoptedAfterVerification(t *testing.T) {
	t.Parallel()
	fake := crifake.New(crifake.Options{})
	t.Cleanup(fake.Close)
	client, err := cri.Dial(t.Context(), cri.Options{
		Conn: fake.Conn(), Node: func() criconfig.Node { return criconfig.Node{Name: "n1"} },
	})
	if err != nil {
		t.Fatal(err)
	}
	pod := &corev1.Pod{}
	pod.Namespace, pod.Name, pod.UID = "default", "web", "u-1"
	pod.Spec.HostNetwork = true
	if _, err := client.RunSandbox(t.Context(), pod, plan.SandboxConfig{}); err != nil {
		t.Fatal(err)
	}
	verified := errors.New("another cgroup driver")
	var adopted []types.UID
	r := &Runtime{
		Client: client, Log: slog.New(slog.DiscardHandler),
		Verify:  func(context.Context) error { return verified },
		Adopted: func(uid types.UID, p agent.RuntimePod) { adopted = append(adopted, uid) },
	}
	if _, err := r.Pods(t.Context()); !errors.Is(err, verified) || adopted != nil {
		t.Errorf("got error %v, adopted %v", err, adopted)
	}
	verified = nil
	all, err := r.Pods(t.Context())
	if err != nil || len(all) != 1 || all["u-1"].Pod.Name != "web" || len(all["u-1"].Sandboxes) != 1 ||
		len(adopted) != 1 {
		t.Errorf("got pods %+v, %v, adopted %v", all, err, adopted)
	}
	listed, err := r.List(t.Context())
	if err != nil || len(listed) != 1 || len(listed["u-1"].Sandboxes) != 1 {
		t.Errorf("got list %+v, %v", listed, err)
	}
	if s, _, err := r.Pod(t.Context(), "u-1"); err != nil || len(s) != 1 || !s[0].Ready {
		t.Errorf("got sandboxes %+v, %v", s, err)
	}
}

// A file has no status. Without that of the mirror pod, a static pod would become unready until its next probe.
func TestStaticPodIsAdoptedWithTheStatusOfItsMirror(t *testing.T) {
	t.Parallel()
	pod := &corev1.Pod{}
	pod.Namespace, pod.Name = "kube-system", "etcd-n1"
	a := &Adopter{MirrorStatus: func(namespace, name string) *corev1.PodStatus {
		if namespace+"/"+name != "kube-system/etcd-n1" {
			t.Errorf("got %s/%s", namespace, name)
		}
		return &corev1.PodStatus{Phase: corev1.PodRunning}
	}}
	if got := a.WithStatus(pod); got != pod {
		t.Error("a pod of the API server has another status")
	}
	pod.Annotations = map[string]string{"kubernetes.io/config.source": "file"}
	if got := a.WithStatus(pod); got.Status.Phase != corev1.PodRunning || pod.Status.Phase != "" {
		t.Errorf("got %+v, the desired pod has %+v", got.Status, pod.Status)
	}
}

func TestUnsupportedPodIsReportedOnce(t *testing.T) {
	t.Parallel()
	pod := &corev1.Pod{}
	pod.UID = "u1"
	reports := 0
	a := &Adopter{Unsupported: func(p *corev1.Pod, uses []podspec.FeatureUse) { reports += len(uses) }}
	if !a.Supports(pod) || reports > 0 {
		t.Error("a supported pod is reported")
	}
	pod.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
		CSI: &corev1.CSIVolumeSource{Driver: "csi.example.com"},
	}}}
	for range 2 {
		if a.Supports(pod) {
			t.Error("an unsupported pod is supported")
		}
	}
	if reports != 1 {
		t.Errorf("got %d reports, want 1", reports)
	}
}
