package cni

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"
	types100 "github.com/containernetworking/cni/pkg/types/100"
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

// netns makes a network namespace with a name of the test's own.
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

// The written configuration gives pods addresses, a gateway that answers and
// each other, and takes everything back, in a host of the test's own: the
// plugins run in a network namespace that stands for the node.
func TestDefaultNetworkWorks(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		what  string
		cidrs []netip.Prefix
	}{
		{"v4", prefixes("10.213.7.0/24")},
		{"v6", prefixes("fd00:213:7::/64")},
		{"dual", prefixes("10.213.8.0/24", "fd00:213:8::/64")},
	} {
		t.Run(row.what, func(t *testing.T) {
			t.Parallel()
			id := fmt.Sprintf("berth%d%s", os.Getpid(), row.what)
			node := netns(t, id+"n")
			one, two := netns(t, id+"a"), netns(t, id+"b")
			dir := t.TempDir()
			d := design{name: id, bridge: "br-" + row.what, dataDir: filepath.Join(dir, "addresses"), cidrs: row.cidrs}
			if err := writeDesign(filepath.Join(dir, "conf"), d); err != nil {
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
				run(t, "ip", "netns", "exec", filepath.Base(one), "busybox", "ping", "-c", "1", "-W", "5", ip.Address.IP.String())
				run(t, "ip", "netns", "exec", filepath.Base(one), "busybox", "ping", "-c", "1", "-W", "5", a.IPs[i].Gateway.String())
				if !within(row.cidrs, ip.Address.IP) {
					t.Errorf("%s is in none of %v", ip.Address.IP, row.cidrs)
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

// attach adds a namespace to the network and takes it off again at the end.
func attach(t *testing.T, c *libcni.CNIConfig, conf *libcni.NetworkConfigList, id, netns string) *types100.Result {
	t.Helper()
	rt := &libcni.RuntimeConf{ContainerID: id, NetNS: netns, IfName: "eth0", CapabilityArgs: map[string]any{
		"portMappings": []map[string]any{},
	}}
	t.Cleanup(func() {
		if err := c.DelNetworkList(context.Background(), conf, rt); err != nil {
			t.Errorf("DEL: %v", err)
		}
		if out, _ := exec.Command("ip", "-n", filepath.Base(netns), "-o", "link").Output(); strings.Contains(string(out), "eth0") {
			t.Errorf("left after DEL: %s", out)
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
