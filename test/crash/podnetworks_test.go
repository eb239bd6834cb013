package crash

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"berth/test/hosts"
)

// blockAddScript is a plugin that waits in ADD as long as a file is there.
const blockAddScript = `#!/bin/sh
cat >/dev/null
case $CNI_COMMAND in
VERSION) echo '{"cniVersion":"1.0.0","supportedVersions":["1.0.0"]}' ;;
ADD) : >DIR/adding; while [ -e DIR/hold ]; do sleep 0.05; done; echo '{"cniVersion":"1.0.0"}' ;;
esac
`

// hangCheckScript is a plugin that hangs in CHECK as long as a file is there.
const hangCheckScript = `#!/bin/sh
cat >/dev/null
case $CNI_COMMAND in
VERSION) echo '{"cniVersion":"1.0.0","supportedVersions":["1.0.0"]}' ;;
ADD) echo '{"cniVersion":"1.0.0"}' ;;
CHECK) echo >>DIR/checking; while [ -e DIR/hang ]; do sleep 0.05; done ;;
esac
`

// TestScenario14_PodNetworksAttachCompletelyAndLeakNothing: the agent is killed while it
// attaches a pod to a network that it asks for, after it has done so and before a
// container runs; containerd forgets such a pod while the plugins of two others hang in
// CHECK; the power goes. A pod runs with all of its networks or not at all, and no address
// is lost.
func TestScenario14_PodNetworksAttachCompletelyAndLeakNothing(t *testing.T) {
	t.Parallel()
	for _, v := range hosts.Versions() {
		t.Run(string(v), func(t *testing.T) {
			t.Parallel()
			n := start(t, options{host: hosts.Options{Version: v}, noStart: true})
			dir := t.TempDir()
			n.installSideNetworks(dir)
			held := func() []string {
				all, err := filepath.Glob(filepath.Join(dir, "addresses", "side", "10.*"))
				n.must("list addresses", err)
				return all
			}
			port := freePort(t)
			n.startAgent(hosts.AgentOptions{
				Config:      map[string]any{"healthzPort": port},
				BerthConfig: map[string]any{"cniBinDirs": []string{filepath.Join(dir, "bin"), n.host.BinDir}},
			})
			asks := func(name string) *corev1.Pod {
				p := n.simple(name)
				p.Annotations = map[string]string{"k8s.v1.cni.cncf.io/networks": "side"}
				return p
			}
			// In ADD: an address is held, and the agent has not heard of it.
			hold := filepath.Join(dir, "hold")
			n.must("hold", os.WriteFile(hold, nil, 0o600))
			n.putPod(asks("torn"))
			n.waitFor("ADD to be under way", func() bool { _, err := os.Stat(filepath.Join(dir, "adding")); return err == nil })
			if len(held()) != 1 {
				t.Errorf("in use: %v", held())
			}
			n.kill()
			n.must("let go", os.Remove(hold))
			n.launch()
			n.awaitRunning("torn")
			n.checkSingleInstance("torn")
			n.waitFor("one address in use", func() bool { return len(held()) == 1 })

			// Between ADD and the start of a container.
			late := asks("late")
			image := late.Spec.Containers[0].Image
			late.Spec.Containers[0].Image = "docker.io/berth/nowhere:1"
			late.Spec.Containers[0].ImagePullPolicy = corev1.PullNever
			n.putPod(late)
			n.waitFor("its networks", func() bool {
				p := n.pods()["late"]
				return strings.Contains(p.Annotations["k8s.v1.cni.cncf.io/network-status"], "side")
			})
			before := held()
			n.kill()
			n.launch()
			late.Spec.Containers[0].Image = image
			n.putPod(late)
			n.awaitRunning("late")
			n.checkSingleInstance("late")
			if len(n.sandboxes("late")) != 1 || strings.Join(held(), " ") != strings.Join(before, " ") {
				t.Errorf("%d sandboxes; addresses %v, before %v", len(n.sandboxes("late")), held(), before)
			}

			// Forgotten by containerd. What plugins do meanwhile holds nothing up.
			n.putPod(asks("other"))
			n.awaitRunning("other")
			n.kill()
			n.removeManifest("torn")
			n.must("forget", n.host.DeleteRecords(t.Context(), n.runtimeIDs("torn")[1:]...))
			hang := filepath.Join(dir, "hang")
			n.must("hang", os.WriteFile(hang, nil, 0o600))
			checked := func() int { text, _ := os.ReadFile(filepath.Join(dir, "checking")); return len(text) }
			first := checked()
			n.launch()
			n.awaitRunning("late")
			n.waitFor("two CHECKs that hang", func() bool { return checked() >= first+2 })
			if !n.pollUntil(cleanupTimeout, "what was forgotten to be collected", func() bool { return len(held()) == 2 }) {
				n.Fatalf("in use: %v", held())
			}
			n.must("let go", os.Remove(hang))
			n.waitFor("what CHECK finds to be told", func() bool { // the last plugin's ADD has reported nothing
				out, err := n.agent.Command(t.Context(), "describe", "late").CombinedOutput()
				return err == nil && strings.Contains(string(out), "NetworkNotAsMade")
			})
			n.removeManifest("other")
			n.waitFor("one address in use", func() bool { return len(held()) == 1 })
			n.waitFor("it to be counted", func() bool {
				return strings.Contains(n.metrics(port), `berth_leftovers_swept_total{kind="network"} 1`)
			})

			// The power goes: DEL has no namespace to work in.
			n.must("power loss", n.host.PowerLoss())
			n.must("containerd", n.host.Restart(t.Context()))
			n.launch()
			n.waitFor("the pod to run again", func() bool { return n.startCount("late", "main") == 2 && n.running("late") })
			n.waitFor("one address in use", func() bool { return len(held()) == 1 })
			n.removeManifest("late")
			n.waitNothingLeft()
			left, err := filepath.Glob(filepath.Join(n.agent.StateDir, "networks", "*.json"))
			if err != nil || len(left)+len(held()) > 0 {
				t.Errorf("left %v %v, %v", left, held(), err)
			}
		})
	}
}

// installSideNetworks gives the node a network beside its own whose addresses and plugin lie in
// a directory.
func (n *node) installSideNetworks(dir string) {
	n.Helper()
	text, err := json.Marshal(map[string]any{
		"cniVersion": "1.0.0", "name": "side", "plugins": []any{
			map[string]any{"type": "hanging"},
			map[string]any{"type": "bridge", "bridge": n.host.Bridge, "ipam": map[string]any{
				"type": "host-local", "dataDir": filepath.Join(dir, "addresses"),
				"ranges": []any{[]any{map[string]any{"subnet": "10.253.7.0/24"}}},
			}},
			map[string]any{"type": "holding"},
		},
	})
	n.must("network", err)
	conf, bin := filepath.Join(n.host.ConfDir, "networks.d"), filepath.Join(dir, "bin")
	n.must("network", os.MkdirAll(conf, 0o755))
	n.must("network", os.MkdirAll(bin, 0o755))
	n.must("network", os.WriteFile(filepath.Join(conf, "side.conflist"), text, 0o644))
	for name, text := range map[string]string{"hanging": hangCheckScript, "holding": blockAddScript} {
		n.must("plugin", hosts.WriteProgram(filepath.Join(bin, name), strings.ReplaceAll(text, "DIR", dir)))
	}
}
