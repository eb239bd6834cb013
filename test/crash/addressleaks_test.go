package crash

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/hosts"
)

// TestScenario14_AddressesWithoutSandboxAreReleasedAfterPowerLoss: the power goes while
// sandboxes are being made, and containerd comes back without one that it had.
// In the end addresses are in use by the pods that run and by the sandbox of
// another agent, which containerd still lists, and by nothing else.
func TestScenario14_AddressesWithoutSandboxAreReleasedAfterPowerLoss(t *testing.T) {
	t.Parallel()
	for _, v := range hosts.Versions() {
		t.Run(string(v), func(t *testing.T) {
			t.Parallel()
			n := start(t, options{host: hosts.Options{Version: v}, noStart: true})
			foreign := n.runForeignSandbox()
			theirs := n.addresses()
			port := freePort(t)
			n.startAgent(hosts.AgentOptions{Config: map[string]any{"healthzPort": port}})
			n.putPod(n.simple("lost"))
			n.putPod(n.simple("kept"))
			n.awaitRunning("lost", "kept")
			ids := []string{}
			for _, k := range n.containers("lost") {
				ids = append(ids, k.Id)
			}
			for _, s := range n.sandboxes("lost") {
				ids = append(ids, s.Id)
			}
			late := []string{"late-1", "late-2", "late-3"}
			for _, name := range late {
				n.putPod(n.simple(name))
			}
			n.waitFor("an address of a sandbox that is being made", func() bool { return len(n.addresses()) > len(theirs)+2 })
			n.must("power loss", n.host.PowerLoss())
			n.removeManifest("lost")
			n.leaveOrphanedAddress(strings.Repeat("4e", 32))
			n.must("containerd", n.host.Restart(t.Context()))
			n.must("forget", n.host.DeleteRecords(t.Context(), ids...))
			n.launch()
			alive := append(late, "kept")
			n.awaitRunning(alive...)
			if !n.pollUntil(cleanupTimeout, "as many addresses as pods that run", func() bool {
				return len(n.addresses()) == len(alive)+len(theirs)
			}) {
				n.Fatalf("in use: %v", n.addresses())
			}
			if !slices.Contains(n.addresses(), theirs[0]) {
				n.Errorf("the other agent's %s was taken: %v", theirs[0], n.addresses())
			}
			n.waitFor("what was collected to be counted", func() bool {
				m := n.metrics(port)
				return strings.Contains(m, `berth_leftovers_swept_total{kind="attachment"}`) &&
					strings.Contains(m, `berth_leftovers_swept_total{kind="address"}`)
			})
			if !strings.Contains(n.agent.Log(), "removed leftover of an interrupted CRI call") {
				t.Error("what was collected is not logged")
			}
			_, err := n.host.Runtime.RemovePodSandbox(t.Context(), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: foreign})
			n.must("remove the other agent's sandbox", err)
			for _, name := range alive {
				n.removeManifest(name)
			}
			n.waitNothingLeft()
		})
	}
}

// leaveOrphanedAddress leaves an address as host-local does when the power goes before ADD has
// ended: libcni remembers nothing of it, and no list shows the sandbox.
func (n *node) leaveOrphanedAddress(id string) {
	n.Helper()
	stores, err := filepath.Glob(filepath.Join(n.host.Dir, "cni", "addresses", "*"))
	n.must("find the addresses", err)
	if len(stores) != 1 {
		n.Fatalf("stores of addresses: %v", stores)
	}
	a := n.host.PodCIDR.Addr()
	for range 200 { // far from those that are given out
		a = a.Next()
	}
	n.must("leave an address", os.WriteFile(filepath.Join(stores[0], a.String()), []byte(id+"\r\neth0"), 0o644))
}
