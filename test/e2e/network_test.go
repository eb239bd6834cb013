package e2e

import (
	"context"
	"net/netip"
	"path/filepath"
	"testing"
	"time"

	"berth/test/hosts"
)

// TestTheFlagMakesTheNetwork: on a host without a network --cni-pod-cidr writes its
// configuration, and pods get addresses of that range that can be reached.
func TestTheFlagMakesTheNetwork(t *testing.T) {
	t.Parallel()
	const cidr = "10.209.0.0/24"
	for _, v := range hosts.Versions() { // in turn: there is one such network per machine
		t.Run(string(v), func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
			defer cancel()
			release, err := hosts.ClaimDefaultNetwork(ctx)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := release(); err != nil {
					t.Error(err)
				}
			})
			s := own(t, v, nodeOptions{Args: []string{"--cni-pod-cidr", cidr}})
			s.contains("the configuration", readFile(t, filepath.Join(s.Host.ConfDir, "10-berth.conflist")), cidr)
			given := map[string]bool{}
			for _, name := range []string{"one", "two"} {
				s.Pod(name, "containers:\n"+box("c", "", "serve"))
				ip := s.Running(name).Status.PodIP
				if a, err := netip.ParseAddr(ip); err != nil || !netip.MustParsePrefix(cidr).Contains(a) || given[ip] {
					t.Errorf("pod %s has the address %q, want one of its own of %s", name, ip, cidr)
				}
				given[ip] = true
				if got := s.answer("http://" + ip + ":8080/"); got != name+"\n" {
					t.Errorf("%s answers %q", ip, got)
				}
			}
		})
	}
}
