package cni

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"golang.org/x/sys/unix"
)

const realPlugins = "/usr/lib/cni"

func run(t *testing.T, args ...string) string {
	t.Helper()
	out, err := exec.Command(args[0], args[1:]...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// netns creates a temporary network namespace.
func netns(t *testing.T, name string) string {
	t.Helper()
	run(t, "ip", "netns", "add", name)
	t.Cleanup(func() {
		if out, err := exec.Command("ip", "netns", "del", name).CombinedOutput(); err != nil {
			t.Errorf("remove netns: %v %s", err, out)
		}
	})
	run(t, "ip", "-n", name, "link", "set", "lo", "up")
	return "/run/netns/" + name
}

// TestDefaultNetworkWorks checks that pods get addresses, reach the gateway and each other, and
// that DEL removes everything. The plugins run in a network namespace that represents the node.
func TestDefaultNetworkWorks(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name  string
		cidrs []netip.Prefix
	}{
		{"v4", prefixes("10.213.7.0/24")},
		{"v6", prefixes("fd00:213:7::/64")},
		{"dual", prefixes("10.213.8.0/24", "fd00:213:8::/64")},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			id := fmt.Sprintf("berth%d%s", os.Getpid(), row.name)
			node := netns(t, id+"n")
			one, two := netns(t, id+"a"), netns(t, id+"b")
			dir := t.TempDir()
			d := defaultNetwork{
				name:    id,
				bridge:  "br-" + row.name,
				dataDir: filepath.Join(dir, "addresses"),
				cidrs:   row.cidrs,
				masq:    true,
			}
			if err := writeNetwork(filepath.Join(dir, "conf"), d); err != nil {
				t.Fatal(err)
			}
			conf, err := libcni.ConfListFromFile(filepath.Join(dir, "conf", defaultFile))
			if err != nil {
				t.Fatal(err)
			}
			n, err := New(Options{ConfDir: filepath.Join(dir, "conf"), BinDirs: []string{realPlugins}})
			if err != nil {
				t.Fatal(err)
			}
			for _, item := range n.Check(t.Context()).Items {
				if !item.OK {
					t.Errorf("%+v", item)
				}
			}
			c := libcni.NewCNIConfigWithCacheDir([]string{realPlugins}, filepath.Join(dir, "cache"), inside{node})
			a := attach(t, c, conf, id+"a", one)
			b := attach(t, c, conf, id+"b", two)
			for i, ip := range b.IPs {
				run(t, "ip", "netns", "exec", filepath.Base(one), "busybox", "ping", "-c", "1", "-W", "5",
					ip.Address.IP.String())
				run(
					t,
					"ip",
					"netns",
					"exec",
					filepath.Base(one),
					"busybox",
					"ping",
					"-c",
					"1",
					"-W",
					"5",
					a.IPs[i].Gateway.String(),
				)
				if !within(row.cidrs, ip.Address.IP) {
					t.Errorf("address %s is not in %v", ip.Address.IP, row.cidrs)
				}
			}
			if len(a.IPs) != len(row.cidrs) {
				t.Errorf("addresses %v", a.IPs)
			}
		})
	}
}

func within(cidrs []netip.Prefix, ip net.IP) bool {
	a, _ := netip.AddrFromSlice(ip)
	for _, p := range cidrs {
		if p.Contains(a.Unmap()) {
			return true
		}
	}
	return false
}

// attach adds a namespace to the network and removes it at the end of the test.
func attach(t *testing.T, c *libcni.CNIConfig, conf *libcni.NetworkConfigList, id, netns string) *types100.Result {
	t.Helper()
	rt := &libcni.RuntimeConf{ContainerID: id, NetNS: netns, IfName: "eth0", CapabilityArgs: map[string]any{
		"portMappings": []map[string]any{},
	}}
	t.Cleanup(func() {
		if err := c.DelNetworkList(context.Background(), conf, rt); err != nil {
			t.Errorf("DEL: %v", err)
		}
		if out, _ := exec.Command("ip", "-n", filepath.Base(netns), "-o",
			"link").Output(); strings.Contains(string(out), "eth0") {
			t.Errorf("remaining after DEL: %s", out)
		}
	})
	got, err := c.AddNetworkList(t.Context(), conf, rt)
	if err != nil {
		t.Fatalf("ADD: %v", err)
	}
	result, err := types100.NewResultFromResult(got)
	if err != nil {
		t.Fatal(err)
	}
	return result
}

