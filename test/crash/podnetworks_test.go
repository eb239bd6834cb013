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

// blockAddScript is a CNI plugin that blocks ADD while the file DIR/hold exists.
const blockAddScript = `#!/bin/sh
cat >/dev/null
case $CNI_COMMAND in
VERSION) echo '{"cniVersion":"1.0.0","supportedVersions":["1.0.0"]}' ;;
ADD) : >DIR/adding; while [ -e DIR/hold ]; do sleep 0.05; done; echo '{"cniVersion":"1.0.0"}' ;;
esac
`

// hangCheckScript is a CNI plugin that blocks CHECK while the file DIR/hang exists.
const hangCheckScript = `#!/bin/sh
cat >/dev/null
case $CNI_COMMAND in
VERSION) echo '{"cniVersion":"1.0.0","supportedVersions":["1.0.0"]}' ;;
ADD) echo '{"cniVersion":"1.0.0"}' ;;
CHECK) echo >>DIR/checking; while [ -e DIR/hang ]; do sleep 0.05; done ;;
esac
`

// TestScenario14_PodNetworksAttachCompletelyAndLeakNothing: a pod runs only if all of its additional networks
// are attached, and no address leaks, in these cases:
//   - The agent is killed while it attaches a network.
//   - The agent is killed between the attachment and the start of a container.
//   - containerd loses the records of a pod while the CNI plugins of two other pods hang in CHECK.
//   - The power fails.
func TestScenario14_PodNetworksAttachCompletelyAndLeakNothing(t *testing.T) {
	t.Parallel()
	for _, v := range hosts.DividedVersions(t.Name()) {
		t.Run(string(v), func(t *testing.T) {
			t.Parallel()
			n := start(t, options{host: hosts.Options{Version: v}, noStart: true})
			dir := t.TempDir()
			n.installSideNetworks(dir)
			addressesInUse := func() []string {
				all, err := filepath.Glob(filepath.Join(dir, "addresses", "side", "10.*"))
				n.must("list addresses", err)
				return all
			}
			port := freePort(t)
			n.startAgent(hosts.AgentOptions{
				Config:      map[string]any{"healthzPort": port},
				BerthConfig: map[string]any{"cniBinDirs": []string{filepath.Join(dir, "bin"), n.host.BinDir}},
			})
			podWithNetwork := func(name string) *corev1.Pod {
				p := n.simple(name)
				p.Annotations = map[string]string{"k8s.v1.cni.cncf.io/networks": "side"}
				return p
			}
			// During ADD: an address is in use, and the agent does not have the result yet.
			blockFile := filepath.Join(dir, "hold")
			n.must("block ADD", os.WriteFile(blockFile, nil, 0o600))
			n.putPod(podWithNetwork("interrupted"))
			n.waitFor("ADD to be in progress", func() bool {
				_, err := os.Stat(filepath.Join(dir, "adding"))
				return err == nil
			})
			if len(addressesInUse()) != 1 {
				t.Errorf("addresses in use: got %v, want one", addressesInUse())
			}
			n.kill()
			n.must("release ADD", os.Remove(blockFile))
			n.launch()
			n.awaitRunning("interrupted")
			n.checkSingleInstance("interrupted")
			n.waitFor("one address in use", func() bool { return len(addressesInUse()) == 1 })

			// Between ADD and the start of a container.
			late := podWithNetwork("late")
			image := late.Spec.Containers[0].Image
			late.Spec.Containers[0].Image = "docker.io/berth/missing:1"
			late.Spec.Containers[0].ImagePullPolicy = corev1.PullNever
			n.putPod(late)
			n.waitFor("network status of pod late", func() bool {
				p := n.pods()["late"]
				return strings.Contains(p.Annotations["k8s.v1.cni.cncf.io/network-status"], "side")
			})
			before := addressesInUse()
			n.kill()
			n.launch()
			late.Spec.Containers[0].Image = image
			n.putPod(late)
			n.awaitRunning("late")
			n.checkSingleInstance("late")
			if len(n.sandboxes("late")) != 1 || strings.Join(addressesInUse(), " ") != strings.Join(before, " ") {
				t.Errorf("got %d sandboxes, want 1; addresses: got %v, want %v", len(n.sandboxes("late")),
					addressesInUse(), before)
			}

			// containerd loses the records of a pod. Hanging plugins do not block the cleanup.
			n.putPod(podWithNetwork("other"))
			n.awaitRunning("other")
			n.kill()
			n.removeManifest("interrupted")
			n.must("delete records", n.host.DeleteRecords(t.Context(), n.runtimeIDs("interrupted")[1:]...))
			hangFile := filepath.Join(dir, "hang")
			n.must("block CHECK", os.WriteFile(hangFile, nil, 0o600))
			checkCalls := func() int { text, _ := os.ReadFile(filepath.Join(dir, "checking")); return len(text) }
			first := checkCalls()
			n.launch()
			n.awaitRunning("late")
			n.waitFor("two hanging CHECK calls", func() bool { return checkCalls() >= first+2 })
			if !n.pollUntil(cleanupTimeout, "address of the lost pod to be released",
				func() bool { return len(addressesInUse()) == 2 }) {
				n.Fatalf("addresses in use: %v", addressesInUse())
			}
			n.must("release CHECK", os.Remove(hangFile))
			n.waitFor("event NetworkNotAsMade", func() bool { // the last plugin's ADD returned an empty result
				out, err := n.agent.Command(t.Context(), "describe", "late").CombinedOutput()
				return err == nil && strings.Contains(string(out), "NetworkCheckFailed")
			})
			n.removeManifest("other")
			n.waitFor("one address in use", func() bool { return len(addressesInUse()) == 1 })
			n.waitFor("metric berth_leaks_removed_total for the network", func() bool {
				return strings.Contains(n.metrics(port), `berth_leaks_removed_total{kind="network"} 1`)
			})

			// After a power loss, the network namespaces do not exist for DEL.
			n.must("power loss", n.host.PowerLoss())
			n.must("restart containerd", n.host.Restart(t.Context()))
			n.launch()
			n.waitFor("pod late to run again", func() bool {
				return n.startCount("late", "main") == 2 && n.running("late")
			})
			n.waitFor("one address in use", func() bool { return len(addressesInUse()) == 1 })
			n.removeManifest("late")
			n.waitNothingLeft()
			left, err := filepath.Glob(filepath.Join(n.agent.StateDir, "networks", "*.json"))
			if err != nil || len(left)+len(addressesInUse()) > 0 {
				t.Errorf("leaked: files %v, addresses %v, %v", left, addressesInUse(), err)
			}
		})
	}
}

// installSideNetworks configures an additional network named side. Its plugins and addresses are in dir.
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
	n.must("encode the network configuration", err)
	conf, bin := filepath.Join(n.host.ConfDir, "networks.d"), filepath.Join(dir, "bin")
	n.must("create the configuration directory", os.MkdirAll(conf, 0o755))
	n.must("create the plugin directory", os.MkdirAll(bin, 0o755))
	n.must("write the network configuration", os.WriteFile(filepath.Join(conf, "side.conflist"), text, 0o644))
	for name, text := range map[string]string{"hanging": hangCheckScript, "holding": blockAddScript} {
		n.must("write a plugin", hosts.WriteProgram(filepath.Join(bin, name), strings.ReplaceAll(text, "DIR", dir)))
	}
}
