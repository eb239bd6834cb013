package pair

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"berth/control"
	"berth/test/images"
)

const readyStatus = `.status.conditions[?(@.type=="Ready")].status`

// TestPodLifecycle creates, updates and deletes pods with kubectl on one node.
func TestPodLifecycle(t *testing.T) {
	t.Parallel()
	p := startPair(t, pairOptions{})
	t.Run("reports its status", func(t *testing.T) {
		p := p.forSubtest(t)
		p.Apply(t, p.pod("web", "ports: [{containerPort: 8080}]", "serve"))
		p.waitForField("pod", "web", ".status.phase", "Running")
		p.waitForField("pod", "web", readyStatus, "True")
		if ip := p.field("pod", "web", ".status.podIP"); !p.Host.PodCIDR.Contains(parseAddr(t, ip)) {
			t.Errorf("got pod IP %q, want one in %s", ip, p.Host.PodCIDR)
		}
		if ip := p.field("pod", "web", ".status.hostIP"); ip != p.Host.Gateway.String() {
			t.Errorf("got host IP %q, want %s", ip, p.Host.Gateway)
		}
		p.waitUntil("events", func() string {
			out := p.Kubectl(t, "get", "events", "--field-selector", "involvedObject.name=web", "-o",
				`jsonpath={range .items[*]}{.reason} {end}`)
			for _, want := range []string{"Pulled", "Created", "Started"} {
				if !strings.Contains(out, want) {
					return "got " + out
				}
			}
			return ""
		})
	})
	t.Run("gets service environment variables", func(t *testing.T) {
		p := p.forSubtest(t)
		p.Apply(t, "apiVersion: v1\nkind: Service\nmetadata: {name: my-db}\nspec: {clusterIP: 10.43.0.77, "+
			"ports: [{name: "+
			"sql, port: 5432}]}\n")
		p.Apply(t, p.pod("env", "", "env", ",", "sleep"))
		p.waitForField("pod", "env", ".status.phase", "Running")
		p.waitUntil("service environment variables", func() string {
			if text := p.containerLog("env"); !strings.Contains(text, "MY_DB_SERVICE_HOST=10.43.0.77") ||
				!strings.Contains(text,
					"MY_DB_PORT_5432_TCP=tcp://10.43.0.77:5432") {
				return text
			}
			return ""
		})
	})
	t.Run("gets ConfigMap updates", func(t *testing.T) { p.forSubtest(t).testConfigMapUpdate() })
	t.Run("gets trusted certificates", func(t *testing.T) { p.forSubtest(t).testTrustBundles() })
	t.Run("gets a certificate of its own", func(t *testing.T) { p.forSubtest(t).testPodCertificate() })
	t.Run("gets a certificate of the server", func(t *testing.T) { p.forSubtest(t).testPodIdentity() })
	t.Run("is deleted with its grace period", func(t *testing.T) {
		p := p.forSubtest(t)
		p.Apply(t, strings.Replace(p.pod("slow", "", "on-term", "2s", "0", ",", "print", "ready", ",", "sleep"), "GracePeriodSeconds: 1",
			"GracePeriodSeconds: 20", 1))
		p.waitForField("pod", "slow", ".status.phase", "Running")
		p.waitForReadyLine("slow")
		start := time.Now()
		p.Kubectl(t, "delete", "pod", "slow", "--timeout=4m")
		if elapsed := time.Since(start); elapsed < 2*time.Second {
			t.Errorf("pod deleted after %s, want at least 2s", elapsed)
		}
		if left := p.Host.PodResources(); len(p.remainingPodDirs("slow")) > 0 {
			t.Errorf("resources of the deleted pod: %v", left)
		}
	})
	t.Run("is killed after the grace period of kubectl delete", func(t *testing.T) {
		p.forSubtest(t).testKubectlWatch()
	})
	t.Run("is ready if its readiness gates are true", func(t *testing.T) { p.forSubtest(t).testReadinessGate() })
	t.Run("rejects path traversal", func(t *testing.T) { p.forSubtest(t).testPathTraversal() })
	t.Run("of a ReplicationController is replaced", func(t *testing.T) { p.forSubtest(t).testReplicationController() })
	t.Run("of a Deployment is updated", func(t *testing.T) { p.forSubtest(t).testDeployment() })
	t.Run("reports its exit code", func(t *testing.T) {
		p := p.forSubtest(t)
		p.Apply(t, strings.Replace(p.pod("once", "", "exit", "7"), "spec:", "spec:\n  restartPolicy: Never", 1))
		p.waitForField("pod", "once", ".status.phase", "Failed")
		p.waitForField("pod", "once", ".status.containerStatuses[0].state.terminated.exitCode", "7")
		p.Kubectl(t, "delete", "pod", "once", "--timeout=4m")
	})
	t.Run("runs on a node that emits one event per condition", func(t *testing.T) {
		p := p.forSubtest(t)
		p.waitUntil("node events", func() string {
			out := p.Kubectl(t, "get", "events", "--field-selector", "involvedObject.kind=Node", "-o",
				`jsonpath={range .items[*]}{.reason}={.count} {end}`)
			fields := strings.Fields(out)
			slices.Sort(fields)
			want := "NodeHasNoDiskPressure=1 NodeHasSufficientMemory=1 NodeHasSufficientPID=1 NodeReady=1"
			if got := strings.Join(slices.DeleteFunc(fields, func(s string) bool {
				return !strings.HasPrefix(s, "Node")
			}),
				" "); got != want {
				return "got " + got
			}
			return ""
		})
	})
}

