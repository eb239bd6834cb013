package pair

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	servers "berth/test/control"
	"berth/test/images"
)

const deploymentOfFile = `apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 1
      containers: [{name: c, image: %q, args: [sleep]}]
`

// berth runs a command of the node and returns its output, with that on stderr.
func (p *Pair) berth(args ...string) string {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), waitTimeout)
	defer cancel()
	out, err := p.Agent.Command(ctx, args...).CombinedOutput()
	if err != nil {
		p.t.Fatalf("berth %s: %v: %s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// containersOnNode returns the IDs of the running containers by the UID of their pod.
func (p *Pair) containersOnNode() map[string]string {
	p.t.Helper()
	var list corev1.PodList
	if err := json.Unmarshal([]byte(p.berth("ps", "-o", "json")), &list); err != nil {
		p.t.Fatal(err)
	}
	out := map[string]string{}
	for i := range list.Items {
		for _, c := range list.Items[i].Status.ContainerStatuses {
			if c.State.Running != nil {
				out[string(list.Items[i].UID)] = c.ContainerID
			}
		}
	}
	return out
}

// TestWorkloadOfFileWhenNodeJoins joins a standalone node that runs a Deployment of a file: the containers keep
// running, the server shows their pods as mirror pods, and an event on the server says what it does not know.
func TestWorkloadOfFileWhenNodeJoins(t *testing.T) {
	t.Parallel()
	p := &Pair{t: t}
	p.Server = servers.Start(t)
	p.startHost(pairOptions{})
	file := filepath.Join(p.Agent.ManifestDir, "web.yaml")
	if err := os.WriteFile(file, []byte(fmt.Sprintf(deploymentOfFile, images.TestboxRef)), 0o600); err != nil {
		t.Fatal(err)
	}
	p.waitUntil("the workload", func() string {
		if out := p.berth("get", "all"); !strings.Contains(out, "web") {
			return out
		}
		return ""
	})
	p.berth("rollout", "status", "deployment/web")
	before := p.containersOnNode()
	if len(before) != 2 {
		t.Fatalf("running containers: %v", before)
	}
	if out := p.berth("describe", "deployment/web"); strings.Contains(out, "NotOnServer") {
		t.Errorf("event on a node without a server:\n%s", out)
	}

	p.Agent.Args = append(p.Agent.Args, "--kubeconfig", p.Kubeconfig)
	if err := p.Agent.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.waitForNodeCondition("Ready", "True")
	p.waitUntil("two ready mirror pods", func() string {
		out := p.Kubectl(t, "get", "pods", "-l", "app=web", "-o", "jsonpath={range .items[*]}{.metadata.name} "+
			"{.status.conditions[?(@.type=='Ready')].status}{'\\n'}{end}")
		if strings.Count(out, "-"+p.Node+" True") != 2 {
			return out
		}
		return ""
	})
	p.berth("rollout", "status", "deployment/web")
	if after := p.containersOnNode(); fmt.Sprint(after) != fmt.Sprint(before) {
		t.Errorf("the containers changed from %v to %v", before, after)
	}
	p.waitUntil("the event", func() string {
		if out := p.Kubectl(t, "get", "events"); !strings.Contains(out, "NotOnServer") ||
			!strings.Contains(out, "deployment/web") {
			return out
		}
		return ""
	})
	for _, c := range []struct {
		where, text string
	}{
		{"describe", p.berth("describe", "deployment/web")}, {"get", p.berth("get", "deployment/web")},
		{"log", p.Agent.Log()},
	} {
		if !strings.Contains(c.text, "API server") {
			t.Errorf("berth %s does not name the server:\n%s", c.where, c.text)
		}
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	p.waitUntil("the deletion of the mirror pods", func() string {
		return p.Kubectl(t, "get", "pods", "-l", "app=web", "-o", "name")
	})
}
