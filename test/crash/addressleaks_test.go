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

// TestScenario14_AddressesWithoutSandboxAreReleasedAfterPowerLoss: the power fails while containerd
// creates sandboxes, and containerd has lost the records of one sandbox afterwards. An address without any
// record of its owner stays as long as containerd lists a sandbox of another agent, because it can be that
// agent's. Finally, only running pods hold addresses.
func TestScenario14_AddressesWithoutSandboxAreReleasedAfterPowerLoss(t *testing.T) {
	t.Parallel()
	for _, v := range hosts.DividedVersions(t.Name()) {
		t.Run(string(v), func(t *testing.T) {
			t.Parallel()
			n := start(t, options{host: hosts.Options{Version: v}, noStart: true})
			foreign := n.runForeignSandbox()
			foreignAddresses := n.addresses()
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
			latePods := []string{"late-1", "late-2", "late-3"}
			for _, name := range latePods {
				n.putPod(n.simple(name))
			}
			n.waitFor("address of a sandbox that is being created",
				func() bool { return len(n.addresses()) > len(foreignAddresses)+2 })
			n.must("power loss", n.host.PowerLoss())
			n.removeManifest("lost")
			n.leaveOrphanedAddress(strings.Repeat("4e", 32))
			n.must("restart containerd", n.host.Restart(t.Context()))
			n.must("delete the records of pod lost", n.host.DeleteRecords(t.Context(), ids...))
			n.launch()
			remaining := append(latePods, "kept")
			n.awaitRunning(remaining...)
			n.waitAddresses(len(remaining) + len(foreignAddresses) + 1)
			if !slices.Contains(n.addresses(), foreignAddresses[0]) {
				n.Errorf("address %s of the other agent was released; in use: %v", foreignAddresses[0], n.addresses())
			}
			_, err := n.host.Runtime.RemovePodSandbox(t.Context(),
				&runtimeapi.RemovePodSandboxRequest{PodSandboxId: foreign})
			n.must("remove the other agent's sandbox", err)
			n.waitAddresses(len(remaining))
			n.waitFor("metric berth_leaks_removed_total for attachments and addresses", func() bool {
				m := n.metrics(port)
				return strings.Contains(m, `berth_leaks_removed_total{kind="attachment"}`) &&
					strings.Contains(m, `berth_leaks_removed_total{kind="address"}`)
			})
			if !strings.Contains(n.agent.Log(), "leaked object removed") {
				t.Error("no log message for the removed objects")
			}
			for _, name := range remaining {
				n.removeManifest(name)
			}
			n.waitNothingLeft()
		})
	}
}

// waitAddresses waits until that many addresses are in use.
func (n *node) waitAddresses(count int) {
	n.Helper()
	if !n.pollUntil(cleanupTimeout, "unused addresses to be released", func() bool {
		return len(n.addresses()) == count
	}) {
		n.Fatalf("want %d addresses, in use: %v", count, n.addresses())
	}
}

// leaveOrphanedAddress reserves an address as host-local does when the power fails during ADD: libcni
// has no cached result for it, and containerd does not list the sandbox.
func (n *node) leaveOrphanedAddress(id string) {
	n.Helper()
	dirs, err := filepath.Glob(filepath.Join(n.host.Dir, "cni", "addresses", "*"))
	n.must("list address directories", err)
	if len(dirs) != 1 {
		n.Fatalf("got address directories %v, want one", dirs)
	}
	a := n.host.PodCIDR.Addr()
	for range 200 { // an address that host-local does not assign during the test
		a = a.Next()
	}
	n.must("reserve an address", os.WriteFile(filepath.Join(dirs[0], a.String()), []byte(id+"\r\neth0"), 0o644))
}
