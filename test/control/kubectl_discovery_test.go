package control

import (
	"strings"
	"testing"
)

// TestKubectlDiscovery checks the output of kubectl's discovery commands.
func TestKubectlDiscovery(t *testing.T) {
	t.Parallel()
	s := Shared(t)
	resources := s.Kubectl(t, "api-resources", "--no-headers")
	for _, want := range []string{"pods po v1 true Pod", "nodes no v1 false Node",
		"deployments deploy apps/v1 true Deployment",
		"leases coordination.k8s.io/v1 true Lease", "poddisruptionbudgets pdb policy/v1 true PodDisruptionBudget"} {
		if !strings.Contains(normalizeSpaces(resources), want) {
			t.Errorf("%q not found in api-resources:\n%s", want, resources)
		}
	}
	if all := s.Kubectl(t, "api-resources", "--categories=all", "-o", "name"); !strings.Contains(all, "pods") ||
		strings.Contains(all, "configmaps") {
		t.Errorf("category all: got %q", all)
	}
	if text := s.Kubectl(t, "explain", "pod.spec.containers.livenessProbe.exec"); !strings.Contains(text, "command") ||
		!strings.Contains(text, "ExecAction") {
		t.Errorf("kubectl explain: got %q", text)
	}
	if text := s.Kubectl(t, "explain", "deploy.spec.strategy", "--recursive"); !strings.Contains(text,
		"maxUnavailable") {
		t.Errorf("kubectl explain: got %q", text)
	}
	for field, word := range map[string]string{"sts.spec.persistentVolumeClaimRetentionPolicy": "whenScaled",
		"cronjob.spec.concurrencyPolicy": "Forbid", "hpa.spec.behavior.scaleUp": "stabilizationWindowSeconds"} {
		if text := s.Kubectl(t, "explain", field); !strings.Contains(text, word) {
			t.Errorf("kubectl explain %s: got %q", field, text)
		}
	}
	if text := s.Kubectl(t, "get", "--raw", "/version"); !strings.Contains(text, "+berth") {
		t.Errorf("/version: got %q", text)
	}
	if text := s.Kubectl(t, "get", "--raw", "/openapi/v2"); strings.Contains(text, "__internal") ||
		!strings.Contains(text,
			"io.k8s.api.core.v1.Pod") {
		t.Error("OpenAPI v2 contains internal versions or lacks Pod")
	}
}

// normalizeSpaces replaces each sequence of spaces in a line by one space.
func normalizeSpaces(text string) string {
	var out strings.Builder
	for line := range strings.Lines(text) {
		out.WriteString(strings.Join(strings.Fields(line), " ") + "\n")
	}
	return out.String()
}

// TestStoredOnlyKindsWarn checks the warning for kinds that no controller of the server handles.
func TestStoredOnlyKindsWarn(t *testing.T) {
	t.Parallel()
	s := Shared(t)
	const warning = "Warning: IP addresses are stored by this server, which does not act on them"
	out := s.Apply(t, `apiVersion: networking.k8s.io/v1
kind: IPAddress
metadata: {name: 192.0.2.77}
spec: {parentRef: {resource: services, namespace: default, name: none}}
`)
	if !strings.Contains(out, warning) {
		t.Errorf("kubectl apply: no warning in %q", out)
	}
	if out = s.Kubectl(t, "label", "ipaddress", "192.0.2.77", "a=b"); !strings.Contains(out, warning) {
		t.Errorf("kubectl label: no warning in %q", out)
	}
}
