package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// side gives the node a network beside its own, on the host's bridge, and returns
// the directory of its addresses.
func (s *Space) side(name, subnet string) (addresses string) {
	s.t.Helper()
	addresses = filepath.Join(s.t.TempDir(), "addresses")
	text, err := json.Marshal(map[string]any{
		"cniVersion": "1.0.0", "name": name, "plugins": []any{map[string]any{
			"type": "bridge", "bridge": s.Host.Bridge, "capabilities": map[string]bool{"mac": true, "ips": true},
			"ipam": map[string]any{
				"type": "host-local", "dataDir": addresses, "ranges": []any{[]any{map[string]any{"subnet": subnet}}},
			},
		}},
	})
	if err != nil {
		s.t.Fatal(err)
	}
	dir := filepath.Join(s.Host.ConfDir, "networks.d")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		s.t.Fatal(err)
	}
	file := filepath.Join(dir, name+".conflist")
	if err := os.WriteFile(file, text, 0o644); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { os.Remove(file) })
	return filepath.Join(addresses, name)
}

// TestPodHasRequestedNetworks, in both forms of the annotation: with the
// interface, addresses and hardware address that it names; the result is in
// another annotation. They go with the pod.
func TestPodHasRequestedNetworks(t *testing.T) {
	both(t, func(t *testing.T, s *Space) {
		name := s.ns + "-side"
		subnet := fmt.Sprintf("10.251.%d", s.Host.Number%200)
		held := s.side(name, subnet+".0/24")
		const key = "k8s.v1.cni.cncf.io/networks: "
		sleeps := "containers:\n" + box("c", "", "addrs", end, "sleep")
		s.Put("short", podYAML("short", "annotations: {"+key+"any/"+name+"@data0}\n", sleeps))
		chosen := subnet + ".77"
		s.Put("long", podYAML("long", fmt.Sprintf("annotations:\n  %s'[{\"name\": %q, \"ips\": [\"%s/24\"], \"mac\": \"02:00:00:00:07:77\"}, {\"name\": %q, \"interface\": \"more\"}]'\n",
			key, name, chosen, name), sleeps))
		s.Running("short")
		long := s.Running("long")
		s.hasLines(s.Report("long", "c"), chosen+"/24")
		s.contains("its hardware address", s.Exec("long", "c", "/bin/testbox", "cat", "/sys/class/net/net1/address"), "02:00:00:00:07:77")
		s.Exec("short", "c", "/bin/testbox", "cat", "/sys/class/net/data0/address")
		var told []struct {
			Name, Interface, MAC string
			IPs                  []string
			Default              bool
		}
		if err := json.Unmarshal([]byte(s.Get("long").Annotations["k8s.v1.cni.cncf.io/network-status"]), &told); err != nil || len(told) != 3 {
			t.Fatalf("%v: %v", err, s.Get("long").Annotations)
		}
		if d := told[0]; !d.Default || d.Interface != "eth0" || len(d.IPs) != 1 || d.IPs[0] != long.Status.PodIP {
			t.Errorf("the pod's own network is told as %+v, it has %s", d, long.Status.PodIP)
		}
		if n := told[1]; n.Name != s.ns+"/"+name || n.Interface != "net1" || n.MAC != "02:00:00:00:07:77" || len(n.IPs) != 1 || n.IPs[0] != chosen {
			t.Errorf("the first network is told as %+v", n)
		}
		if n := told[2]; n.Interface != "more" || len(n.IPs) != 1 {
			t.Errorf("the second network is told as %+v", n)
		}
		if n := inUse(t, held); n != 3 {
			t.Errorf("%d addresses are in use", n)
		}
		s.Remove("short")
		s.Remove("long")
		s.Gone("short")
		s.Gone("long")
		if n := inUse(t, held); n != 0 {
			t.Errorf("%d addresses are in use when the pods are gone", n)
		}
	})
}

// TestPodWaitsForMissingNetwork and says for which; a mistake in the
// annotation is reported as well.
func TestPodWaitsForMissingNetwork(t *testing.T) {
	both(t, func(t *testing.T, s *Space) {
		name := s.ns + "-late"
		sleeps := "containers:\n" + box("c", "", "sleep")
		s.Put("waits", podYAML("waits", "annotations: {k8s.v1.cni.cncf.io/networks: "+name+"}\n", sleeps))
		s.Put("wrong", podYAML("wrong", "annotations: {k8s.v1.cni.cncf.io/networks: "+name+"@eth0}\n", sleeps))
		s.whyHas("waits", fmt.Sprintf("network %q not found in any *.conflist of %s", name, s.Host.ConfDir))
		s.whyHas("wrong", "interface eth0 is already in use")
		s.side(name, fmt.Sprintf("10.252.%d.0/24", s.Host.Number%200))
		s.Running("waits")
	})
}

// inUse counts the addresses that host-local holds in a directory.
func inUse(t *testing.T, dir string) int {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "10.*"))
	if err != nil {
		t.Fatal(err)
	}
	return len(files)
}
