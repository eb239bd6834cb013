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

// TestANodeTellsWhatItsConfigurationSays: the fields that have an effect at the
// server alone, one by one.
func TestANodeTellsWhatItsConfigurationSays(t *testing.T) {
	t.Parallel()
	p := start(t, pairOptions{Disk: "size=1g", Berth: map[string]any{"imageGCPeriod": "1s"}, Config: map[string]any{
		"imageGCHighThresholdPercent": 2, "imageGCLowThresholdPercent": 1, // and no image that may go: the node has pulled none
		"nodeLeaseDurationSeconds": 33, "nodeStatusUpdateFrequency": "1s", "nodeStatusReportFrequency": "1s", "nodeStatusMaxImages": 2,
		"providerID": "bench://rack/7", "maxPods": 17,
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
		p.is("node", p.Node, path, want)
	}
	p.until("two images and no more", func() string {
		if got := p.field("node", p.Node, ".status.images[*].sizeBytes"); len(strings.Fields(got)) != 2 {
			return got
		}
		return ""
	})
	whole, left := resource.MustParse(p.field("node", p.Node, ".status.capacity.memory")), resource.MustParse(p.field("node", p.Node, ".status.allocatable.memory"))
	if took := whole.Value() - left.Value(); took != (128+256+100)<<20 { // the last is evictionHard's
		t.Errorf("of memory %d are taken from pods", took)
	}
	p.until("the lease", func() string { // a new Node has none for a moment
		if got, err := p.TryKubectl(t, "", "get", "lease", "-n", "kube-node-lease", p.Node, "-o", "jsonpath={.spec.leaseDurationSeconds}"); err != nil || got != "33" {
			return "it is for " + got
		}
		return ""
	})
	p.until("the node to say that its disk of images stays too full", func() string {
		out := p.Kubectl(t, "get", "events", "-A", "--field-selector", "involvedObject.kind=Node,reason=FreeDiskSpaceFailed", "-o", "jsonpath={.items[*].message}")
		if !strings.Contains(out, "but only found 0 bytes eligible to free") {
			return out
		}
		return ""
	})
	// By default an unchanged status is told every five minutes, longer than is waited here.
	first := ""
	p.until("the status to be told again and again", func() string {
		now := p.field("node", p.Node, `.status.conditions[?(@.type=="Ready")].lastHeartbeatTime`)
		if first == "" {
			first = now
		}
		if now == first {
			return "last told at " + now
		}
		return ""
	})
}

// TestANodeThatDoesNotRegister waits until somebody makes its Node, and takes what
// that one says of it.
func TestANodeThatDoesNotRegister(t *testing.T) {
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
		t.Errorf("there is a Node: %v %s", err, out)
	}
	p.Apply(t, "apiVersion: v1\nkind: Node\nmetadata: {name: "+p.Node+", labels: {made: by-hand}}\n")
	p.nodeIs("Ready", "True")
	if got := p.field("node", p.Node, ".metadata.labels.made"); got != "by-hand" {
		t.Errorf("the label made is %q", got)
	}
	p.Apply(t, p.pod("here", "", "sleep"))
	p.is("pod", "here", ready, "True")
	p.Kubectl(t, "delete", "pods", "--all", "--timeout=60s")
}

// TestCertificatesThatAreNotRotated: with rotateCertificates: false a node asks for
// one certificate and keeps it to its end.
func TestCertificatesThatAreNotRotated(t *testing.T) {
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
	client := p.kept("kubelet-client")
	until := func(left time.Duration) {
		t.Helper()
		p.until("the certificate to be good for "+left.String(), func() string {
			if now := time.Until(client.NotAfter); now > left {
				return "it is good for " + now.String()
			}
			return ""
		})
	}
	// Before it expires: then a new one is asked for, and the server forgets the request.
	until(15 * time.Second)
	if all := strings.Fields(p.Kubectl(t, "get", "csr", "-o", "jsonpath={.items[*].metadata.name}")); len(all) != 1 {
		t.Errorf("it was asked for certificates %v", all)
	}
	until(time.Second) // it would have been rotated 6 s before at the latest
	if now := p.kept("kubelet-client"); !now.Equal(client) {
		t.Errorf("the certificate until %s was followed by one until %s", client.NotAfter, now.NotAfter)
	}
}
