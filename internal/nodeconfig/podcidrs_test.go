package nodeconfig

import (
	"fmt"
	"strings"
	"testing"
)

func TestPodCIDRs(t *testing.T) {
	const standalone, joined = "---\n" + berthHead, "---\n" + berthHead + "kubeconfig: /k\n"
	for _, row := range []struct{ name, in, want, warning string }{
		{"no CNI configuration", head + "podCIDR: 10.85.0.0/24\n", "[] false false",
			"node.yaml:3: podCIDR has no effect without cniPodCIDRs: [node]"},
		{"configured pod CIDRs", head + "podCIDR: 10.85.0.0/24\n" + standalone + "cniPodCIDRs: [10.86.0.0/24]",
			"[10.86.0.0/24] false false", "podCIDR has no effect without"},
		{"pod CIDR of a standalone node", head + "podCIDR: 10.85.0.0/24\n" + standalone + "cniPodCIDRs: [node]",
			"[10.85.0.0/24] false false", ""},
		{"pod CIDRs of both families", head + "podCIDR: 10.85.0.0/24,fd00::/64\n" + standalone + "cniPodCIDRs: [node]",
			"[10.85.0.0/24 fd00::/64] false false", ""},
		{"assigned pod CIDRs", head + joined + "cniPodCIDRs: [node]", "[] true true", ""},
		{"assigned pod CIDRs without routes", head + joined + "cniPodCIDRs: [node]\npodRouting: none", "[] true false",
			""},
		{"assigned pod CIDRs with routes", head + joined + "cniPodCIDRs: [node]\npodRouting: hostGateway",
			"[] true true", ""},
		{"custom CNI configuration", head + joined + "podRouting: none", "[] false false", ""},
		{"assigned pod CIDRs take precedence over podCIDR", head + "podCIDR: 10.85.0.0/24\n" + joined +
			"cniPodCIDRs: [node]", "[] true true", "podCIDR has no effect on a node that has joined a server"},
	} {
		c, warnings, err := parse(t, row.in, "--hostname-override=n")
		if err != nil {
			t.Errorf("%s: %v", row.name, err)
			continue
		}
		if got := fmt.Sprint(c.Network.CNIPodCIDRs, c.Network.PodCIDRsFromNode,
			c.Network.HostGateway); got != row.want {
			t.Errorf("%s: got %s, want %s", row.name, got, row.want)
		}
		if got := strings.Join(warnings, "\n"); !strings.Contains(got, row.warning) ||
			(got == "") != (row.warning == "") {
			t.Errorf("%s: warnings %q, want %q", row.name, got, row.warning)
		}
	}
	for in, want := range map[string]string{
		berthHead + "cniPodCIDRs: [node]": "node.yaml:3: cniPodCIDRs: node: a standalone node has no assigned " +
			"pod CIDR; set podCIDR",
		berthHead + "podRouting: hostGateway": "node.yaml:3: podRouting: hostGateway requires cniPodCIDRs: [node] on " +
			"a node that has joined a server",
		berthHead + "podRouting: vxlan":  "podRouting",
		head + "podCIDR: 10.85.0.1/24\n": "node.yaml:3: podCIDR: 10.85.0.1/24 has host bits set",
	} {
		if _, _, err := parse(t, in); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}
