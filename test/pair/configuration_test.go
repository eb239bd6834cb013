package pair

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"

	"berth/control"
	servers "berth/test/control"
)

// TestNodeReportsConfiguration checks configuration fields that only affect API objects.
func TestNodeReportsConfiguration(t *testing.T) {
	t.Parallel()
	berthConfig := map[string]any{"imageGCPeriod": "1s"}
	p := startPair(t, pairOptions{Disk: "size=1g", BerthConfig: berthConfig, Config: map[string]any{
		// Image garbage collection finds no image to delete, because the node has pulled none.
		"imageGCHighThresholdPercent": 2, "imageGCLowThresholdPercent": 1,
		"nodeLeaseDurationSeconds": 33, "nodeStatusUpdateFrequency": "1s", "nodeStatusReportFrequency": "1s",
		"nodeStatusMaxImages": 2,
		"providerID":          "bench://rack/7", "maxPods": 17,
		"registerWithTaints": []any{map[string]any{"key": "fresh", "value": "yes", "effect": "NoSchedule"}},
		"kubeReserved":       map[string]string{"cpu": "100m", "memory": "128Mi"},
		"systemReserved":     map[string]string{"cpu": "150m", "memory": "256Mi"},
	}})
	for path, want := range map[string]string{
		".spec.providerID":                              "bench://rack/7",
		`.spec.taints[?(@.key=="fresh")].effect`:        "NoSchedule",
		".status.allocatable.cpu":                       fmt.Sprint(runtime.NumCPU()*1000-250, "m"),
		".status.capacity.pods":                         "17",
		`.status.conditions[?(@.type=="Ready")].status`: "True",
		`.status.daemonEndpoints.kubeletEndpoint.Port`:  "10250",
	} {
		p.waitForField("node", p.Node, path, want)
	}
	p.waitUntil("two images in the node status", func() string {
		if got := p.field("node", p.Node, ".status.images[*].sizeBytes"); len(strings.Fields(got)) != 2 {
			return got
		}
		return ""
	})
	capacity, allocatable := resource.MustParse(p.field("node", p.Node, ".status.capacity.memory")),
		resource.MustParse(p.field("node", p.Node, ".status.allocatable.memory"))
	// kubeReserved, systemReserved and the default of evictionHard.
	if reserved, want := capacity.Value()-allocatable.Value(), int64(128+256+100)<<20; reserved != want {
		t.Errorf("got %d bytes of reserved memory, want %d", reserved, want)
	}
	p.waitUntil("the lease", func() string { // a new Node has no lease at first
		if got, err := p.TryKubectl(t, "", "get", "lease", "-n", "kube-node-lease", p.Node, "-o",
			"jsonpath={.spec.leaseDurationSeconds}"); err != nil || got != "33" {
			return "got lease duration " + got
		}
		return ""
	})
	p.waitUntil("the event FreeDiskSpaceFailed", func() string {
		out := p.Kubectl(t, "get", "events", "-A", "--field-selector",
			"involvedObject.kind=Node,reason=FreeDiskSpaceFailed",
			"-o", "jsonpath={.items[*].message}")
		if !strings.Contains(out, "but only found 0 bytes eligible to free") {
			return out
		}
		return ""
	})
	// The default reporting period of an unchanged status is five minutes, longer than the test waits.
	first := ""
	p.waitUntil("another status report", func() string {
		latest := p.field("node", p.Node, `.status.conditions[?(@.type=="Ready")].lastHeartbeatTime`)
		if first == "" {
			first = latest
		}
		if latest == first {
			return "last reported at " + latest
		}
		return ""
	})
}

// TestNodeWithoutSelfRegistration uses registerNode: false. The agent waits for its Node and keeps its
// labels.
func TestNodeWithoutSelfRegistration(t *testing.T) {
	t.Parallel()
	p := &Pair{t: t, Server: servers.Start(t)}
	p.startHost(pairOptions{Config: map[string]any{"registerNode": false}}, "--kubeconfig", p.Kubeconfig)
	p.waitUntil("the error in the agent log", func() string {
		if text := p.Agent.Log(); !strings.Contains(text, "register node "+p.Node) ||
			!strings.Contains(text, "not found") {
			return text
		}
		return ""
	})
	if out, err := p.TryKubectl(t, "", "get", "node", p.Node); err == nil || !strings.Contains(out, "NotFound") {
		t.Errorf("unexpected Node: %v %s", err, out)
	}
	p.Apply(t, "apiVersion: v1\nkind: Node\nmetadata: {name: "+p.Node+", labels: {made: by-hand}}\n")
	p.waitForNodeCondition("Ready", "True")
	if got := p.field("node", p.Node, ".metadata.labels.made"); got != "by-hand" {
		t.Errorf("got node label %q", got)
	}
	p.Apply(t, p.pod("here", "", "sleep"))
	p.waitForField("pod", "here", readyStatus, "True")
	p.Kubectl(t, "delete", "pods", "--all", "--timeout=4m")
}

// TestWithoutCertificateRotation uses rotateCertificates: false. The node requests one certificate and
// uses it until it expires.
func TestWithoutCertificateRotation(t *testing.T) {
	t.Parallel()
	p := &Pair{t: t, Server: servers.Start(t, func(c *control.Config) { c.ClusterSigningDuration = time.Minute })}
	p.createBootstrapToken()
	p.joinHost(t.TempDir(), pairOptions{Config: map[string]any{"rotateCertificates": false,
		"serverTLSBootstrap": false}})
	p.waitUntil("the node's certificate", func() string {
		if _, err := p.readCertificate("kubelet-client"); err != nil {
			return err.Error()
		}
		return ""
	})
	client := p.storedCertificate("kubelet-client")
	waitForValidity := func(left time.Duration) {
		t.Helper()
		p.waitUntil("the certificate to be valid for only "+left.String(), func() string {
			if now := time.Until(client.NotAfter); now > left {
				return "valid for " + now.String()
			}
			return ""
		})
	}
	// Checked before the certificate expires: then the agent requests another one, and the server deletes
	// the first request.
	waitForValidity(15 * time.Second)
	if all := strings.Fields(p.Kubectl(t, "get", "csr", "-o", "jsonpath={.items[*].metadata.name}")); len(all) != 1 {
		t.Errorf("got certificate signing requests %v, want one", all)
	}
	waitForValidity(3 * time.Second) // rotation would have replaced it when it was valid for 6 s, or earlier
	if now := p.storedCertificate("kubelet-client"); !now.Equal(client) {
		t.Errorf("certificate valid until %s was replaced by one until %s", client.NotAfter, now.NotAfter)
	}
}
