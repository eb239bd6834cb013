package pair

import (
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

// TestAPodOfTheServer follows pods from kubectl to containers and back, on one
// pair.
func TestAPodOfTheServer(t *testing.T) {
	t.Parallel()
	p := start(t, pairOptions{})
	t.Run("runs and its status comes back", func(t *testing.T) {
		p := p.in(t)
		p.Apply(t, p.pod("web", "ports: [{containerPort: 8080}]", "serve"))
		p.is("pod", "web", ".status.phase", "Running")
		p.is("pod", "web", ready, "True")
		if ip := p.field("pod", "web", ".status.podIP"); !p.Host.PodCIDR.Contains(addr(t, ip)) {
			t.Errorf("the pod's address is %q, not of %s", ip, p.Host.PodCIDR)
		}
		if ip := p.field("pod", "web", ".status.hostIP"); ip != p.Host.Gateway.String() {
			t.Errorf("the host's address is %q", ip)
		}
		p.until("events", func() string {
			out := p.Kubectl(t, "get", "events", "--field-selector", "involvedObject.name=web", "-o", `jsonpath={range .items[*]}{.reason} {end}`)
			for _, want := range []string{"Pulled", "Created", "Started"} {
				if !strings.Contains(out, want) {
					return "there are " + out
				}
			}
			return ""
		})
	})
	t.Run("has the services in its environment", func(t *testing.T) {
		p := p.in(t)
		p.Apply(t, "apiVersion: v1\nkind: Service\nmetadata: {name: my-db}\nspec: {clusterIP: 10.43.0.77, ports: [{name: sql, port: 5432}]}\n")
		p.Apply(t, p.pod("env", "", "env", ",", "sleep"))
		p.is("pod", "env", ".status.phase", "Running")
		p.until("the service", func() string {
			if text := p.log("env"); !strings.Contains(text, "MY_DB_SERVICE_HOST=10.43.0.77") || !strings.Contains(text, "MY_DB_PORT_5432_TCP=tcp://10.43.0.77:5432") {
				return text
			}
			return ""
		})
	})
	t.Run("sees a ConfigMap change", func(t *testing.T) { p.in(t).configMap() })
	t.Run("is deleted with its grace", func(t *testing.T) {
		p := p.in(t)
		p.Apply(t, strings.Replace(p.pod("slow", "", "on-term", "2s", "0", ",", "sleep"), "GracePeriodSeconds: 1", "GracePeriodSeconds: 20", 1))
		p.is("pod", "slow", ".status.phase", "Running")
		began := time.Now()
		p.Kubectl(t, "delete", "pod", "slow", "--timeout=60s")
		if took := time.Since(began); took < 2*time.Second {
			t.Errorf("gone after %s: it had no time to end by itself", took)
		}
		if left := p.Host.PodLeftovers(); len(p.podsLeft("slow")) > 0 {
			t.Errorf("left: %v", left)
		}
	})
	t.Run("is watched, and killed after the grace that kubectl gives", func(t *testing.T) { p.in(t).watched() })
	t.Run("is Ready when its readiness gates are open", func(t *testing.T) { p.in(t).gate() })
	t.Run("gets nothing by paths that lead out", func(t *testing.T) { p.in(t).paths() })
	t.Run("of a set is replaced", func(t *testing.T) { p.in(t).replaced() })
	t.Run("that ends has its exit code told", func(t *testing.T) {
		p := p.in(t)
		p.Apply(t, strings.Replace(p.pod("once", "", "exit", "7"), "spec:", "spec:\n  restartPolicy: Never", 1))
		p.is("pod", "once", ".status.phase", "Failed")
		p.is("pod", "once", ".status.containerStatuses[0].state.terminated.exitCode", "7")
		p.Kubectl(t, "delete", "pod", "once", "--timeout=30s")
	})
	t.Run("runs on a node that has told each of its conditions once", func(t *testing.T) {
		p := p.in(t)
		p.until("the node's events", func() string {
			out := p.Kubectl(t, "get", "events", "--field-selector", "involvedObject.kind=Node", "-o", `jsonpath={range .items[*]}{.reason}={.count} {end}`)
			told := strings.Fields(out)
			slices.Sort(told)
			want := "NodeHasNoDiskPressure=1 NodeHasSufficientMemory=1 NodeHasSufficientPID=1 NodeReady=1"
			if got := strings.Join(slices.DeleteFunc(told, func(s string) bool { return !strings.HasPrefix(s, "Node") }), " "); got != want {
				return "they are " + got
			}
			return ""
		})
	})
}

// watched follows a pod by kubectl get -w while it comes, runs, and does not heed
// that it is told to end: its own grace is longer than the test.
func (p *Pair) watched() {
	t := p.t
	p.Apply(t, strings.Replace(p.pod("stubborn", "", "ignore-term", ",", "sleep"), "GracePeriodSeconds: 1", "GracePeriodSeconds: 3600", 1))
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
	shown := func(want ...string) {
		t.Helper()
		for lines.Scan() {
			if got := strings.Fields(lines.Text()); len(got) > 6 && slices.Equal(got[:3], []string{"stubborn", want[0], want[1]}) && got[6] == p.Node {
				return
			}
		}
		t.Fatalf("get -w never showed %v", want)
	}
	shown("1/1", "Running")
	began := time.Now()
	p.Kubectl(t, "delete", "pod", "stubborn", "--grace-period=2", "--timeout=60s")
	if took := time.Since(began); took < 2*time.Second {
		t.Errorf("gone after %s: it was to have 2s", took)
	}
	shown("1/1", "Terminating")
}

func (p *Pair) configMap() {
	t := p.t
	p.Apply(t, "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: conf}\ndata: {key: one}\n")
	p.Apply(t, p.pod("reads", "volumeMounts: [{name: v, mountPath: /v}]", "follow", "/v/key", "20ms")+"\n  volumes: [{name: v, configMap: {name: conf}}]\n")
	p.is("pod", "reads", ".status.phase", "Running")
	seen := func(text string) func() string {
		return func() string {
			if log := p.log("reads"); !strings.Contains(log, text) {
				return log
			}
			return ""
		}
	}
	p.until("one", seen("one"))
	file := filepath.Join(p.Agent.RootDir, "pods", p.field("pod", "reads", ".metadata.uid"), "volumes/kubernetes.io~configmap/v/key")
	p.Kubectl(t, "patch", "configmap", "conf", "--type=merge", "-p", `{"data":{"key":"two"}}`)
	began := time.Now()
	p.until("two on the host", func() string {
		text, err := os.ReadFile(file)
		if string(text) != "two" {
			return fmt.Sprint(string(text), err)
		}
		return ""
	})
	t.Logf("the file has the change %s after kubectl", time.Since(began))
	p.until("two", seen("two"))
}

// gate opens and shuts a pod's readiness gate as a load balancer's controller
// would: by a condition in its status. A pod that lacks it is not Ready, though
// all its containers are.
func (p *Pair) gate() {
	t := p.t
	p.Apply(t, strings.Replace(p.pod("gated", "ports: [{containerPort: 8080}]", "serve"), "spec:", "spec:\n  readinessGates: [{conditionType: example.com/in-service}]", 1))
	containers := `.status.conditions[?(@.type=="ContainersReady")].status`
	reason := `.status.conditions[?(@.type=="Ready")].reason`
	p.is("pod", "gated", containers, "True")
	p.is("pod", "gated", ready, "False")
	p.is("pod", "gated", reason, "ReadinessGatesNotReady")
	for _, step := range []struct{ gate, reason string }{{"True", ""}, {"False", "ReadinessGatesNotReady"}, {"True", ""}} {
		p.Kubectl(t, "patch", "pod", "gated", "--subresource=status", "-p",
			fmt.Sprintf(`{"status":{"conditions":[{"type":"example.com/in-service","status":%q}]}}`, step.gate))
		p.is("pod", "gated", ready, step.gate)
		p.is("pod", "gated", reason, step.reason)
		// What the node tells of the pod leaves the condition of another alone.
		p.is("pod", "gated", `.status.conditions[?(@.type=="example.com/in-service")].status`, step.gate)
		p.is("pod", "gated", containers, "True")
	}
}

// TestTheServerGoesAway: pods go on, an agent that is started again meanwhile
// touches none, and what happened is told when the server is back.
func TestTheServerGoesAway(t *testing.T) {
	t.Parallel()
	p := start(t, pairOptions{Cut: true})
	p.Apply(t, p.pod("stays", "", "sleep"))
	p.Apply(t, p.pod("crashes", "", "await", "/tmp/x", ",", "exit", "3"))
	p.Apply(t, "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: conf}\ndata: {key: one}\n")
	p.Apply(t, p.pod("reads", "volumeMounts: [{name: v, mountPath: /v}]", "sleep")+"\n  volumes: [{name: v, configMap: {name: conf}}]\n")
	for _, name := range []string{"stays", "crashes", "reads"} {
		p.is("pod", name, ready, "True")
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
	p.until("the restart to be told", func() string {
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

// TestAPodOfAFileIsShown: users of the server see the pods of files and their
// events, and cannot make them go.
func TestAPodOfAFileIsShown(t *testing.T) {
	t.Parallel()
	p := start(t, pairOptions{})
	manifest := fmt.Sprintf("apiVersion: v1\nkind: Pod\nmetadata: {name: local}\nspec:\n  terminationGracePeriodSeconds: 1\n  containers: [{name: c, image: %q, args: [sleep]}]\n", images.TestboxRef)
	file := filepath.Join(p.Agent.ManifestDir, "local.yaml")
	if err := os.WriteFile(file, []byte(manifest), 0o600); err != nil {
		t.Fatal(err)
	}
	name := "local-" + p.Node
	p.is("pod", name, ready, "True")
	// A shipper of logs finds their directory, which has the UID in its name, by these.
	of := func(annotation string) string {
		return p.field("pod", name, ".metadata.annotations.kubernetes\\.io/config\\."+annotation)
	}
	if hash, mirror := of("hash"), of("mirror"); hash != mirror || len(hash) != len("00000000-0000-0000-0000-000000000000") {
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
	p.is("pod", name, ready, "True")
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
