package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// addNetwork adds a CNI network on the host's bridge to the node. It returns the directory in which
// host-local stores the allocated addresses.
func (s *Namespace) addNetwork(name, subnet string) (addressDir string) {
	s.t.Helper()
	addressDir = filepath.Join(s.t.TempDir(), "addresses")
	conflist, err := json.Marshal(map[string]any{
		"cniVersion": "1.0.0", "name": name, "plugins": []any{map[string]any{
			"type": "bridge", "bridge": s.Host.Bridge, "capabilities": map[string]bool{"mac": true, "ips": true},
			"ipam": map[string]any{
				"type": "host-local", "dataDir": addressDir, "ranges": []any{[]any{map[string]any{"subnet": subnet}}},
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
	if err := os.WriteFile(file, conflist, 0o644); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { os.Remove(file) })
	return filepath.Join(addressDir, name)
}

// TestPodHasRequestedNetworks uses both forms of the networks annotation, with an interface name,
// an IP address and a MAC address. The network-status annotation has the result. The addresses are
// released when the pod is deleted.
func TestPodHasRequestedNetworks(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, s *Namespace) {
		name := s.ns + "-side"
		subnet := fmt.Sprintf("10.251.%d", s.Host.Number%200)
		addressDir := s.addNetwork(name, subnet+".0/24")
		const key = "k8s.v1.cni.cncf.io/networks: "
		spec := "containers:\n" + box("c", "", "addrs", end, "sleep")
		s.Put("short", podYAML("short", "annotations: {"+key+"any/"+name+"@data0}\n", spec))
		staticIP := subnet + ".77"
		s.Put("long", podYAML("long",
			fmt.Sprintf("annotations:\n  %s'[{\"name\": %q, \"ips\": [\"%s/24\"], \"mac\": \"02:00:00:00:07:77\"}, "+
				"{\"name\": %q, \"interface\": \"more\"}]'\n",
				key, name, staticIP, name), spec))
		s.Running("short")
		long := s.Running("long")
		s.hasLines(s.WaitOutput("long", "c"), staticIP+"/24")
		s.contains("the MAC address", s.Exec("long", "c", "/bin/testbox", "cat", "/sys/class/net/net1/address"),
			"02:00:00:00:07:77")
		s.Exec("short", "c", "/bin/testbox", "cat", "/sys/class/net/data0/address")
		var networks []struct {
			Name, Interface, MAC string
			IPs                  []string
			Default              bool
		}
		if err := json.Unmarshal([]byte(s.Get("long").Annotations["k8s.v1.cni.cncf.io/network-status"]),
			&networks); err != nil || len(networks) != 3 {
			t.Fatalf("%v: %v", err, s.Get("long").Annotations)
		}
		if d := networks[0]; !d.Default || d.Interface != "eth0" || len(d.IPs) != 1 || d.IPs[0] != long.Status.PodIP {
			t.Errorf("status of the default network: got %+v, want IP %s", d, long.Status.PodIP)
		}
		if n := networks[1]; n.Name != s.ns+"/"+name || n.Interface != "net1" || n.MAC != "02:00:00:00:07:77" ||
			len(n.IPs) != 1 || n.IPs[0] != staticIP {
			t.Errorf("status of the first network: got %+v", n)
		}
		if n := networks[2]; n.Interface != "more" || len(n.IPs) != 1 {
			t.Errorf("status of the second network: got %+v", n)
		}
		if n := allocatedAddresses(t, addressDir); n != 3 {
			t.Errorf("got %d allocated addresses, want 3", n)
		}
		s.Remove("short")
		s.Remove("long")
		s.WaitDeleted("short")
		s.WaitDeleted("long")
		if n := allocatedAddresses(t, addressDir); n != 0 {
			t.Errorf("got %d allocated addresses after the pods are deleted, want 0", n)
		}
	})
}

// TestPodWaitsForMissingNetwork checks that the pod names the missing network, and that an invalid
// annotation is reported.
func TestPodWaitsForMissingNetwork(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, s *Namespace) {
		name := s.ns + "-late"
		spec := "containers:\n" + box("c", "", "sleep")
		s.Put("waits", podYAML("waits", "annotations: {k8s.v1.cni.cncf.io/networks: "+name+"}\n", spec))
		s.Put("wrong", podYAML("wrong", "annotations: {k8s.v1.cni.cncf.io/networks: "+name+"@eth0}\n", spec))
		s.waitExplanation("waits", fmt.Sprintf("network %q not found in any *.conflist of %s", name, s.Host.ConfDir))
		s.waitExplanation("wrong", "interface eth0 is already in use")
		s.addNetwork(name, fmt.Sprintf("10.252.%d.0/24", s.Host.Number%200))
		s.Running("waits")
	})
}

// allocatedAddresses returns the number of addresses that host-local has allocated in dir.
func allocatedAddresses(t *testing.T, dir string) int {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "10.*"))
	if err != nil {
		t.Fatal(err)
	}
	return len(files)
}
