package pair

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"

	"berth/control"
	servers "berth/test/control"
	"berth/test/hosts"
	"berth/test/operator"
)

// operatorNamespace is the namespace of the operator. Its websites are in the namespace default.
const operatorNamespace = "websites-system"

// installer installs and removes a version of the operator.
type installer interface {
	install(version string)
	remove(version string)
}

// TestOperator installs an operator that is built with controller-runtime by kubectl apply, upgrades it to a version
// that stores another version of its kind, and removes it.
func TestOperator(t *testing.T) {
	t.Parallel()
	if os.Getenv("BERTH_TORTURE") == "" {
		t.Skip("takes a minute: make torture PKGS=./test/pair RUN=TestOperator")
	}
	p := startOperatorPair(t)
	p.useOperator(manifestInstaller{p})
}

// TestOperatorWithHelm installs, upgrades and removes the same operator by its chart.
func TestOperatorWithHelm(t *testing.T) {
	t.Parallel()
	if os.Getenv("BERTH_TORTURE") == "" {
		t.Skip("builds helm: make torture PKGS=./test/pair RUN=TestOperatorWithHelm")
	}
	program, err := hosts.Helm(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	p := startOperatorPair(t)
	p.useOperator(helmInstaller{p, program, t.TempDir()})
}

// helmInstaller installs the operator by Helm.
type helmInstaller struct {
	*Pair
	program, dir string
}

func (h helmInstaller) install(version string) {
	h.t.Helper()
	chart, err := operator.Chart()
	if err != nil {
		h.t.Fatal(err)
	}
	h.helm("upgrade", "websites", chart, "--install", "--set-string", "version="+version, "--wait", "--timeout", "4m")
	if out := h.helm("list", "--output", "yaml"); !strings.Contains(out, "status: deployed") {
		h.t.Errorf("helm list: got %s", out)
	}
}

func (h helmInstaller) remove(string) {
	h.t.Helper()
	h.helm("uninstall", "websites", "--wait", "--timeout", "4m")
}

func (h helmInstaller) helm(args ...string) string {
	h.t.Helper()
	args = append(args, "--namespace", operatorNamespace)
	out, err := hosts.HelmCommand(h.t.Context(), h.program, h.Kubeconfig, h.dir, args...).CombinedOutput()
	if err != nil {
		h.t.Fatalf("helm %s: %v\n%s", args[0], err, out)
	}
	return string(out)
}

// manifestInstaller installs the operator by kubectl apply.
type manifestInstaller struct{ *Pair }

func (m manifestInstaller) install(version string) {
	m.t.Helper()
	m.Apply(m.t, m.manifests(version))
}

func (m manifestInstaller) remove(version string) {
	m.t.Helper()
	if out, err := m.TryKubectl(m.t, m.manifests(version), "delete", "--timeout=4m", "-f", "-"); err != nil {
		m.t.Fatalf("kubectl delete: %v\n%s", err, out)
	}
}

func (m manifestInstaller) manifests(version string) string {
	m.t.Helper()
	text, err := operator.Manifests(version, operatorNamespace)
	if err != nil {
		m.t.Fatal(err)
	}
	return text
}

// startOperatorPair starts a server and a node on a LAN, with the images of the operator. Pods reach the server by its
// Service, and the server reaches the webhooks through the node.
func startOperatorPair(t *testing.T) *Pair {
	t.Helper()
	archives, err := operator.Images(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	lan, err := hosts.NewLAN()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := lan.Close(); err != nil {
			t.Error(err)
		}
	})
	p := &Pair{t: t, Server: servers.Start(t, func(c *control.Config) {
		c.Listen, c.ClusterCIDRs = netip.AddrPortFrom(lan.Machine, 0).String(), podCIDRs
	})}
	p.createBootstrapToken()
	p.joinHost(t.TempDir(), pairOptions{WithoutCNI: true, LAN: lan,
		BerthConfig: map[string]any{"cniPodCIDRs": []string{"node"}}})
	p.waitForNodeCondition("Ready", "True")
	ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
	defer cancel()
	for _, a := range archives {
		if err := p.Host.Import(ctx, a.Path); err != nil {
			t.Fatal(err)
		}
	}
	return p
}

// website returns the manifest of a Website of version v1alpha1.
func website(name, spec string) string {
	return fmt.Sprintf("apiVersion: operators.example.com/v1alpha1\nkind: Website\n"+
		"metadata: {name: %s, namespace: default}\nspec: %s\n", name, spec)
}

