package cli

import (
	"strings"
	"testing"

	"berth/nodeapi"
)

func TestWhyShowsNetworkPolicies(t *testing.T) {
	t.Parallel()
	isolated := nodeapi.PolicyDirection{Isolated: true, DroppedPackets: 12, Policies: []nodeapi.PodPolicy{
		{Name: "web", AllowedConnections: 3, Allows: []string{"from 1 pods of namespace n pods(a=b) on TCP 80"}},
		{Name: "deny\x1b[2J"},
	}}
	for _, c := range []struct {
		name string
		of   *nodeapi.PodNetworkPolicies
		want string
	}{
		{"not enforced", nil, ""},
		{"not isolated", &nodeapi.PodNetworkPolicies{Installed: true}, ""},
		{"unknown", &nodeapi.PodNetworkPolicies{Installed: true, Error: "no netlink"},
			"\nNetwork policies:\n  unknown: no netlink\n"},
		{"isolated", &nodeapi.PodNetworkPolicies{Ingress: isolated}, `
Network policies, not installed yet:
  Ingress: 12 packets dropped that no policy allows
    web: 3 connections of this node allowed
      allows from 1 pods of namespace n pods(a=b) on TCP 80
    deny?[2J: 0 connections of this node allowed
      allows nothing
  Egress: not isolated
`},
	} {
		var b strings.Builder
		writeNetworkPolicies(&b, c.of)
		if got := b.String(); strings.ReplaceAll(got, clean("\x1b"), "?") != c.want {
			t.Errorf("%s: got\n%s\nwant\n%s", c.name, got, c.want)
		}
	}
}
