package pair

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"berth/control/pki"
	servers "berth/test/control"
)

const bootstrapToken = `apiVersion: v1
kind: Secret
metadata: {name: bootstrap-token-%[1]s, namespace: kube-system}
type: bootstrap.kubernetes.io/token
stringData:
  token-id: %[1]s
  token-secret: 0123456789abcdef
  expiration: %[2]s
  usage-bootstrap-authentication: "true"
  usage-bootstrap-signing: "true"
  auth-extra-groups: system:bootstrappers:kubeadm:default-node-token
`

// TestNodeJoin checks berth join, the permissions of the node, and the deletion of its Node.
func TestNodeJoin(t *testing.T) {
	t.Parallel()
	p := &Pair{t: t, Server: servers.Start(t)}
	p.createBootstrapToken()
	dir := t.TempDir()
	kubeconfig, bootstrap := filepath.Join(dir, "kubeconfig"), filepath.Join(dir, "bootstrap")
	if out, err := p.join(dir, "sha256:"+strings.Repeat("0", 64)); err == nil || !strings.Contains(out, "hash") {
		t.Errorf("join with the hash of another CA: got %v: %s", err, out)
	}
	p.joinHost(dir, pairOptions{})
	p.waitForNodeCondition("Ready", "True")
	p.Apply(t, p.pod("first", "", "print", "hello", ",", "sleep"))
	p.waitForField("pod", "first", readyStatus, "True")
	p.waitUntil("the token volume", func() string {
		path := filepath.Join(p.Agent.RootDir, "pods", p.field("pod", "first", ".metadata.uid"),
			"volumes/kubernetes.io~projected/*/token")
		if found, _ := filepath.Glob(path); len(found) != 1 {
			return path
		}
		return ""
	})
	p.waitUntil("kubectl logs", func() string {
		if out, err := p.TryKubectl(t, "", "logs", "first"); err != nil || !strings.Contains(out, "hello") {
			return out
		}
		return ""
	})
	if out, err := servers.RunKubectl(t, kubeconfig, "", "auth", "whoami"); err != nil || !strings.Contains(out,
		"system:node:"+p.Node) {
		t.Errorf("kubectl auth whoami: got %v: %s", err, out)
	}
	if out, err := servers.RunKubectl(t, kubeconfig, "", "get", "secrets", "-A"); err == nil {
		t.Errorf("node can list secrets: %s", out)
	}
	if err := os.Remove(bootstrap); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
	defer cancel()
	if err := p.Agent.Restart(ctx); err != nil { // the agent uses the kubeconfig that it has written
		t.Fatal(err)
	}
	p.Apply(t, p.pod("later", "", "sleep"))
	p.waitForField("pod", "later", readyStatus, "True")
	p.Kubectl(t, "delete", "pods", "--all", "--timeout=4m")
	p.testNodeDeletion()
}

// testNodeDeletion deletes the Node. The agent recreates it with its label, taint and cordon.
func (p *Pair) testNodeDeletion() {
	p.t.Helper()
	p.Kubectl(p.t, "cordon", p.Node)
	p.Kubectl(p.t, "label", "node", p.Node, "disk=fast", "node-role.kubernetes.io/worker=")
	p.Kubectl(p.t, "taint", "node", p.Node, "custom:NoExecute")
	first := p.field("node", p.Node, ".metadata.uid")
	p.Kubectl(p.t, "delete", "node", p.Node)
	p.waitUntil("the recreated Node", func() string {
		if now := p.field("node", p.Node, ".metadata.uid"); now == "" || now == first {
			return "got " + now
		}
		return ""
	})
	p.waitForNodeCondition("Ready", "True")
	got := p.field("node", p.Node, ".spec.unschedulable") + " " + p.field("node", p.Node, ".metadata.labels.disk")
	if taints := p.field("node", p.Node, ".spec.taints[*].key"); got != "true fast" || !strings.Contains(taints,
		"custom") {
		p.t.Errorf("recreated Node: got %q with taints %s, want \"true fast\" with taint custom", got, taints)
	}
}

