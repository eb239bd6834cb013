package nodeconfig

import (
	"fmt"
	"strings"
	"testing"
)

func TestPodCIDRs(t *testing.T) {
	const alone, served = "---\n" + berthHead, "---\n" + berthHead + "kubeconfig: /k\n"
	for _, row := range []struct{ name, in, want, warning string }{
		{"none is asked for", head + "podCIDR: 10.85.0.0/24\n", "[] false false", "node.yaml:3: podCIDR does nothing without cniPodCIDRs: [node]"},
		{"those that are named", head + "podCIDR: 10.85.0.0/24\n" + alone + "cniPodCIDRs: [10.86.0.0/24]", "[10.86.0.0/24] false false", "podCIDR does nothing without"},
		{"the node's own", head + "podCIDR: 10.85.0.0/24\n" + alone + "cniPodCIDRs: [node]", "[10.85.0.0/24] false false", ""},
		{"of both families", head + "podCIDR: 10.85.0.0/24,fd00::/64\n" + alone + "cniPodCIDRs: [node]", "[10.85.0.0/24 fd00::/64] false false", ""},
		{"the server's", head + served + "cniPodCIDRs: [node]", "[] true true", ""},
		{"the server's, and somebody else's routes", head + served + "cniPodCIDRs: [node]\npodRouting: none", "[] true false", ""},
		{"the server's, and routes of its own", head + served + "cniPodCIDRs: [node]\npodRouting: hostGateway", "[] true true", ""},
		{"a network of the user's own", head + served + "podRouting: none", "[] false false", ""},
		{"the server's, whatever the file says", head + "podCIDR: 10.85.0.0/24\n" + served + "cniPodCIDRs: [node]", "[] true true", "podCIDR does nothing on a node that has joined a server"},
	} {
		c, warnings, err := parse(t, row.in, "--hostname-override=n")
		if err != nil {
			t.Errorf("%s: %v", row.name, err)
			continue
		}
		if got := fmt.Sprint(c.Network.CNIPodCIDRs, c.Network.PodCIDRsFromNode, c.Network.HostGateway); got != row.want {
			t.Errorf("%s: got %s, want %s", row.name, got, row.want)
		}
		if got := strings.Join(warnings, "\n"); !strings.Contains(got, row.warning) || (got == "") != (row.warning == "") {
			t.Errorf("%s: warnings %q, want %q", row.name, got, row.warning)
		}
	}
	for in, want := range map[string]string{
		berthHead + "cniPodCIDRs: [node]":     "node.yaml:3: cniPodCIDRs: node: this node has joined no server that could give it a range; set podCIDR",
		berthHead + "podRouting: hostGateway": "node.yaml:3: podRouting: hostGateway only goes with cniPodCIDRs: [node] on a node that has joined a server",
		berthHead + "podRouting: vxlan":       "podRouting",
		head + "podCIDR: 10.85.0.1/24\n":      "node.yaml:3: podCIDR: 10.85.0.1/24 has host bits set",
	} {
		if _, _, err := parse(t, in); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}
