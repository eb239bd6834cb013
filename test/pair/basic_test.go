package pair

import (
	"berth/control"
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"berth/test/images"
)

const ready = `.status.conditions[?(@.type=="Ready")].status`

// TestPodLifecycle follows pods from kubectl to containers and back, with one pair.
func TestPodLifecycle(t *testing.T) {
	t.Parallel()
	p := start(t, pairOptions{})
	t.Run("runs and its status is reported", func(t *testing.T) {
		p := p.in(t)
		p.Apply(t, p.pod("web", "ports: [{containerPort: 8080}]", "serve"))
		p.waitForField("pod", "web", ".status.phase", "Running")
		p.waitForField("pod", "web", ready, "True")
		if ip := p.field("pod", "web", ".status.podIP"); !p.Host.PodCIDR.Contains(addr(t, ip)) {
			t.Errorf("got pod IP %q, want one in %s", ip, p.Host.PodCIDR)
		}
		if ip := p.field("pod", "web", ".status.hostIP"); ip != p.Host.Gateway.String() {
			t.Errorf("got host IP %q", ip)
		}
		p.until("events", func() string {
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
	t.Run("has service environment variables", func(t *testing.T) {
		p := p.in(t)
		p.Apply(t, "apiVersion: v1\nkind: Service\nmetadata: {name: my-db}\nspec: {clusterIP: 10.43.0.77, ports: [{name: "+
			"sql, port: 5432}]}\n")
		p.Apply(t, p.pod("env", "", "env", ",", "sleep"))
		p.waitForField("pod", "env", ".status.phase", "Running")
		p.until("the service", func() string {
			if text := p.log("env"); !strings.Contains(text, "MY_DB_SERVICE_HOST=10.43.0.77") || !strings.Contains(text,
				"MY_DB_PORT_5432_TCP=tcp://10.43.0.77:5432") {
				return text
			}
			return ""
		})
	})
	t.Run("gets ConfigMap updates", func(t *testing.T) { p.in(t).configMap() })
	t.Run("is deleted with its grace period", func(t *testing.T) {
		p := p.in(t)
		p.Apply(t, strings.Replace(p.pod("slow", "", "on-term", "2s", "0", ",", "sleep"), "GracePeriodSeconds: 1",
			"GracePeriodSeconds: 20", 1))
		p.waitForField("pod", "slow", ".status.phase", "Running")
		began := time.Now()
		p.Kubectl(t, "delete", "pod", "slow", "--timeout=60s")
		if took := time.Since(began); took < 2*time.Second {
			t.Errorf("deleted after %s without a grace period", took)
		}
		if left := p.Host.PodLeftovers(); len(p.leftoverPodDirs("slow")) > 0 {
			t.Errorf("left: %v", left)
		}
	})
	t.Run("is watched, and killed after the grace period from kubectl", func(t *testing.T) { p.in(t).watch() })
	t.Run("is Ready when its readiness gates are true", func(t *testing.T) { p.in(t).readinessGate() })
	t.Run("rejects path traversal", func(t *testing.T) { p.in(t).paths() })
	t.Run("of a ReplicaSet is replaced", func(t *testing.T) { p.in(t).replaced() })
	t.Run("reports its exit code", func(t *testing.T) {
		p := p.in(t)
		p.Apply(t, strings.Replace(p.pod("once", "", "exit", "7"), "spec:", "spec:\n  restartPolicy: Never", 1))
		p.waitForField("pod", "once", ".status.phase", "Failed")
		p.waitForField("pod", "once", ".status.containerStatuses[0].state.terminated.exitCode", "7")
		p.Kubectl(t, "delete", "pod", "once", "--timeout=30s")
	})
	t.Run("runs on a node that reports each condition once", func(t *testing.T) {
		p := p.in(t)
		p.until("the node's events", func() string {
			out := p.Kubectl(t, "get", "events", "--field-selector", "involvedObject.kind=Node", "-o",
				`jsonpath={range .items[*]}{.reason}={.count} {end}`)
			fields := strings.Fields(out)
			slices.Sort(fields)
			want := "NodeHasNoDiskPressure=1 NodeHasSufficientMemory=1 NodeHasSufficientPID=1 NodeReady=1"
			if got := strings.Join(slices.DeleteFunc(fields, func(s string) bool { return !strings.HasPrefix(s, "Node") }),
				" "); got != want {
				return "got " + got
			}
			return ""
		})
	})
}

// watch follows a pod with kubectl get -w while it starts, runs and ignores SIGTERM. Its own
// grace period is longer than the test.
func (p *Pair) watch() {
	t := p.t
	p.Apply(t, strings.Replace(p.pod("stubborn", "", "ignore-term", ",", "sleep"), "GracePeriodSeconds: 1",
		"GracePeriodSeconds: 3600", 1))
	cmd := p.kubectl("get", "pod", "stubborn", "-w", "-o", "wide", "--no-headers")
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	lines := bufio.NewScanner(out)
	var seen []string
	shown := func(want ...string) {
		t.Helper()
		for lines.Scan() {
			seen = append(seen, lines.Text())
			got := strings.Fields(lines.Text())
			if len(got) > 6 && slices.Equal(got[:3], []string{"stubborn", want[0], want[1]}) && got[6] == p.Node {
				return
			}
		}
		t.Fatalf("get -w did not show %v on node %s: %v, %s; the pod is now\n%s", want, p.Node, lines.Err(),
			strings.Join(seen, "\n"), p.Kubectl(t, "get", "pod", "stubborn", "-o", "yaml"))
	}
	shown("1/1", "Running")
	began := time.Now()
	p.Kubectl(t, "delete", "pod", "stubborn", "--grace-period=2", "--timeout=60s")
	if took := time.Since(began); took < 2*time.Second {
		t.Errorf("deleted after %s, want 2s", took)
	}
	shown("1/1", "Terminating")
}

func (p *Pair) configMap() {
	t := p.t
	p.Apply(t, "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: conf}\ndata: {key: one}\n")
	p.Apply(t, p.pod("reads", "volumeMounts: [{name: v, mountPath: /v}]", "follow", "/v/key",
		"20ms")+"\n  volumes: [{name: v, configMap: {name: conf}}]\n")
	p.waitForField("pod", "reads", ".status.phase", "Running")
	seen := func(text string) func() string {
		return func() string {
			if log := p.log("reads"); !strings.Contains(log, text) {
				return log
			}
			return ""
		}
	}
	p.until("one", seen("one"))
	file := filepath.Join(p.Agent.RootDir, "pods", p.field("pod", "reads", ".metadata.uid"),
		"volumes/kubernetes.io~configmap/v/key")
	p.Kubectl(t, "patch", "configmap", "conf", "--type=merge", "-p", `{"data":{"key":"two"}}`)
	began := time.Now()
	p.until("two on the host", func() string {
		text, err := os.ReadFile(file)
		if string(text) != "two" {
			return fmt.Sprint(string(text), err)
		}
		return ""
	})
	t.Logf("the file was updated %s after kubectl", time.Since(began))
	p.until("two", seen("two"))
}

// readinessGate sets and removes a readiness gate's condition in the pod status, as a load balancer
// controller would. Without the condition, the pod is not Ready, although all containers are.
func (p *Pair) readinessGate() {
	t := p.t
	p.Apply(t, strings.Replace(p.pod("gated", "ports: [{containerPort: 8080}]", "serve"), "spec:",
		"spec:\n  readinessGates: [{conditionType: example.com/in-service}]", 1))
	containers := `.status.conditions[?(@.type=="ContainersReady")].status`
	reason := `.status.conditions[?(@.type=="Ready")].reason`
	p.waitForField("pod", "gated", containers, "True")
	p.waitForField("pod", "gated", ready, "False")
	p.waitForField("pod", "gated", reason, "ReadinessGatesNotReady")
	for _, step := range []struct{ gate, reason string }{{"True", ""}, {"False", "ReadinessGatesNotReady"}, {"True", ""}} {
		p.Kubectl(t, "patch", "pod", "gated", "--subresource=status", "-p",
			fmt.Sprintf(`{"status":{"conditions":[{"type":"example.com/in-service","status":%q}]}}`, step.gate))
		p.waitForField("pod", "gated", ready, step.gate)
		p.waitForField("pod", "gated", reason, step.reason)
		// The node's status updates preserve conditions of other components.
		p.waitForField("pod", "gated", `.status.conditions[?(@.type=="example.com/in-service")].status`, step.gate)
		p.waitForField("pod", "gated", containers, "True")
	}
}

// TestServerOutage: pods keep running, a restarted agent does not touch them, and changes are
// reported when the server is back.
func TestServerOutage(t *testing.T) {
	t.Parallel()
	p := start(t, pairOptions{Cut: true})
	p.Apply(t, p.pod("stays", "", "sleep"))
	p.Apply(t, p.pod("crashes", "", "await", "/tmp/x", ",", "exit", "3"))
	p.Apply(t, "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: conf}\ndata: {key: one}\n")
	p.Apply(t, p.pod("reads", "volumeMounts: [{name: v, mountPath: /v}]",
		"sleep")+"\n  volumes: [{name: v, configMap: {name: conf}}]\n")
	for _, name := range []string{"stays", "crashes", "reads"} {
		p.waitForField("pod", name, ready, "True")
	}
	id := p.field("pod", "stays", ".status.containerStatuses[0].containerID")
	p.wire.cut()
	p.agentPods("stays", "crashes", "reads")
	if err := p.Agent.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.agentPods("stays", "crashes", "reads")
	if err := p.berth("exec", "crashes", "--", "/bin/testbox", "write", "/tmp/x", "y"); err != nil {
		t.Fatal(err)
	}
	p.until("the restart", func() string {
		out, _ := p.Agent.Command(t.Context(), "ps").CombinedOutput()
		for line := range strings.Lines(string(out)) {
			if f := strings.Fields(line); len(f) > 3 && strings.Contains(line, "crashes") && !strings.Contains(line, " 0 ") {
				return ""
			}
		}
		return string(out)
	})
	p.Kubectl(t, "delete", "pod", "reads", "--wait=false")
	p.wire.join()
	p.until("the restart to be reported", func() string {
		if n := p.field("pod", "crashes", ".status.containerStatuses[0].restartCount"); n == "0" || n == "" {
			return n
		}
		return ""
	})
	p.until("the deletion", func() string { return p.field("pod", "reads", ".metadata.name") })
	if now := p.field("pod", "stays", ".status.containerStatuses[0].containerID"); now != id {
		t.Errorf("container %s was replaced by %s", id, now)
	}
	if n := p.field("pod", "stays", ".status.containerStatuses[0].restartCount"); n != "0" {
		t.Errorf("%s restarts", n)
	}
	p.nodeIs("Ready", "True")
}

// TestStaticPodsHaveMirrorPods: mirror pods of manifest files and their events are visible through
// the server, and deleting them does not stop the pods.
func TestStaticPodsHaveMirrorPods(t *testing.T) {
	t.Parallel()
	p := start(t, pairOptions{})
	manifest := fmt.Sprintf("apiVersion: v1\nkind: Pod\nmetadata: {name: local}\nspec:\n  "+
		"terminationGracePeriodSeconds: 1\n  containers: [{name: c, image: %q, args: [sleep]}]\n", images.TestboxRef)
	file := filepath.Join(p.Agent.ManifestDir, "local.yaml")
	if err := os.WriteFile(file, []byte(manifest), 0o600); err != nil {
		t.Fatal(err)
	}
	name := "local-" + p.Node
	p.waitForField("pod", name, ready, "True")
	// Log shippers use these to find the log directory, whose name contains the UID.
	of := func(annotation string) string {
		return p.field("pod", name, ".metadata.annotations.kubernetes\\.io/config\\."+annotation)
	}
	if hash, mirror := of("hash"), of("mirror"); hash != mirror ||
		len(hash) != len("00000000-0000-0000-0000-000000000000") {
		t.Errorf("hash %s, mirror %s", hash, mirror)
	}
	uid, id := p.field("pod", name, ".metadata.uid"), p.field("pod", name, ".status.containerStatuses[0].containerID")
	p.Kubectl(t, "delete", "pod", name, "--wait=false")
	p.until("another mirror", func() string {
		if now := p.field("pod", name, ".metadata.uid"); now == uid || now == "" || strings.HasPrefix(now, "error") {
			return now
		}
		return ""
	})
	p.waitForField("pod", name, ready, "True")
	if now := p.field("pod", name, ".status.containerStatuses[0].containerID"); now != id {
		t.Errorf("container %s was replaced by %s", id, now)
	}
	p.until("events", func() string {
		if out := p.Kubectl(t, "describe", "pod", name); !strings.Contains(out, "Started") {
			return out
		}
		return ""
	})
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	p.until("the mirror to go", func() string { return p.field("pod", name, ".metadata.name") })
}

// TestPodReachesServer sends a request from a pod with its service account to the server address in
// the pod's environment.
func TestPodReachesServer(t *testing.T) {
	t.Parallel()
	p := start(t, pairOptions{Server: []func(*control.Config){func(c *control.Config) { c.Listen = "0.0.0.0:0" }}})
	p.Apply(t, p.pod("inside", "", "server", "/apis/authentication.k8s.io/v1/selfsubjectreviews", ",", "sleep"))
	p.until("the server's response in the pod", func() string {
		text := p.log("inside")
		if !strings.Contains(text, `201`) || !strings.Contains(text, `"username":"system:serviceaccount:default:default"`) {
			return text
		}
		return ""
	})
}
