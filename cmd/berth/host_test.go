package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"berth/internal/nodeconfig/nodeconfigtest"
)

func TestPodCIDRConfiguresStandaloneNetwork(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	c := nodeconfigtest.Load(t, `apiVersion: kubelet.config.k8s.io/v1beta1
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
