package status_test

import (
	"maps"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/agent/plan"
	"berth/agent/status"
)

// twoPods is a cache with a running pod and one whose container has exited.
func twoPods() *status.Cache {
	c := status.New()
	put := func(name string, phase corev1.PodPhase, o plan.Observed) {
		pod := &corev1.Pod{Spec: corev1.PodSpec{Volumes: []corev1.Volume{
			{Name: "data", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
			{Name: "key", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{}}},
		}}}
		pod.Annotations = map[string]string{"kubernetes.io/config.source": map[bool]string{
			true: "file", false: "api"}[name == "done"]}
		pod.Name, pod.UID = name, types.UID(name)
		c.Put(&status.Snapshot{Pod: pod, Status: corev1.PodStatus{Phase: phase}, Observed: o})
	}
	put("done", corev1.PodSucceeded, plan.Observed{
		Containers: []plan.Container{{ID: "1", Name: "a", Image: "old", State: plan.Exited}},
		Images:     map[string]plan.Image{"new": {ID: "sha256:2", Ref: "new@sha256:3"}},
	})
	put("web", corev1.PodRunning, plan.Observed{
		Volumes:   map[string]plan.VolumeStatus{"data": {}, "unwanted": {}},
		Sandboxes: []plan.Sandbox{{ID: "s", Ready: true}},
		Containers: []plan.Container{
			{ID: "2", Name: "a", Image: "img", ImageID: "sha256:1", State: plan.Running},
			{ID: "3", Name: "b", Image: "img", ImageID: "sha256:1", State: plan.Exited},
		},
	})
	return c
}

func TestRunningPodsListsRunningContainers(t *testing.T) {
	t.Parallel()
	all := twoPods().RunningPods().Items
	if len(all) != 1 || all[0].Name != "web" || len(all[0].Spec.Containers) != 1 ||
		all[0].Spec.Containers[0].Name != "a" || all[0].Spec.Containers[0].Image != "img" {
		t.Errorf("got %+v", all)
	}
}

func TestObjectsAreAnnotated(t *testing.T) {
	t.Parallel()
	list := twoPods().Objects(func(p *corev1.Pod) *corev1.Pod {
		p = p.DeepCopy()
		p.Labels = map[string]string{"seen": p.Name}
		return p
	})
	if len(list.Items) != 2 || list.Items[0].Labels["seen"] != "done" ||
		list.Items[1].Status.Phase != corev1.PodRunning {
		t.Errorf("got %+v", list.Items)
	}
}

func TestImagesInUse(t *testing.T) {
	t.Parallel()
	got := slices.Sorted(maps.Keys(twoPods().ImagesInUse()))
	if want := "img new new@sha256:3 old sha256:1 sha256:2"; strings.Join(got, " ") != want {
		t.Errorf("got %q, want %s", got, want)
	}
}

func TestCountsAsOneLine(t *testing.T) {
	t.Parallel()
	n := twoPods().Count()
	if want := "2 pods: 1 running, 0 pending, 1 succeeded, 0 failed"; n.String() != want {
		t.Errorf("got %s, want %s", n, want)
	}
	if n.SandboxReady != 1 || n.Containers["exited"] != 2 || n.Containers["running"] != 1 {
		t.Errorf("got %+v", n)
	}
}

func TestCountsVolumesByPlugin(t *testing.T) {
	t.Parallel()
	n := twoPods().Count()
	const emptyDir, secret = "kubernetes.io/empty-dir", "kubernetes.io/secret"
	if want := map[string]int{emptyDir: 2, secret: 2}; !maps.Equal(n.Desired, want) {
		t.Errorf("desired: got %v, want %v", n.Desired, want)
	}
	if want := map[string]int{emptyDir: 1}; !maps.Equal(n.Mounted, want) {
		t.Errorf("mounted: got %v, want %v", n.Mounted, want)
	}
	if n.Static != 1 {
		t.Errorf("got %d static pods, want 1", n.Static)
	}
}

func TestRunningInstance(t *testing.T) {
	t.Parallel()
	s, _ := twoPods().Get("web")
	if k, err := s.RunningInstance("a"); err != nil || k.ID != "2" {
		t.Errorf("got %+v, %v", k, err)
	}
	if _, err := s.RunningInstance("b"); err == nil || err.Error() != `container "b" is exited, not running` {
		t.Errorf("exited container: got error %v", err)
	}
	if _, err := s.RunningInstance("c"); err == nil {
		t.Error("unknown container: got no error")
	}
}

func TestWaitingForName(t *testing.T) {
	t.Parallel()
	c := status.New()
	put := func(uid, name string, syncs int64) *status.Snapshot {
		pod := &corev1.Pod{}
		pod.Namespace, pod.Name, pod.UID = "default", name, types.UID(uid)
		s := &status.Snapshot{Pod: pod, Syncs: syncs}
		c.Put(s)
		return s
	}
	terminating := put("old", "web", 3)
	put("new", "web", 0)
	put("other", "db", 0)
	if got := c.WaitingForName(terminating); len(got) != 1 || got[0].Pod.UID != "new" {
		t.Errorf("got %+v", got)
	}
}
