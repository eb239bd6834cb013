package nodeconfig

import (
	"fmt"
	"strings"
	"testing"
)

func TestTheRangesOfTheDefaultNetwork(t *testing.T) {
	const alone, served = "---\n" + berthHead, "---\n" + berthHead + "kubeconfig: /k\n"
	for _, row := range []struct{ name, in, want, warning string }{
		{"none is asked for", head + "podCIDR: 10.85.0.0/24\n", "[] false", "node.yaml:3: podCIDR does nothing without cniPodCIDRs: [node]"},
		{"those that are named", head + "podCIDR: 10.85.0.0/24\n" + alone + "cniPodCIDRs: [10.86.0.0/24]", "[10.86.0.0/24] false", "podCIDR does nothing without"},
		{"the node's own", head + "podCIDR: 10.85.0.0/24\n" + alone + "cniPodCIDRs: [node]", "[10.85.0.0/24] false", ""},
		{"of both families", head + "podCIDR: 10.85.0.0/24,fd00::/64\n" + alone + "cniPodCIDRs: [node]", "[10.85.0.0/24 fd00::/64] false", ""},
		{"the server's", head + served + "cniPodCIDRs: [node]", "[] true", ""},
		{"the server's, whatever the file says", head + "podCIDR: 10.85.0.0/24\n" + served + "cniPodCIDRs: [node]", "[] true", "podCIDR does nothing on a node that has joined a server"},
	} {
		c, warnings, err := parse(t, row.in, "--hostname-override=n")
		if err != nil {
			t.Errorf("%s: %v", row.name, err)
			continue
		}
		if got := fmt.Sprint(c.Network.CNIPodCIDRs, c.Network.CNIFromNode); got != row.want {
			t.Errorf("%s: got %s, want %s", row.name, got, row.want)
		}
		if got := strings.Join(warnings, "\n"); !strings.Contains(got, row.warning) || (got == "") != (row.warning == "") {
			t.Errorf("%s: warnings %q, want %q", row.name, got, row.warning)
		}
	}
	for in, want := range map[string]string{
		berthHead + "cniPodCIDRs: [node]": "node.yaml:3: cniPodCIDRs: node: this node has joined no server that could give it a range; set podCIDR",
		head + "podCIDR: 10.85.0.1/24\n":  "node.yaml:3: podCIDR: 10.85.0.1/24 has host bits set",
	} {
		if _, _, err := parse(t, in); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}