// TestNodeRejoins changes the address of the server: the node keeps its certificate and pods. Then the
// node joins another server, and the pods of the first server are deleted.
func TestNodeRejoins(t *testing.T) {
	t.Parallel()
	p := &Pair{t: t, Server: servers.Start(t)}
	p.createBootstrapToken()
	dir := t.TempDir()
	first := newServerProxy(t, hostOf(t, p.Server.Config.Host))
	p.joinHost(dir, pairOptions{Config: map[string]any{
		// written by the join command
		"authentication": map[string]any{"x509": map[string]any{"clientCAFile": filepath.Join(dir, "ca.crt")}},
	}}, "--server", "https://"+first.address)
	p.waitForNodeCondition("Ready", "True")
	p.Apply(t, p.pod("stays", "", "print", "hello", ",", "sleep"))
	p.waitForField("pod", "stays", readyStatus, "True")
	p.waitUntil("the node's own kubeconfig", func() string {
		if _, err := os.Stat(filepath.Join(dir, "kubeconfig")); err != nil {
			return err.Error()
		}
		return ""
	})
	before := p.storedCertificate("kubelet-client")

	first.disconnect() // permanently
	if out := p.rejoin(dir); strings.Contains(out, "belonged to another CA") {
		t.Errorf("certificates of the same CA were moved away: %s", out)
	}
	p.waitForLeaseRenewal(time.Now())
	p.waitForField("pod", "stays", readyStatus, "True")
	if now := p.storedCertificate("kubelet-client"); !now.Equal(before) {
		t.Errorf("client certificate of %s was replaced by one of %s", before.NotBefore, now.NotBefore)
	}

	other := &Pair{t: t, Server: servers.Start(t), Host: p.Host, Agent: p.Agent, Node: p.Node}
	other.createBootstrapToken()
	if out := other.rejoin(dir); !strings.Contains(out, filepath.Join(dir, "kubeconfig.old")) {
		t.Errorf("certificates of another CA were not moved away: %s", out)
	}
	other.waitForNodeCondition("Ready", "True")
	other.Apply(t, other.pod("moved", "", "print", "hello", ",", "sleep"))
	other.waitForField("pod", "moved", readyStatus, "True")
	other.waitUntil("kubectl logs", func() string {
		if out, err := other.TryKubectl(t, "", "logs", "moved"); err != nil || !strings.Contains(out, "hello") {
			return out
		}
		return ""
	})
	p.waitUntil("deletion of the first server's pod", func() string {
		return strings.Join(p.remainingPodDirs("stays"), " ")
	})
	other.Kubectl(t, "delete", "pods", "--all", "--timeout=4m")
}

// rejoin runs `berth join` again and restarts the agent. It returns the output of the command.
func (p *Pair) rejoin(dir string) string {
	p.t.Helper()
	out, err := p.join(dir, p.caHash(), "--cert-dir", filepath.Join(filepath.Dir(p.Agent.ConfigFile), "pki"))
	if err != nil {
		p.t.Fatalf("berth join: %v: %s", err, out)
	}
	ctx, cancel := context.WithTimeout(p.t.Context(), waitTimeout)
	defer cancel()
	if err := p.Agent.Restart(ctx); err != nil {
		p.t.Fatal(err)
	}
	return out
}

// createBootstrapToken creates the bootstrap token of these tests.
func (p *Pair) createBootstrapToken() {
	p.t.Helper()
	p.Apply(p.t, fmt.Sprintf(bootstrapToken, "abcdef", time.Now().Add(time.Hour).UTC().Format(time.RFC3339)))
	p.WaitForBootstrapToken(p.t, "abcdef.0123456789abcdef")
}

// join runs `berth join`, which writes kubeconfigs into dir.
func (p *Pair) join(dir, hash string, more ...string) (string, error) {
	p.t.Helper()
	built, err := artifacts()
	if err != nil {
		p.t.Fatal(err)
	}
	cmd := exec.CommandContext(p.t.Context(), built.berth, append([]string{
		"join", "--server", p.Server.Config.Host, "--token", "abcdef.0123456789abcdef",
		"--discovery-token-ca-cert-hash", hash,
		"--config", filepath.Join(dir, "config.yaml"), "--kubeconfig", filepath.Join(dir, "kubeconfig"),
		"--bootstrap-kubeconfig", filepath.Join(dir, "bootstrap"),
	}, more...)...)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// joinHost creates a host whose agent joins with the token and requests client and serving
// certificates. more are additional flags of the join command.
func (p *Pair) joinHost(dir string, o pairOptions, more ...string) {
	p.t.Helper()
	if out, err := p.join(dir, p.caHash(), more...); err != nil {
		p.t.Fatalf("berth join: %v: %s", err, out)
	}
	config := map[string]any{"serverTLSBootstrap": true, "tlsCertFile": "", "tlsPrivateKeyFile": ""}
	maps.Copy(config, o.Config)
	o.Config = config
	p.startHost(o, "--kubeconfig", filepath.Join(dir, "kubeconfig"),
		"--bootstrap-kubeconfig", filepath.Join(dir, "bootstrap"))
}

// caHash returns the hash of the server's CA certificate.
func (p *Pair) caHash() string {
	text, err := os.ReadFile(filepath.Join(filepath.Dir(p.Kubeconfig), "pki", "ca.crt"))
	if err != nil {
		p.t.Fatal(err)
	}
	hash, err := pki.Hash(text)
	if err != nil {
		p.t.Fatal(err)
	}
	return hash
}
