package pair

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestPodNetworkStatusAnnotation creates a pod with an additional network. The agent sets its network
// status annotation.
func TestPodNetworkStatusAnnotation(t *testing.T) {
	t.Parallel()
	p := startPair(t, pairOptions{})
	conf, err := json.Marshal(map[string]any{
		"cniVersion": "1.0.0", "name": "extra", "plugins": []any{map[string]any{
			"type": "bridge", "bridge": p.Host.Bridge, "ipam": map[string]any{
				"type": "host-local", "dataDir": filepath.Join(t.TempDir(), "addresses"),
				"ranges": []any{[]any{map[string]any{"subnet": "10.254.7.0/24"}}},
			},
		}},
	})
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(p.Host.ConfDir, "networks.d")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "extra.conflist"), conf, 0o644); err != nil {
		t.Fatal(err)
	}
	manifest := strings.Replace(p.pod("more", "", "sleep"), "metadata: {",
		"metadata: {annotations: {k8s.v1.cni.cncf.io/networks: extra@cam0}, ", 1)
	if !strings.Contains(manifest, "extra@cam0") {
		t.Fatalf("annotation not found in\n%s", manifest)
	}
	p.Apply(t, manifest)
	p.waitForField("pod", "more", ".status.phase", "Running")
	podIP := p.field("pod", "more", ".status.podIP")
	p.waitUntil("the network status annotation", func() string {
		status := p.field("pod", "more", `.metadata.annotations.k8s\.v1\.cni\.cncf\.io/network-status`)
		if !strings.Contains(status, `"interface":"eth0","ips":["`+podIP+`"],"default":true`) ||
			!strings.Contains(status,
				`/extra","interface":"cam0","ips":["10.254.7.`) {
			return "got " + status
		}
		return ""
	})
}
