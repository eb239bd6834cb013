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

// TestNodeReportsConfiguration: the configuration fields that have an effect on API objects only.
func TestNodeReportsConfiguration(t *testing.T) {
	t.Parallel()
	p := start(t, pairOptions{Disk: "size=1g", Berth: map[string]any{"imageGCPeriod": "1s"}, Config: map[string]any{
		// no image can be deleted: the node has pulled none
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
	p.until("two images and no more", func() string {
		if got := p.field("node", p.Node, ".status.images[*].sizeBytes"); len(strings.Fields(got)) != 2 {
			return got
		}
		return ""
	})
	whole, left := resource.MustParse(p.field("node", p.Node, ".status.capacity.memory")),
		resource.MustParse(p.field("node", p.Node, ".status.allocatable.memory"))
	if took := whole.Value() - left.Value(); took != (128+256+100)<<20 { // the last one comes from evictionHard
		t.Errorf("got %d bytes of memory reserved from pods", took)
	}
	p.until("the lease", func() string { // a new Node has no lease for a moment
		if got, err := p.TryKubectl(t, "", "get", "lease", "-n", "kube-node-lease", p.Node, "-o",
			"jsonpath={.spec.leaseDurationSeconds}"); err != nil || got != "33" {
			return "issued for " + got
		}
		return ""
	})
	p.until("the node to say that its disk of images stays too full", func() string {
		out := p.Kubectl(t, "get", "events", "-A", "--field-selector", "involvedObject.kind=Node,reason=FreeDiskSpaceFailed",
			"-o", "jsonpath={.items[*].message}")
		if !strings.Contains(out, "but only found 0 bytes eligible to free") {
			return out
		}
		return ""
	})
	// By default, an unchanged status is reported every five minutes, which is longer than the test
	// waits.
	first := ""
	p.until("repeated status reports", func() string {
		now := p.field("node", p.Node, `.status.conditions[?(@.type=="Ready")].lastHeartbeatTime`)
		if first == "" {
			first = now
		}
		if now == first {
			return "last reported at " + now
		}
		return ""
	})
}

// TestNodeWithoutSelfRegistration waits until its Node is created and applies its contents.
func TestNodeWithoutSelfRegistration(t *testing.T) {
	t.Parallel()
	p := &Pair{t: t, Server: servers.Start(t)}
	p.host(pairOptions{Config: map[string]any{"registerNode": false}}, "--kubeconfig", p.Kubeconfig)
	p.until("the agent to miss its Node", func() string {
		if text := p.Agent.Log(); !strings.Contains(text, "register node "+p.Node) || !strings.Contains(text, "not found") {
			return text
		}
		return ""
	})
	if out, err := p.TryKubectl(t, "", "get", "node", p.Node); err == nil || !strings.Contains(out, "NotFound") {
		t.Errorf("unexpected Node: %v %s", err, out)
	}
	p.Apply(t, "apiVersion: v1\nkind: Node\nmetadata: {name: "+p.Node+", labels: {made: by-hand}}\n")
	p.nodeIs("Ready", "True")
	if got := p.field("node", p.Node, ".metadata.labels.made"); got != "by-hand" {
		t.Errorf("got node label %q", got)
	}
	p.Apply(t, p.pod("here", "", "sleep"))
	p.waitForField("pod", "here", ready, "True")
	p.Kubectl(t, "delete", "pods", "--all", "--timeout=60s")
}

// TestWithoutCertificateRotation: with rotateCertificates: false, a node requests one certificate
// and uses it until it expires.
func TestWithoutCertificateRotation(t *testing.T) {
	t.Parallel()
	p := &Pair{t: t, Server: servers.Start(t, func(c *control.Config) { c.ClusterSigningDuration = time.Minute })}
	p.issueToken()
	p.joinHost(t.TempDir(), pairOptions{Config: map[string]any{"rotateCertificates": false, "serverTLSBootstrap": false}})
	p.until("the node's certificate", func() string {
		if _, err := p.certificate("kubelet-client"); err != nil {
			return err.Error()
		}
		return ""
	})
	client := p.storedCertificate("kubelet-client")
	until := func(left time.Duration) {
		t.Helper()
		p.until("the certificate to be good for "+left.String(), func() string {
			if now := time.Until(client.NotAfter); now > left {
				return "valid for " + now.String()
			}
			return ""
		})
	}
	// Before expiration: otherwise a new one is requested. The server deletes the request.
	until(15 * time.Second)
	if all := strings.Fields(p.Kubectl(t, "get", "csr", "-o", "jsonpath={.items[*].metadata.name}")); len(all) != 1 {
		t.Errorf("got certificate requests %v", all)
	}
	until(time.Second) // with rotation, it would be renewed at least 6 s earlier
	if now := p.storedCertificate("kubelet-client"); !now.Equal(client) {
		t.Errorf("certificate valid until %s was replaced by one until %s", client.NotAfter, now.NotAfter)
	}
}