// testKubectlWatch watches a pod with kubectl get -w while it starts, runs and ignores SIGTERM. The
// grace period in its spec is longer than the test.
func (p *Pair) testKubectlWatch() {
	t := p.t
	p.Apply(t, strings.Replace(p.pod("stubborn", "", "ignore-term", ",", "print", "ready", ",", "sleep"), "GracePeriodSeconds: 1",
		"GracePeriodSeconds: 3600", 1))
	// With the name of a pod, kubectl drops changes between its request for the pod and its watch.
	cmd := p.kubectl("get", "pods", "--field-selector", "metadata.name=stubborn", "-w", "-o", "wide", "--no-headers",
		"-v=6")
	var requests bytes.Buffer
	cmd.Stderr = &requests
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	lines := bufio.NewScanner(out)
	var output []string
	waitForRow := func(want ...string) {
		t.Helper()
		for lines.Scan() {
			output = append(output, lines.Text())
			got := strings.Fields(lines.Text())
			if len(got) > 6 && slices.Equal(got[:3], []string{"stubborn", want[0], want[1]}) && got[6] == p.Node {
				return
			}
		}
		waitErr := cmd.Wait()
		t.Fatalf("kubectl get -w: no row %v on node %s: %v, %v, got %s\nrequests:\n%s\ncurrent pod:\n%s", want, p.Node,
			lines.Err(), waitErr, strings.Join(output, "\n"), &requests,
			p.Kubectl(t, "get", "pod", "stubborn", "-o", "yaml"))
	}
	waitForRow("1/1", "Running")
	p.waitForReadyLine("stubborn")
	start := time.Now()
	p.Kubectl(t, "delete", "pod", "stubborn", "--grace-period=2", "--timeout=4m")
	if elapsed := time.Since(start); elapsed < 2*time.Second {
		t.Errorf("pod deleted after %s, want at least 2s", elapsed)
	}
	waitForRow("1/1", "Terminating")
}

// testConfigMapUpdate changes a ConfigMap and waits for the new value on the host and in the container.
func (p *Pair) testConfigMapUpdate() {
	t := p.t
	p.Apply(t, "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: conf}\ndata: {key: one}\n")
	p.Apply(t, p.pod("reads", "volumeMounts: [{name: v, mountPath: /v}]", "follow", "/v/key",
		"20ms")+"\n  volumes: [{name: v, configMap: {name: conf}}]\n")
	p.waitForField("pod", "reads", ".status.phase", "Running")
	logContains := func(text string) func() string {
		return func() string {
			if log := p.containerLog("reads"); !strings.Contains(log, text) {
				return log
			}
			return ""
		}
	}
	p.waitUntil("the first value in the container", logContains("one"))
	file := filepath.Join(p.Agent.RootDir, "pods", p.field("pod", "reads", ".metadata.uid"),
		"volumes/kubernetes.io~configmap/v/key")
	p.Kubectl(t, "patch", "configmap", "conf", "--type=merge", "-p", `{"data":{"key":"two"}}`)
	start := time.Now()
	p.waitUntil("the second value on the host", func() string {
		text, err := os.ReadFile(file)
		if string(text) != "two" {
			return fmt.Sprint(string(text), err)
		}
		return ""
	})
	t.Logf("volume file updated %s after kubectl patch", time.Since(start))
	p.waitUntil("the second value in the container", logContains("two"))
}

