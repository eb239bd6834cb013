package e2e

import (
	"context"
	"net/netip"
	"path/filepath"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"berth/nodeapi"
	"berth/test/hosts"
)

// TestFlagConfiguresNetwork checks that --cni-pod-cidr writes a CNI configuration on a host without
// one, and that pods get reachable addresses of this range.
func TestFlagConfiguresNetwork(t *testing.T) {
	t.Parallel()
	const cidr = "10.209.0.0/24"
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
			s := newNode(t, v, nodeOptions{Args: []string{"--cni-pod-cidr", cidr}})
			s.contains("the CNI configuration", readFile(t, filepath.Join(s.Host.ConfDir, "10-berth.conflist")), cidr)
			seen := map[string]bool{}
			for _, name := range []string{"one", "two"} {
				s.Pod(name, "containers:\n"+box("c", "", "serve"))
				ip := s.Running(name).Status.PodIP
				if a, err := netip.ParseAddr(ip); err != nil || !netip.MustParsePrefix(cidr).Contains(a) || seen[ip] {
					t.Errorf("pod %s: got IP %q, want a unique one of %s", name, ip, cidr)
				}
				seen[ip] = true
				if got := s.waitHTTP("http://" + ip + ":8080/"); got != name+"\n" {
					t.Errorf("response from %s: got %q", ip, got)
				}
			}
		})
	}
}

// TestNodeUsesOtherHostAddress changes the host's IP while pods run. The pod status shows the new
// IP, and no container restarts.
func TestNodeUsesOtherHostAddress(t *testing.T) {
	t.Parallel()
	lan, err := hosts.NewLAN()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := lan.Close(); err != nil {
			t.Error(err)
		}
	})
	s := newNode(t, hosts.Version2, nodeOptions{LAN: lan})
	s.Pod("p", "hostNetwork: true\ncontainers:\n"+box("c", "", "sleep"))
	before := s.Running("p")
	if before.Status.HostIP != s.Host.Gateway.String() || before.Status.PodIP != before.Status.HostIP {
		t.Fatalf("want host IP %s: %s", s.Host.Gateway, brief(before))
	}
	other, err := s.Host.ChangeAddress()
	if err != nil {
		t.Fatal(err)
	}
	var after *corev1.Pod
	err = hosts.WaitFor(t.Context(), "the pod to have IP "+other.String(), func() (bool, error) {
		list, err := s.Client.Pods(t.Context(), nodeapi.PodsRequest{Namespace: s.ns})
		if err != nil || len(list.Items) != 1 {
			return false, nil //nolint:nilerr // the agent may be restarting
		}
		after = &list.Items[0]
		return after.Status.HostIP == other.String() && after.Status.PodIP == other.String(), nil
	})
	if err != nil {
		t.Fatalf("%v\n%s\n%s", err, brief(after), tail(s.Agent.Log(), 3000))
	}
	if old, updated := status(before, "c"), status(after, "c"); updated.ContainerID != old.ContainerID ||
		updated.RestartCount != 0 || !updated.Ready {
		t.Errorf("want container %s, ready: %s", old.ContainerID, brief(after))
	}
}