// TestReleaseLeaksOfRealPlugins leaves resources of interrupted plugins in a network namespace that
// represents the node.
func TestReleaseLeaksOfRealPlugins(t *testing.T) {
	t.Parallel()
	id := fmt.Sprintf("berth%dleak", os.Getpid())
	node, one, two := netns(t, id+"n"), netns(t, id+"a"), netns(t, id+"b")
	enter(t, node)
	dir := t.TempDir()
	const conf = `{"cniVersion":"1.0.0","name":"leaky","plugins":[
		{"type":"bridge","bridge":"leaky0","isGateway":true,"ipMasq":true,"ipam":{"type":"host-local","dataDir":%q,
		 "ranges":[[{"subnet":"10.213.9.0/24"}],[{"subnet":"fd00:213:9::/64"}]]}},
		{"type":"portmap","capabilities":{"portMappings":true}}]}`
	if err := os.WriteFile(filepath.Join(dir, "10-leaky.conflist"),
		fmt.Appendf(nil, conf, filepath.Join(dir, "addresses")), 0o600); err != nil {
		t.Fatal(err)
	}
	n, err := New(Options{ConfDir: dir, BinDirs: []string{realPlugins}, CacheDir: filepath.Join(dir, "cache")})
	if err != nil {
		t.Fatal(err)
	}
	list, err := libcni.ConfListFromFile(filepath.Join(dir, "10-leaky.conflist"))
	if err != nil {
		t.Fatal(err)
	}
	plugins := libcni.NewCNIConfigWithCacheDir([]string{realPlugins}, filepath.Join(dir, "cache"), nil)
	a, b := hexID("a"), hexID("b")
	rt := func(id, ns string) *libcni.RuntimeConf {
		return &libcni.RuntimeConf{ContainerID: id, NetNS: ns, IfName: "eth0", CapabilityArgs: map[string]any{
			"portMappings": []map[string]any{{"hostPort": 8000 + int(id[0]), "containerPort": 80, "protocol": "tcp"}},
		}}
	}
	for id, ns := range map[string]string{a: one, b: two} {
		if _, err := plugins.AddNetworkList(t.Context(), list, rt(id, ns)); err != nil {
			t.Fatal(err)
		}
	}
	run(t, "ip", "-n", filepath.Base(one), "link", "del", "eth0") // like a DEL that is killed after its first step
	if err := plugins.DelNetworkList(t.Context(), list, rt(a, one)); err != nil {
		t.Fatal(err)
	}
	rules := func() string { return run(t, "iptables-save", "-t", "nat") + run(t, "ip6tables-save", "-t", "nat") }
	if text := rules(); strings.Count(text, a) < 6 || strings.Count(text, b) < 6 {
		t.Fatalf("no rules remain to release:\n%s", text)
	}
	release := func(id string, kind Kind) {
		t.Helper()
		found, err := n.Leaks(t.Context(), LeakQuery{
			Known: func(other string) bool {
				return other != id
			}, PinKnown: func(string) bool { return true }, Deep: true,
			FilterUnknown: func(_ context.Context, ids []string) ([]string, error) { return ids, nil },
		})
		if err != nil || len(found) != 1 || found[0].ID != id || found[0].Kind != kind {
			t.Fatalf("%+v %v", found, err)
		}
		for range 2 {
			if err := n.Release(t.Context(), found[0]); err != nil {
				t.Fatal(err)
			}
		}
	}
	release(a, Rules)
	if text := rules(); strings.Contains(text, a) || strings.Count(text, b) < 6 {
		t.Errorf("after Release for a:\n%s", text)
	}
	if err := os.RemoveAll(filepath.Join(dir, "cache")); err != nil { // like an ADD that is killed at its end
		t.Fatal(err)
	}
	release(b, Address)
	if text := rules(); strings.Contains(text, b) || len(emptyChainNames(text)) > 0 ||
		strings.Contains(text, "CNI-DN-") {
		t.Errorf("after Release for b:\n%s", text)
	}
	if held, err := allocatedAddresses(filepath.Join(dir, "addresses", "leaky")); err != nil || len(held) > 0 {
		t.Errorf("addresses %v %v", held, err)
	}
	run(t, "iptables", "-t", "nat", "-N", "CNI-000000000000000000000000")
	leaks := emptyChains(natTables(t.Context()))
	if len(leaks) != 1 || n.Release(t.Context(), leaks[0]) != nil || strings.Contains(rules(), "CNI-0000") {
		t.Errorf("leaks with an empty chain: %+v\n%s", leaks, rules())
	}
}

// enter moves the test to a network namespace. Its thread is not reused.
func enter(t *testing.T, ns string) {
	t.Helper()
	runtime.LockOSThread()
	f, err := os.Open(ns)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := unix.Setns(int(f.Fd()), unix.CLONE_NEWNET); err != nil {
		t.Fatal(err)
	}
}