// testTrustBundles mounts the CA of the server by its signer, and a bundle that is optional and created later. It waits
// for both on the host.
func (p *Pair) testTrustBundles() {
	t := p.t
	p.Apply(t, p.pod("trusts", "volumeMounts: [{name: v, mountPath: /v}]", "sleep")+`
  volumes:
  - name: v
    projected:
      sources:
      - clusterTrustBundle: {signerName: kubernetes.io/kube-apiserver-serving, labelSelector: {}, path: server.pem}
      - clusterTrustBundle: {name: late, optional: true, path: late.pem}
`)
	p.waitForField("pod", "trusts", ".status.phase", "Running")
	dir := filepath.Join(p.Agent.RootDir, "pods", p.field("pod", "trusts", ".metadata.uid"),
		"volumes/kubernetes.io~projected/v")
	if text, err := os.ReadFile(filepath.Join(dir, "late.pem")); err != nil || len(text) > 0 {
		t.Errorf("file of a missing bundle: got %q, %v, want an empty file", text, err)
	}
	server, err := os.ReadFile(filepath.Join(dir, "server.pem"))
	if err != nil || !strings.HasPrefix(string(server), "-----BEGIN CERTIFICATE-----\n") {
		t.Fatalf("CA of the server: got %q, %v", server, err)
	}
	p.Apply(t, "apiVersion: certificates.k8s.io/v1\nkind: ClusterTrustBundle\nmetadata: {name: late}\nspec:\n"+
		"  trustBundle: |\n    a comment\n    "+
		strings.ReplaceAll(strings.TrimSpace(string(server)), "\n", "\n    ")+"\n")
	p.waitUntil("the certificate of the new bundle", func() string {
		text, err := os.ReadFile(filepath.Join(dir, "late.pem"))
		if string(text) != string(server) {
			return fmt.Sprint(string(text), err)
		}
		return ""
	})
}

// testReadinessGate sets the condition of a readiness gate in the pod status, as a load balancer
// controller does. A pod without the condition is not ready, even if all containers are.
func (p *Pair) testReadinessGate() {
	t := p.t
	p.Apply(t, strings.Replace(p.pod("gated", "ports: [{containerPort: 8080}]", "serve"), "spec:",
		"spec:\n  readinessGates: [{conditionType: example.com/in-service}]", 1))
	containers := `.status.conditions[?(@.type=="ContainersReady")].status`
	reason := `.status.conditions[?(@.type=="Ready")].reason`
	p.waitForField("pod", "gated", containers, "True")
	p.waitForField("pod", "gated", readyStatus, "False")
	p.waitForField("pod", "gated", reason, "ReadinessGatesNotReady")
	for _, step := range []struct{ status, reason string }{
		{"True", ""}, {"False", "ReadinessGatesNotReady"}, {"True", ""},
	} {
		p.Kubectl(t, "patch", "pod", "gated", "--subresource=status", "-p",
			fmt.Sprintf(`{"status":{"conditions":[{"type":"example.com/in-service","status":%q}]}}`, step.status))
		p.waitForField("pod", "gated", readyStatus, step.status)
		p.waitForField("pod", "gated", reason, step.reason)
		// The node's status updates preserve conditions of other components.
		p.waitForField("pod", "gated", `.status.conditions[?(@.type=="example.com/in-service")].status`, step.status)
		p.waitForField("pod", "gated", containers, "True")
	}
}

