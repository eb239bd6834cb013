package crash

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1/mutate"
	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/hosts"
	"berth/test/images"
)

// addresses are those that the network has given out.
func (n *node) addresses() []string {
	return slices.DeleteFunc(n.host.PodLeftovers(), func(l string) bool { return !strings.HasPrefix(l, "address ") })
}

// waitingMessageContains reports whether a pod says, to `berth why` and in its status, that it
// waits, with a text in the message.
func (n *node) waitingMessageContains(name, text string) bool {
	why, err := n.client.Why(n.Context(), "default", name)
	if err != nil {
		return false
	}
	for _, w := range why.WaitingFor {
		if strings.Contains(w.Reason+" "+w.Message, text) {
			return true
		}
	}
	return strings.Contains(why.Summary, text)
}

// waitingReason is what the status gives as the reason of the first container.
func (n *node) waitingReason(name string) string {
	p := n.pods()[name]
	for _, s := range p.Status.ContainerStatuses {
		if s.State.Waiting != nil {
			return s.State.Waiting.Reason
		}
	}
	return ""
}

// newRegistry makes a registry that has an image under another name, and with a label
// of that name, so that it is no image that the runtime has already. A runtime
// that has its layers will not ask for them.
func newRegistry(t *testing.T, ref string, image func(context.Context, string) (images.Archive, error)) *images.Registry {
	t.Helper()
	r, err := images.NewRegistry(images.RegistryOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	dir, err := images.CacheDir()
	if err != nil {
		t.Fatal(err)
	}
	a, err := image(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	img, err := images.Load(a.Path)
	if err != nil {
		t.Fatal(err)
	}
	c, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	config := *c.Config.DeepCopy()
	config.Labels = map[string]string{"of": ref}
	if img, err = mutate.Config(img, config); err != nil {
		t.Fatal(err)
	}
	if err := r.PushImage(t.Context(), ref, img); err != nil {
		t.Fatal(err)
	}
	return r
}

const pulledRef = "registry.example/berth/pulled:1"

// TestScenario16_PodDeletedDuringPullTerminatesAtOnce, and nothing of it starts
// when the pull is over.
func TestScenario16_PodDeletedDuringPullTerminatesAtOnce(t *testing.T) {
	t.Parallel()
	for _, v := range hosts.Versions() {
		t.Run(string(v), func(t *testing.T) {
			t.Parallel()
			n := start(t, options{host: hosts.Options{Version: v}})
			r := newRegistry(t, pulledRef, images.Bash)
			n.must("registry", r.HostsToml(n.host.CertsDir(), "registry.example"))
			release := r.BlockBlobs("berth/pulled")
			for _, killed := range []bool{false, true} {
				p := n.simple("slow")
				p.Spec.Containers[0].Image = pulledRef
				p.Spec.Containers[0].Command = []string{"sh", "-c", "echo began >>/witness/slow.main; sleep 1000"}
				n.putPod(p)
				n.waitFor("the pull to be held up", func() bool { return r.Counts("berth/pulled").Blocked > 0 && len(n.sandboxes("slow")) == 1 })
				if killed {
					n.kill()
					n.launch()
					n.waitFor("the pull to be held up again", func() bool { return r.Counts("berth/pulled").Blocked > 0 })
				}
				n.removeManifest("slow")
				n.waitNothingLeft() // the pull is held up for far longer than is waited here
			}
			release()
			// The start of another pod proves that nothing is waited for.
			n.putPod(n.simple("next"))
			n.awaitRunning("next")
			if ran := n.startCount("slow", "main"); ran != 0 {
				t.Errorf("it ran %d times", ran)
			}
			n.removeManifest("next")
			n.waitNothingLeft()
		})
	}
}

// TestPodRecoversFromUnreachableRegistry: it says what it waits for, and
// starts by itself once there is a registry. The others do not notice.
func TestPodRecoversFromUnreachableRegistry(t *testing.T) {
	t.Parallel()
	n := start(t, options{})
	n.putPod(n.simple("calm"))
	n.awaitRunning("calm")
	r := newRegistry(t, pulledRef, images.Testbox)
	n.must("no registry", n.host.SetRegistry("registry.example", "server = \"http://127.0.0.1:1\"\n"))
	p := n.simple("poor")
	p.Spec.Containers[0].Image = pulledRef
	n.putPod(p)
	n.waitFor("the reason", func() bool {
		reason := n.waitingReason("poor")
		return (reason == "ErrImagePull" || reason == "ImagePullBackOff") && n.waitingMessageContains("poor", "registry.example/berth/pulled:1")
	})
	n.must("registry", r.HostsToml(n.host.CertsDir(), "registry.example"))
	n.awaitRunning("poor", "calm")
	n.checkRanOnce("poor")
	n.checkRanOnce("calm")
	n.removeManifest("poor")
	n.removeManifest("calm")
	n.waitNothingLeft()
}

// TestPodRecoversFromMissingNetwork: the network's configuration goes away
// while pods run, and comes back.
func TestPodRecoversFromMissingNetwork(t *testing.T) {
	t.Parallel()
	for _, v := range hosts.Versions() {
		t.Run(string(v), func(t *testing.T) {
			t.Parallel()
			n := start(t, options{host: hosts.Options{Version: v}})
			n.putPod(n.simple("calm"))
			n.awaitRunning("calm")
			before := n.liveObjects("")
			n.must("remove the network", n.host.RemoveCNI())
			n.waitFor("the agent to know it", func() bool { return strings.Contains(n.agent.Log(), "ready=false") })
			n.putPod(n.simple("poor"))
			n.waitFor("the reason", func() bool {
				p := n.pods()["poor"]
				return p.Status.Phase == corev1.PodPending && n.waitingMessageContains("poor", "NetworkNotReady")
			})
			if s := n.sandboxes("poor"); len(s) > 0 {
				t.Errorf("a sandbox without a network: %v", s)
			}
			n.kill()
			n.launch()
			n.awaitRunning("calm")
			n.must("network", n.host.WriteCNI())
			n.awaitRunning("poor", "calm")
			n.checkRanOnce("poor")
			n.checkRanOnce("calm")
			n.checkStillLive(before)
			n.removeManifest("poor")
			n.removeManifest("calm")
			n.waitNothingLeft()
		})
	}
}

// TestScenario18_ForeignSandboxesAreNotTouched: sandboxes of others in the same
// runtime, and directories that are not of pods.
func TestScenario18_ForeignSandboxesAreNotTouched(t *testing.T) {
	t.Parallel()
	n := start(t, options{noStart: true})
	foreign := n.runForeignSandbox()
	n.startAgent(hosts.AgentOptions{})
	n.putPod(n.simple("ours"))
	n.awaitRunning("ours")
	keep := filepath.Join(n.agent.RootDir, "pods", "not a pod")
	n.must("a folder", os.MkdirAll(keep, 0o700))
	n.kill()
	n.launch()
	n.awaitRunning("ours")
	n.removeManifest("ours")
	n.waitFor("ours to go", func() bool { return len(n.pods()) == 0 && len(n.sandboxes("ours")) == 0 })
	n.checkStillLive(map[string]string{foreign: "the sandbox of somebody else"})
	if _, err := os.Stat(keep); err != nil {
		t.Error(err)
	}
}

// runForeignSandbox makes a sandbox as another agent would.
func (n *node) runForeignSandbox() string {
	n.Helper()
	sb, err := n.host.Runtime.RunPodSandbox(n.Context(), &runtimeapi.RunPodSandboxRequest{Config: &runtimeapi.PodSandboxConfig{
		Metadata:     &runtimeapi.PodSandboxMetadata{Name: "foreign", Namespace: "default", Uid: "8e1b8b3e-0000-4000-8000-000000000001"},
		LogDirectory: n.TempDir(),
		Labels: map[string]string{
			"io.kubernetes.pod.name": "foreign", "io.kubernetes.pod.namespace": "default",
			"io.kubernetes.pod.uid": "8e1b8b3e-0000-4000-8000-000000000001",
		},
		Linux: &runtimeapi.LinuxPodSandboxConfig{CgroupParent: n.host.CgroupRoot + "/foreign"},
	}})
	n.must("run a sandbox", err)
	n.must("run a sandbox", n.host.WaitRuncInit(n.Context()))
	return sb.PodSandboxId
}
