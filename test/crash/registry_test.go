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

// addresses returns the addresses in use on the node's network.
func (n *node) addresses() []string {
	return slices.DeleteFunc(n.host.PodResources(), func(l string) bool { return !strings.HasPrefix(l, "address ") })
}

// waitingMessageContains reports whether `berth why` contains a text in its summary or in a reason that the pod
// waits for.
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

// waitingReason returns the reason of the first waiting container, or an empty string.
func (n *node) waitingReason(name string) string {
	p := n.pods()[name]
	for _, s := range p.Status.ContainerStatuses {
		if s.State.Waiting != nil {
			return s.State.Waiting.Reason
		}
	}
	return ""
}

// newRegistry starts a registry that serves an image as ref. A label makes it different from the images that
// the runtime has. The runtime does not pull layers that it already has.
func newRegistry(t *testing.T, ref string, image func(context.Context, string) (images.Archive,
	error)) *images.Registry {
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

// TestScenario16_PodDeletedDuringPullTerminatesAtOnce: a pod that is deleted during its image pull terminates
// without waiting for the pull. No container starts after the pull.
func TestScenario16_PodDeletedDuringPullTerminatesAtOnce(t *testing.T) {
	t.Parallel()
	for _, v := range hosts.DividedVersions(t.Name()) {
		t.Run(string(v), func(t *testing.T) {
			t.Parallel()
			n := start(t, options{host: hosts.Options{Version: v}})
			r := newRegistry(t, pulledRef, images.Bash)
			n.must("configure the registry", r.HostsToml(n.host.CertsDir(), "registry.example"))
			release := r.BlockBlobs("berth/pulled")
			for _, killAgent := range []bool{false, true} {
				p := n.simple("slow")
				p.Spec.Containers[0].Image = pulledRef
				p.Spec.Containers[0].Command = []string{"sh", "-c", "echo started >>/witness/slow.main; sleep 1000"}
				n.putPod(p)
				n.waitFor("pull to be blocked", func() bool {
					return r.Counts("berth/pulled").Blocked > 0 && len(n.sandboxes("slow")) == 1
				})
				if killAgent {
					n.kill()
					n.launch()
					n.waitFor("pull to be blocked again", func() bool { return r.Counts("berth/pulled").Blocked > 0 })
				}
				n.removeManifest("slow")
				n.waitNothingLeft() // the pull is still blocked
			}
			release()
			// When another pod runs, the agent has processed the end of the pull.
			n.putPod(n.simple("next"))
			n.awaitRunning("next")
			if ran := n.startCount("slow", "main"); ran != 0 {
				t.Errorf("container main of the deleted pod: got %d starts, want 0", ran)
			}
			n.removeManifest("next")
			n.waitNothingLeft()
		})
	}
}

// TestPodRecoversFromUnreachableRegistry: a pod whose registry is unreachable reports the reason, and starts
// when the registry is available. Other pods are not affected.
func TestPodRecoversFromUnreachableRegistry(t *testing.T) {
	t.Parallel()
	n := start(t, options{})
	n.putPod(n.simple("stable"))
	n.awaitRunning("stable")
	r := newRegistry(t, pulledRef, images.Testbox)
	n.must("configure an unreachable registry", n.host.SetRegistry("registry.example",
		"server = \"http://127.0.0.1:1\"\n"))
	p := n.simple("pending")
	p.Spec.Containers[0].Image = pulledRef
	n.putPod(p)
	n.waitFor("reason that the pod is pending", func() bool {
		reason := n.waitingReason("pending")
		return (reason == "ErrImagePull" || reason == "ImagePullBackOff") &&
			n.waitingMessageContains("pending", "registry.example/berth/pulled:1")
	})
	n.must("configure the registry", r.HostsToml(n.host.CertsDir(), "registry.example"))
	n.awaitRunning("pending", "stable")
	n.checkRanOnce("pending")
	n.checkRanOnce("stable")
	n.removeManifest("pending")
	n.removeManifest("stable")
	n.waitNothingLeft()
}

// TestPodRecoversFromMissingNetwork: the CNI configuration is removed while pods run and is written again. A new
// pod waits for it, and running pods are not affected.
func TestPodRecoversFromMissingNetwork(t *testing.T) {
	t.Parallel()
	for _, v := range hosts.DividedVersions(t.Name()) {
		t.Run(string(v), func(t *testing.T) {
			t.Parallel()
			n := start(t, options{host: hosts.Options{Version: v}})
			n.putPod(n.simple("stable"))
			n.awaitRunning("stable")
			before := n.liveObjects("")
			n.must("remove the CNI configuration", n.host.RemoveCNI())
			n.waitFor("agent to report that the network is not ready",
				func() bool { return strings.Contains(n.agent.Log(), "ready=false") })
			n.putPod(n.simple("pending"))
			n.waitFor("reason that the pod is pending", func() bool {
				p := n.pods()["pending"]
				return p.Status.Phase == corev1.PodPending && n.waitingMessageContains("pending", "NetworkNotReady")
			})
			if s := n.sandboxes("pending"); len(s) > 0 {
				t.Errorf("got sandboxes %v without a network, want none", s)
			}
			n.kill()
			n.launch()
			n.awaitRunning("stable")
			n.must("write the CNI configuration", n.host.WriteCNI())
			n.awaitRunning("pending", "stable")
			n.checkRanOnce("pending")
			n.checkRanOnce("stable")
			n.checkStillLive(before)
			n.removeManifest("pending")
			n.removeManifest("stable")
			n.waitNothingLeft()
		})
	}
}

// TestScenario18_ForeignSandboxesAreNotTouched: the agent does not touch sandboxes of other clients of the
// runtime, nor directories that do not belong to a pod.
func TestScenario18_ForeignSandboxesAreNotTouched(t *testing.T) {
	t.Parallel()
	n := start(t, options{noStart: true})
	foreign := n.runForeignSandbox()
	n.startAgent(hosts.AgentOptions{})
	n.putPod(n.simple("ours"))
	n.awaitRunning("ours")
	foreignDir := filepath.Join(n.agent.RootDir, "pods", "not a pod")
	n.must("create a directory", os.MkdirAll(foreignDir, 0o700))
	n.kill()
	n.launch()
	n.awaitRunning("ours")
	n.removeManifest("ours")
	n.waitFor("pod ours to be deleted", func() bool { return len(n.pods()) == 0 && len(n.sandboxes("ours")) == 0 })
	n.checkStillLive(map[string]string{foreign: "foreign sandbox"})
	if _, err := os.Stat(foreignDir); err != nil {
		t.Error(err)
	}
}

// runForeignSandbox creates a sandbox as another agent would, without berth's owner label. It returns its ID.
func (n *node) runForeignSandbox() string {
	n.Helper()
	sb, err := n.host.Runtime.RunPodSandbox(n.Context(),
		&runtimeapi.RunPodSandboxRequest{Config: &runtimeapi.PodSandboxConfig{
			Metadata: &runtimeapi.PodSandboxMetadata{Name: "foreign", Namespace: "default",
				Uid: "8e1b8b3e-0000-4000-8000-000000000001"},
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
