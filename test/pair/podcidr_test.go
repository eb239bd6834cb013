package pair

import (
	"context"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"berth/control"
	"berth/test/hosts"
)

// TestPodsUseNodePodCIDR checks that the server assigns a pod CIDR to the node, that the agent writes it
// to the CNI configuration, and that pods get their addresses from it.
func TestPodsUseNodePodCIDR(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	release, err := hosts.ClaimDefaultNetwork(ctx)
	if err != nil {
		t.Fatal(err)
	}
	cluster := netip.MustParsePrefix("10.207.0.0/16")
	t.Cleanup(func() {
		if err := release(); err != nil {
			t.Error(err)
		}
	})
	p := startPair(t, pairOptions{
		WithoutCNI: true, BerthConfig: map[string]any{"cniPodCIDRs": []string{"node"}, "podRouting": "none"},
		Server: []func(*control.Config){func(c *control.Config) { c.ClusterCIDRs = []netip.Prefix{cluster} }},
	})
	text := p.field("node", p.Node, ".spec.podCIDR")
	podCIDR, err := netip.ParsePrefix(text)
	if err != nil || podCIDR.Bits() != 24 || !cluster.Contains(podCIDR.Addr()) {
		t.Fatalf("got pod CIDR %q, want one in %s", text, cluster)
	}
	conflist, err := os.ReadFile(filepath.Join(p.Host.ConfDir, "10-berth.conflist"))
	if err != nil || !strings.Contains(string(conflist), text) {
		t.Errorf("%s not found in the CNI configuration: %v %s", text, err, conflist)
	}
	for _, name := range []string{"one", "two"} {
		p.Apply(t, p.pod(name, "", "sleep"))
		p.waitForField("pod", name, readyStatus, "True")
		if ip := p.field("pod", name, ".status.podIP"); !podCIDR.Contains(parseAddr(t, ip)) {
			t.Errorf("pod %s: got address %q, want one in %s", name, ip, podCIDR)
		}
	}
	if one, two := p.field("pod", "one", ".status.podIP"), p.field("pod", "two", ".status.podIP"); one == two {
		t.Errorf("both pods have address %s", one)
	}
	p.Kubectl(t, "delete", "pods", "--all", "--timeout=4m")
}
