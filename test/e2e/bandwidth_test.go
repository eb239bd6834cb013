package e2e

import (
	"context"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"berth/test/hosts"
)

const limited = "annotations: {kubernetes.io/ingress-bandwidth: 8M, kubernetes.io/egress-bandwidth: 16M}\n"

// TestBandwidthIsLimitedOnTheHost: on the network that berth has written, the
// kernel limits what goes to a pod and what comes from it to what the annotations
// say, and nothing of a pod that has none.
func TestBandwidthIsLimitedOnTheHost(t *testing.T) {
	t.Parallel()
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
			s := own(t, v, nodeOptions{Args: []string{"--cni-pod-cidr", "10.209.1.0/24"}})
			s.contains("the configuration", readFile(t, filepath.Join(s.Host.ConfDir, "10-berth.conflist")), `"type": "bandwidth"`)
			s.Put("limited", podYAML("limited", limited, "containers:\n"+box("c", "", "sleep")))
			s.Pod("free", "containers:\n"+box("c", "", "sleep"))
			s.Running("limited")
			s.Running("free")
			if in, out := s.limits("limited"); in != 8e6 || out != 16e6 {
				t.Errorf("to the pod go %d bits per second, from it %d", in, out)
			}
			if in, out := s.limits("free"); in != 0 || out != 0 {
				t.Errorf("a pod without annotations is limited to %d and %d bits per second", in, out)
			}
			out, _ := s.Agent.Command(t.Context(), "check").CombinedOutput()
			s.contains("berth check", string(out), "egress-bandwidth are supported")
		})
	}
}

// TestUnsupportedBandwidthLimitIsReported: the network of the other tests has no
// plugin for it. The pod runs, and says so.
func TestUnsupportedBandwidthLimitIsReported(t *testing.T) {
	both(t, func(t *testing.T, s *Space) {
		s.Put("told", podYAML("told", limited, "containers:\n"+box("c", "", "sleep")))
		s.Running("told")
		s.Event("told", "BandwidthNotLimited: the pod's bandwidth is not limited: no plugin in "+s.Host.ConfDir)
		out, _ := s.Agent.Command(t.Context(), "check").CombinedOutput()
		s.contains("berth check", string(out), "egress-bandwidth are ignored")
	})
}

// limits are what the kernel lets go to a pod and come from it, in bits per
// second; 0: no limit. What comes from it is led through a device of its own.
func (s *Space) limits(pod string) (in, out uint64) {
	s.t.Helper()
	number := strings.TrimSpace(s.Exec(pod, "c", "/bin/testbox", "cat", "/sys/class/net/eth0/iflink"))
	index, err := strconv.Atoi(number)
	if err != nil {
		s.t.Fatal(err)
	}
	peer, err := netlink.LinkByIndex(index)
	if err != nil {
		s.t.Fatal(err)
	}
	in = s.rate(peer)
	filters, err := netlink.FilterList(peer, netlink.MakeHandle(0xffff, 0))
	if err != nil {
		s.t.Fatal(err)
	}
	for _, f := range filters {
		u32, ok := f.(*netlink.U32)
		if !ok {
			continue
		}
		for _, a := range u32.Actions {
			if m, ok := a.(*netlink.MirredAction); ok {
				through, err := netlink.LinkByIndex(m.Ifindex)
				if err != nil {
					s.t.Fatal(err)
				}
				out = s.rate(through)
			}
		}
	}
	return in, out
}

// rate is that of a device's token bucket, in bits per second.
func (s *Space) rate(l netlink.Link) uint64 {
	s.t.Helper()
	all, err := netlink.QdiscList(l)
	if err != nil {
		s.t.Fatal(err)
	}
	for _, q := range all {
		if bucket, ok := q.(*netlink.Tbf); ok {
			return 8 * bucket.Rate
		}
	}
	return 0
}