// TestServerOutage disconnects the node from the server. Pods keep running, also when the agent
// restarts. The agent reports all changes after the connection is restored.
func TestServerOutage(t *testing.T) {
	t.Parallel()
	p := startPair(t, pairOptions{UseServerProxy: true})
	p.Apply(t, p.pod("stays", "", "sleep"))
	p.Apply(t, p.pod("crashes", "", "await", "/tmp/x", ",", "exit", "3"))
	p.Apply(t, "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: conf}\ndata: {key: one}\n")
	p.Apply(t, p.pod("reads", "volumeMounts: [{name: v, mountPath: /v}]",
		"sleep")+"\n  volumes: [{name: v, configMap: {name: conf}}]\n")
	for _, name := range []string{"stays", "crashes", "reads"} {
		p.waitForField("pod", name, readyStatus, "True")
	}
	id := p.field("pod", "stays", ".status.containerStatuses[0].containerID")
	p.serverProxy.disconnect()
	p.waitForAgentPods("stays", "crashes", "reads")
	if err := p.Agent.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.waitForAgentPods("stays", "crashes", "reads")
	if err := p.runBerth("exec", "crashes", "--", "/bin/testbox", "write", "/tmp/x", "y"); err != nil {
		t.Fatal(err)
	}
	p.waitUntil("the container restart", func() string {
		out, _ := p.Agent.Command(t.Context(), "ps").CombinedOutput()
		for line := range strings.Lines(string(out)) {
			if f := strings.Fields(line); len(f) > 3 && strings.Contains(line, "crashes") &&
				!strings.Contains(line, " 0 ") {
				return ""
			}
		}
		return string(out)
	})
	p.Kubectl(t, "delete", "pod", "reads", "--wait=false")
	p.serverProxy.connect()
	p.waitUntil("the restart count in the pod status", func() string {
		if n := p.field("pod", "crashes", ".status.containerStatuses[0].restartCount"); n == "0" || n == "" {
			return n
		}
		return ""
	})
	p.waitUntil("the pod deletion", func() string { return p.field("pod", "reads", ".metadata.name") })
	if current := p.field("pod", "stays", ".status.containerStatuses[0].containerID"); current != id {
		t.Errorf("container %s was replaced by %s", id, current)
	}
	if n := p.field("pod", "stays", ".status.containerStatuses[0].restartCount"); n != "0" {
		t.Errorf("pod stays: got %s restarts, want 0", n)
	}
	p.waitForNodeCondition("Ready", "True")
}

// TestStaticPodsHaveMirrorPods creates a static pod. The server has a mirror pod with events. Deleting
// the mirror pod does not stop the static pod.
func TestStaticPodsHaveMirrorPods(t *testing.T) {
	t.Parallel()
	p := startPair(t, pairOptions{})
	manifest := fmt.Sprintf("apiVersion: v1\nkind: Pod\nmetadata: {name: local}\nspec:\n  "+
		"terminationGracePeriodSeconds: 1\n  containers: [{name: c, image: %q, args: [sleep]}]\n", images.TestboxRef)
	file := filepath.Join(p.Agent.ManifestDir, "local.yaml")
	if err := os.WriteFile(file, []byte(manifest), 0o600); err != nil {
		t.Fatal(err)
	}
	name := "local-" + p.Node
	p.waitForField("pod", name, readyStatus, "True")
	// Log shippers use these to find the log directory, whose name contains the UID.
	configAnnotation := func(annotation string) string {
		return p.field("pod", name, ".metadata.annotations.kubernetes\\.io/config\\."+annotation)
	}
	if hash, mirror := configAnnotation("hash"), configAnnotation("mirror"); hash != mirror ||
		len(hash) != len("00000000-0000-0000-0000-000000000000") {
		t.Errorf("got config.hash %q and config.mirror %q, want the same UID", hash, mirror)
	}
	uid, id := p.field("pod", name, ".metadata.uid"), p.field("pod", name, ".status.containerStatuses[0].containerID")
	p.Kubectl(t, "delete", "pod", name, "--wait=false")
	p.waitUntil("a new mirror pod", func() string {
		if current := p.field("pod", name, ".metadata.uid"); current == uid || current == "" ||
			strings.HasPrefix(current, "error") {
			return current
		}
		return ""
	})
	p.waitForField("pod", name, readyStatus, "True")
	if current := p.field("pod", name, ".status.containerStatuses[0].containerID"); current != id {
		t.Errorf("container %s was replaced by %s", id, current)
	}
	p.waitUntil("events", func() string {
		if out := p.Kubectl(t, "describe", "pod", name); !strings.Contains(out, "Started") {
			return out
		}
		return ""
	})
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	p.waitUntil("the mirror pod deletion", func() string { return p.field("pod", name, ".metadata.name") })
}

// TestPodReachesServer sends a request from a pod to the server address in its environment. The pod
// authenticates with its service account token.
func TestPodReachesServer(t *testing.T) {
	t.Parallel()
	p := startPair(t, pairOptions{Server: []func(*control.Config){func(c *control.Config) { c.Listen = "0.0.0.0:0" }}})
	p.Apply(t, p.pod("inside", "", "server", "/apis/authentication.k8s.io/v1/selfsubjectreviews", ",", "sleep"))
	p.waitUntil("the server response in the container log", func() string {
		text := p.containerLog("inside")
		if !strings.Contains(text, `201`) ||
			!strings.Contains(text, `"username":"system:serviceaccount:default:default"`) {
			return text
		}
		return ""
	})
}
