package pair

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestAPodsNetworksAreToldToTheServer: a pod that asks for a network beside the
// node's has an annotation in its object that tells what it was given.
func TestAPodsNetworksAreToldToTheServer(t *testing.T) {
	t.Parallel()
	p := start(t, pairOptions{})
	conf, err := json.Marshal(map[string]any{
		"cniVersion": "1.0.0", "name": "told", "plugins": []any{map[string]any{
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
	if err := os.WriteFile(filepath.Join(dir, "told.conflist"), conf, 0o644); err != nil {
		t.Fatal(err)
	}
	manifest := strings.Replace(p.pod("more", "", "sleep"), "metadata: {", "metadata: {annotations: {k8s.v1.cni.cncf.io/networks: told@cam0}, ", 1)
	if !strings.Contains(manifest, "told@cam0") {
		t.Fatalf("the annotation is not in\n%s", manifest)
	}
	p.Apply(t, manifest)
	p.is("pod", "more", ".status.phase", "Running")
	own := p.field("pod", "more", ".status.podIP")
	p.until("its networks", func() string {
		told := p.field("pod", "more", `.metadata.annotations.k8s\.v1\.cni\.cncf\.io/network-status`)
		if !strings.Contains(told, `"interface":"eth0","ips":["`+own+`"],"default":true`) || !strings.Contains(told, `/told","interface":"cam0","ips":["10.254.7.`) {
			return "it is told as " + told
		}
		return ""
	})
}
