package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"berth/internal/nodeconfig"
)

// loadConfig loads the configuration from a file with the given content.
func loadConfig(t *testing.T, content string) *nodeconfig.Config {
	t.Helper()
	file := filepath.Join(t.TempDir(), "node.yaml")
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	c, _, err := nodeconfig.Load(&nodeconfig.Flags{Config: file, HostnameOverride: "n"})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestPodCIDRConfiguresStandaloneNetwork(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	c := loadConfig(t, `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
podCIDR: 10.85.7.0/24
---
apiVersion: berth.dev/v1alpha1
kind: BerthConfiguration
cniConfDir: `+dir+`
cniPodCIDRs: [node]
`)
	h := &host{b: &berth{config: c}}
	if err := h.makeNetwork(); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(dir, "10-berth.conflist"))
	if err != nil || !strings.Contains(string(text), "10.85.7.0/24") {
		t.Errorf("network configuration: got %s (%v), want the pod CIDR", text, err)
	}
}
