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

const bandwidthAnnotations = "annotations: {kubernetes.io/ingress-bandwidth: 8M, kubernetes.io/egress-bandwidth: 16M}\n"

// TestBandwidthIsLimitedOnTheHost uses the CNI configuration that berth writes. The kernel limits the
// ingress and egress rate of a pod to the annotated values. A pod without annotations has no limit.
func TestBandwidthIsLimitedOnTheHost(t *testing.T) {
	t.Parallel()
	for _, v := range hosts.Versions() { // sequential: the machine has one default network
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
			s := newNode(t, v, nodeOptions{Args: []string{"--cni-pod-cidr", "10.209.1.0/24"}})
			s.contains("the configuration", readFile(t, filepath.Join(s.Host.ConfDir, "10-berth.conflist")),
				`"type": "bandwidth"`)
			s.Put("limited", podYAML("limited", bandwidthAnnotations, "containers:\n"+box("c", "", "sleep")))
			s.Pod("free", "containers:\n"+box("c", "", "sleep"))
			s.Running("limited")
			s.Running("free")
			if in, out := s.bandwidthLimits("limited"); in != 8e6 || out != 16e6 {
				t.Errorf("got ingress %d and egress %d bit/s, want 8M and 16M", in, out)
			}
			if in, out := s.bandwidthLimits("free"); in != 0 || out != 0 {
				t.Errorf("pod without annotations: got ingress %d and egress %d bit/s, want no limit", in, out)
			}
			out, _ := s.Agent.Command(t.Context(), "check").CombinedOutput()
			s.contains("berth check", string(out), "egress-bandwidth are supported")
		})
	}
}

// TestUnsupportedBandwidthLimitIsReported uses a CNI configuration without the bandwidth plugin.
// The pod runs without a limit and has an event.
func TestUnsupportedBandwidthLimitIsReported(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, s *Namespace) {
		s.Put("unlimited", podYAML("unlimited", bandwidthAnnotations, "containers:\n"+box("c", "", "sleep")))
		s.Running("unlimited")
		s.Event("unlimited", "BandwidthNotLimited: the pod's bandwidth is not limited: no plugin in "+s.Host.ConfDir)
		out, _ := s.Agent.Command(t.Context(), "check").CombinedOutput()
		s.contains("berth check", string(out), "egress-bandwidth are ignored")
	})
}

// bandwidthLimits returns the kernel's rate limits of a pod in bits per second. 0 means no limit.
// Egress traffic is redirected to an ifb device, which has the limit.
func (s *Namespace) bandwidthLimits(pod string) (in, out uint64) {
	s.t.Helper()
	iflink := strings.TrimSpace(s.Exec(pod, "c", "/bin/testbox", "cat", "/sys/class/net/eth0/iflink"))
	index, err := strconv.Atoi(iflink)
	if err != nil {
		s.t.Fatal(err)
	}
	peer, err := netlink.LinkByIndex(index)
	if err != nil {
		s.t.Fatal(err)
	}
	in = s.tokenBucketRate(peer)
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
				ifb, err := netlink.LinkByIndex(m.Ifindex)
				if err != nil {
					s.t.Fatal(err)
				}
				out = s.tokenBucketRate(ifb)
			}
		}
	}
	return in, out
}

// tokenBucketRate returns the rate of a device's token bucket in bits per second, 0 without one.
func (s *Namespace) tokenBucketRate(l netlink.Link) uint64 {
	s.t.Helper()
	qdiscs, err := netlink.QdiscList(l)
	if err != nil {
		s.t.Fatal(err)
	}
	for _, q := range qdiscs {
		if bucket, ok := q.(*netlink.Tbf); ok {
			return 8 * bucket.Rate
		}
	}
	return 0
}
