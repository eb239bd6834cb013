package main

import (
	"net/netip"
	"slices"
	"testing"

	"berth/test/hosts"
)

func TestSelection(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		selection
		processes []string
		lan       bool
	}{
		"one group": {selection{sigs: []string{"network"}},
			[]string{"services", "dns", "network", "serial-network"}, true},
		"other groups": {selection{sigs: []string{"apps"}},
			[]string{"statefulset", "jobs", "apps", "garbage-collector", "serial-apps"}, false},
		"focus ignores groups": {selection{sigs: []string{"network"}, focus: "x", labels: "y"},
			[]string{"focus"}, false},
		"focus on a LAN":        {selection{sigs: []string{"node"}, focus: "x", lan: true}, []string{"focus"}, true},
		"an unknown group only": {selection{sigs: []string{"unknown"}}, nil, false},
	} {
		var got []string
		for _, group := range c.groups() {
			for _, p := range group {
				got = append(got, p.name)
				if c.focus != "" && (p.focus != c.focus || p.labels != c.labels) {
					t.Errorf("%s: got focus %q and labels %q", name, p.focus, p.labels)
				}
			}
		}
		if !slices.Equal(got, c.processes) {
			t.Errorf("%s: got processes %v, want %v", name, got, c.processes)
		}
		if c.onLAN() != c.lan {
			t.Errorf("%s: got on a LAN %t, want %t", name, c.onLAN(), c.lan)
		}
	}
}

func TestNetworkFlags(t *testing.T) {
	t.Parallel()
	if flags, config := onMachine.flags(), onMachine.agentConfig(); flags != nil || config != nil {
		t.Errorf("without a LAN: got flags %v and configuration %v, want none", flags, config)
	}
	seen := map[string]bool{}
	for number := range byte(100) {
		n := network{address: netip.AddrFrom4([4]byte{10, 212, number, 1}), lan: &hosts.LAN{}}
		if seen[n.podCIDRs()] {
			t.Errorf("LAN %d: the ranges %s are those of another LAN", number, n.podCIDRs())
		}
		seen[n.podCIDRs()] = true
		if flags := n.flags(); len(flags) != 4 || flags[1] != n.podCIDRs() {
			t.Errorf("LAN %d: got flags %v", number, flags)
		}
	}
}