// useOperator goes through the life of an operator.
func (p *Pair) useOperator(by installer) {
	t := p.t
	p.Kubectl(t, "create", "namespace", operatorNamespace)
	defer p.logOperator()
	by.install("1")
	p.waitForOperator("1")
	p.waitUntil("the webhooks to answer", func() string {
		out, err := p.TryKubectl(t, website("site", "{message: hello}"), "apply", "-f", "-")
		if err == nil {
			return ""
		}
		return out
	})
	p.Kubectl(t, "wait", "website/site", "--for=condition=Available", "--timeout=4m")
	if got := p.Kubectl(t, "get", "website", "site", "-o", "jsonpath={.spec.size} {.status.readyReplicas}"); got !=
		"1 1" {
		t.Errorf("got size and ready replicas %q, want the default 1 and 1", got)
	}
	p.requireInvalidWebsite("{size: 4}", "a website has at most 3 replicas, got 4")
	if out := p.Apply(t, website("empty", "{size: 0}")); !strings.Contains(out, "Warning: the message is empty") {
		t.Errorf("no warning of the webhook: %s", out)
	}
	p.requireNewLeader()

	by.install("2")
	p.waitForOperator("2")
	p.waitUntil("version v1 by the conversion webhook", func() string {
		out, err := p.TryKubectl(t, "", "get", "websites.v1."+operatorGroup, "site", "-o",
			"jsonpath={.spec.replicas} {.spec.content.message}")
		if err != nil || !strings.HasSuffix(out, "1 changed") {
			return out
		}
		return ""
	})
	p.requireInvalidWebsite("{size: 5}", "a website has at most 3 replicas, got 5")
	p.waitUntil("the new version to reconcile", func() string {
		return p.deploymentUnlike(`{.metadata.labels.operators\.example\.com/version}`, "2")
	})
	p.Kubectl(t, "patch", "websites.v1."+operatorGroup, "site", "--type=merge", "-p",
		`{"spec":{"content":{"message":"second"},"replicas":2}}`)
	p.waitUntil("the change", func() string {
		return p.deploymentUnlike("{.spec.template.spec.containers[0].env[0].value} {.status.readyReplicas}",
			"second 2")
	})
	if got := p.Kubectl(t, "get", "websites.v1alpha1."+operatorGroup, "site", "-o", "jsonpath={.spec}"); !strings.
		HasSuffix(got, `{"message":"second","size":2}`) {
		t.Errorf("as v1alpha1: got %s", got)
	}
	p.Kubectl(t, "wait", "website/site", "--for=condition=Available", "--timeout=4m")

	p.requireStorageMigration()
	p.Kubectl(t, "delete", "websites", "--all", "--timeout=4m")
	p.waitUntil("the garbage collection of the Deployments", func() string {
		return p.Kubectl(t, "get", "deployments,pods", "-n", "default", "-o", "name")
	})
	by.remove("2")
	p.Kubectl(t, "delete", "namespace", operatorNamespace, "--timeout=4m")
	if out, err := p.TryKubectl(t, "", "get", "websites"); err == nil {
		t.Errorf("after the removal: got %s", out)
	}
}

// requireStorageMigration writes the Websites in version v1.
func (p *Pair) requireStorageMigration() {
	p.t.Helper()
	p.Apply(p.t, "apiVersion: storagemigration.k8s.io/v1\nkind: StorageVersionMigration\nmetadata: {name: websites}\n"+
		"spec: {resource: {group: "+operatorGroup+", resource: websites}}\n")
	p.Kubectl(p.t, "wait", "storageversionmigration/websites", "--for=condition=Succeeded", "--timeout=4m")
	p.waitUntil("v1 as the only stored version", func() string {
		out := p.Kubectl(p.t, "get", "crd", "websites."+operatorGroup, "-o", "jsonpath={.status.storedVersions}")
		if out == `["v1"]` {
			return ""
		}
		return out
	})
}

const operatorGroup = "operators.example.com"

// waitForOperator waits until all replicas of the operator have a version and are ready.
func (p *Pair) waitForOperator(version string) {
	p.t.Helper()
	p.Kubectl(p.t, "rollout", "status", "deployment/websites", "-n", operatorNamespace, "--timeout=4m")
	got := p.Kubectl(p.t, "get", "deployment", "websites", "-n", operatorNamespace, "-o",
		"jsonpath={.spec.template.spec.containers[0].image} {.status.readyReplicas}")
	if want := "docker.io/berth/websites:" + version + " 2"; got != want {
		p.t.Fatalf("got operator %q, want %q", got, want)
	}
}

// logOperator logs the output of the operator if the test has failed.
func (p *Pair) logOperator() {
	if !p.t.Failed() {
		return
	}
	for _, more := range [][]string{nil, {"--previous"}} {
		args := append([]string{"logs", "-n", operatorNamespace, "-l", "app=websites"}, more...)
		out, _ := p.TryKubectl(p.t, "", args...)
		p.t.Logf("operator: %s", out)
	}
}

// requireInvalidWebsite checks that the validating webhook rejects a Website.
func (p *Pair) requireInvalidWebsite(spec, message string) {
	p.t.Helper()
	out, err := p.TryKubectl(p.t, website("invalid", spec), "apply", "-f", "-")
	if want := `admission webhook "validate.` + operatorGroup + `" denied the request: ` + message; err == nil ||
		!strings.Contains(out, want) {
		p.t.Errorf("got %s, want %s", out, want)
	}
}

// deploymentUnlike returns the value of a JSONPath in the Deployment of the Website site, or "" if it is as expected.
func (p *Pair) deploymentUnlike(path, want string) string {
	out, err := p.TryKubectl(p.t, "", "get", "deployment", "site", "-n", "default", "-o", "jsonpath="+path)
	if err == nil && out == want {
		return ""
	}
	return "got " + out
}

// requireNewLeader deletes the pod that is the leader. Another one becomes the leader and reconciles a change.
func (p *Pair) requireNewLeader() {
	t := p.t
	t.Helper()
	leader := func() string {
		return p.Kubectl(t, "get", "lease", "websites", "-n", operatorNamespace, "-o",
			"jsonpath={.spec.holderIdentity}")
	}
	first := leader()
	pod, _, _ := strings.Cut(first, "_")
	p.Kubectl(t, "delete", "pod", pod, "-n", operatorNamespace, "--timeout=4m")
	p.waitUntil("another leader", func() string {
		if now := leader(); now == "" || now == first {
			return "got " + now
		}
		return ""
	})
	p.waitUntil("the webhooks to accept a change", func() string {
		out, err := p.TryKubectl(t, "", "patch", "website", "site", "--type=merge", "-p",
			`{"spec":{"message":"changed"}}`)
		if err == nil {
			return ""
		}
		return out
	})
	p.waitUntil("the new leader to reconcile", func() string {
		return p.deploymentUnlike("{.spec.template.spec.containers[0].env[0].value}", "changed")
	})
}
