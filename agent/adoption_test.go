package agent

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/agent/hostfake"
	"berth/agent/ownership"
	"berth/agent/source"
	"berth/podspec"
)

// fakeAdopter has foreign pods, whose state in the runtime is hidden until they are adopted.
type fakeAdopter struct {
	mu      sync.Mutex
	foreign map[types.UID]ownership.Foreign
	state   ownership.State
	err     error // of the next Adopt
}

func (f *fakeAdopter) Foreign(context.Context) ([]ownership.Foreign, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Collect(maps.Values(f.foreign)), nil
}

func (f *fakeAdopter) Adopt(_ context.Context, _ []*corev1.Pod, records map[types.UID]ownership.Adoption) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.err; err != nil {
		f.err = nil
		return err
	}
	f.state = f.state.WithAdopted(records)
	for uid := range records {
		delete(f.foreign, uid)
	}
	return nil
}

func (f *fakeAdopter) Supports(pod *corev1.Pod) bool { return len(podspec.FeatureUses(pod)) == 0 }

func (f *fakeAdopter) WithStatus(pod *corev1.Pod) *corev1.Pod { return pod }

func (f *fakeAdopter) State() ownership.State {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.state
}

func (f *fakeAdopter) Forget(uid types.UID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.state.Adopted, uid)
}

func (f *fakeAdopter) hides(uid types.UID) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	_, hidden := f.foreign[uid]
	return hidden
}

// leaveForeign runs pods with an agent that stops. For the next agent they are foreign.
func leaveForeign(t *testing.T, h *testHost, pods ...*corev1.Pod) *fakeAdopter {
	t.Helper()
	l := startAgent(t, h, hostfake.LargeNode(), nil, "api")
	l.desire("api", pods...)
	l.until(time.Minute, "the pods run", l.isRunning(pods...))
	l.stop()
	f := &fakeAdopter{foreign: map[types.UID]ownership.Foreign{}}
	for _, p := range pods {
		f.foreign[p.UID] = ownership.Foreign{UID: p.UID, Namespace: p.Namespace, Name: p.Name, Kubelet: true,
			HasDir: true}
	}
	h.adopter = f
	return f
}

func TestForeignPodIsAdoptedWhenItsSourceHasSynced(t *testing.T) {
	withHost(t, func(t *testing.T, h *testHost) {
		wanted, unwanted := hostfake.PodOf("wanted", "a"), hostfake.PodOf("unwanted", "a")
		f := leaveForeign(t, h, wanted, unwanted)
		starts := h.CallCount("start") + h.CallCount("runSandbox")
		f.err = errors.New("disk full")
		l := startAgent(t, h, hostfake.LargeNode(), nil, "api")
		l.send["api"](source.Snapshot{Source: "api", Pods: []*corev1.Pod{wanted}})
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if !f.hides(wanted.UID) || h.CallCount("start")+h.CallCount("runSandbox") != starts {
			t.Fatal("a foreign pod was adopted or started before its source had synced")
		}
		l.desire("api", wanted)
		l.until(time.Minute, "the adopted pod to run", l.isRunning(wanted))
		time.Sleep(time.Minute)
		synctest.Wait()
		if n := h.CallCount("start") + h.CallCount("runSandbox"); n != starts {
			t.Errorf("got %d starts after the adoption, want none", n-starts)
		}
		if !f.hides(unwanted.UID) || len(h.RunningContainers(unwanted.UID)) != 1 {
			t.Error("a foreign pod that no source wants was adopted or stopped")
		}
		l.desire("api")
		l.until(time.Hour, "the adopted pod to be deleted", l.isDeleted(wanted.UID))
		if len(f.State().Adopted) > 0 {
			t.Error("the record of a deleted pod remains")
		}
		l.stop()
	})
}

