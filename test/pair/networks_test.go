package pair

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestPodNetworkStatusAnnotation: a pod with an additional network gets an annotation with the
// network status.
func TestPodNetworkStatusAnnotation(t *testing.T) {
	t.Parallel()
	p := start(t, pairOptions{})
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
	own := p.field("pod", "more", ".status.podIP")
	p.until("its networks", func() string {
		extra := p.field("pod", "more", `.metadata.annotations.k8s\.v1\.cni\.cncf\.io/network-status`)
		if !strings.Contains(extra, `"interface":"eth0","ips":["`+own+`"],"default":true`) || !strings.Contains(extra,
			`/extra","interface":"cam0","ips":["10.254.7.`) {
			return "reported as " + extra
		}
		return ""
	})
}