func TestStaticPodKeepsTheIdentityOfTheKubelet(t *testing.T) {
	withHost(t, func(t *testing.T, h *testHost) {
		kubelet := hostfake.PodOf("web-"+hostfake.LargeNode().Name, "a")
		f := leaveForeign(t, h, kubelet)
		foreign := f.foreign[kubelet.UID]
		foreign.Static = true
		f.foreign[kubelet.UID] = foreign
		file := hostfake.StaticPod(hostfake.PodOf("web", "a"))
		file.Spec.NodeName = hostfake.LargeNode().Name
		for run := range 2 { // the second agent has the record
			l := startAgent(t, h, hostfake.LargeNode(), nil, "file")
			l.desire("file", file)
			l.until(time.Minute, "the static pod to run under the kubelet's UID", l.isRunning(kubelet))
			if _, known := l.agent.StatusCache.Get(file.UID); known || h.CallCount("runSandbox") != 1 {
				t.Errorf("run %d: the pod has a second identity", run)
			}
			l.stop()
		}
		changed := hostfake.StaticPod(hostfake.PodOf("web2", "b"))
		changed.Name, changed.Spec.NodeName = file.Name, file.Spec.NodeName
		l := startAgent(t, h, hostfake.LargeNode(), nil, "file")
		l.desire("file", changed)
		l.until(time.Hour, "the pod of the changed file to run", l.isRunning(changed))
		l.until(time.Hour, "the adopted pod to be deleted", l.isDeleted(kubelet.UID))
		l.stop()
	})
}

// A file that was edited shortly before the takeover leaves the exited sandbox of its previous UID.
func TestStaticPodHasTheUIDOfItsRunningSandbox(t *testing.T) {
	t.Parallel()
	node := hostfake.LargeNode().Name
	file := hostfake.StaticPod(hostfake.PodOf("web", "a"))
	file.Spec.NodeName = node
	now := time.Now()
	for name, c := range map[string]struct{ current, old ownership.Foreign }{
		"ready and exited": {ownership.Foreign{Ready: true, CreatedAt: now}, ownership.Foreign{CreatedAt: now.Add(1)}},
		"both exited":      {ownership.Foreign{CreatedAt: now}, ownership.Foreign{CreatedAt: now.Add(-1)}},
		"both ready":       {ownership.Foreign{Ready: true, CreatedAt: now}, ownership.Foreign{Ready: true}},
	} {
		for range 20 { // the order of a map is random
			a := New(Config{})
			a.foreign = map[types.UID]ownership.Foreign{}
			for uid, f := range map[types.UID]ownership.Foreign{"current": c.current, "a-old": c.old} {
				f.UID, f.Namespace, f.Name = uid, file.Namespace, "web-"+node
				f.Kubelet, f.Static = true, true
				a.foreign[uid] = f
			}
			if uid, _, _ := a.kubeletIdentity(file, ownership.State{}); uid != "current" {
				t.Fatalf("%s: got UID %s", name, uid)
			}
		}
	}
}

// A pod with a volume of a CSI driver, on a node where a user stops the kubelet and starts berth, stays as it is.
func TestPodWithUnsupportedFeatureStaysForeign(t *testing.T) {
	withHost(t, func(t *testing.T, h *testHost) {
		pod, other := hostfake.PodOf("csi", "a"), hostfake.PodOf("other", "a")
		f := leaveForeign(t, h, pod, other)
		calls := h.CallCount("")
		pod = pod.DeepCopy()
		pod.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
			CSI: &corev1.CSIVolumeSource{Driver: "csi.example.com"},
		}}}
		l := startAgent(t, h, hostfake.LargeNode(), nil, "api")
		l.desire("api", pod, other)
		l.until(time.Minute, "the other pod to be adopted", l.isRunning(other))
		l.desire("api", other) // deleted
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if !f.hides(pod.UID) || len(h.RunningContainers(pod.UID)) != 1 {
			t.Errorf("the pod was adopted or stopped: %v", h.Calls[calls:])
		}
		l.stop()
	})
}
