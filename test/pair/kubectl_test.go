package pair

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	stats "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"berth/test/hosts"
)

// kubectl returns a command that runs stock kubectl. The process is killed at the end of the test.
func (p *Pair) kubectl(args ...string) *exec.Cmd {
	p.t.Helper()
	program, err := hosts.Kubectl()
	if err != nil {
		p.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), waitTimeout)
	p.t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, program, append([]string{"--kubeconfig", p.Kubeconfig}, args...)...)
	cmd.Env = hosts.KubectlEnv(filepath.Dir(p.Kubeconfig))
	return cmd
}

const kubectlPods = `apiVersion: v1
kind: Pod
metadata: {name: shell, namespace: default}
spec:
  nodeName: %s
  terminationGracePeriodSeconds: 1
  containers:
  - {name: c, image: 'busybox:1.36', stdin: true,
     command: [sh, -c, 'echo started; while read x; do echo "got $x"; done; sleep 1000']}
  - {name: tty, image: 'busybox:1.36', stdin: true, tty: true, command: [sh, -c, %q]}
  - {name: web, image: 'nginx:1.14.2'}
---
apiVersion: v1
kind: Pod
metadata: {name: crashing, namespace: default}
spec:
  nodeName: %s
  terminationGracePeriodSeconds: 1
  containers:
  - {name: c, image: 'busybox:1.36', command: [sh, -c, 'echo run once; exit 3']}
`

// TestKubectlPodCommands runs the kubectl commands that connect to the node.
func TestKubectlPodCommands(t *testing.T) {
	t.Parallel()
	p := startPair(t, pairOptions{})
	p.Apply(t, fmt.Sprintf(kubectlPods, p.Node, waitForSizes+"sleep 1000", p.Node))
	p.testWait()
	p.testExecAndLogs()
	p.testExecTerminal()
	p.testAttachTerminal()
	p.testCopy()
	p.testAttach()
	p.testFollowLogs()
	p.testPortForward()
	p.testDebug()
	p.testAPIProxy()
	p.testNodeAuthorization()
	p.testTop()
	p.testEvents()
}

// testWait runs kubectl wait for a condition that becomes true and for one that does not.
func (p *Pair) testWait() {
	t := p.t
	if out := p.Kubectl(t, "wait", "--for=condition=Ready", "pod/shell",
		"--timeout="+waitTimeout.String()); out != "pod/shell condition met\n" {
		t.Errorf("kubectl wait: got %q", out)
	}
	// The timeout must not end the first request, for which kubectl has another message.
	if out, err := p.TryKubectl(t, "", "wait", "--for=delete", "pod/shell", "--timeout=10s"); err == nil ||
		!strings.Contains(out, "timed out waiting for the condition on pods/shell") {
		t.Errorf("kubectl wait with timeout: got %q, %v", out, err)
	}
}

// testEvents checks kubectl events, also for a single pod.
func (p *Pair) testEvents() {
	for _, r := range []struct{ args, want, not string }{
		{"events --for pod/shell", `(?m)^\S+ +Normal +Started +Pod/shell +.+`, "Pod/crashing"},
		{"events --for pod/crashing --types=Warning", `(?m)^\S+.* +Warning +BackOff +Pod/crashing +.+`, "Normal"},
		{"events -A", `(?m)^default +.+ Pod/shell +.+`, "No events found"},
	} {
		p.waitUntil("kubectl "+r.args, func() string {
			out, _ := p.TryKubectl(p.t, "", strings.Fields(r.args)...)
			if !regexp.MustCompile(r.want).MatchString(out) || strings.Contains(out, r.not) {
				return out
			}
			return ""
		})
	}
}

// testExecAndLogs checks kubectl exec and logs, and their errors.
func (p *Pair) testExecAndLogs() {
	t := p.t
	for _, row := range []struct{ want, args string }{
		{"^started\n", "logs shell -c c"},
		{"^one two\n$", "exec shell -c c -- echo one two"},
		{"(?s)^oops\n.*command terminated with exit code 7", "exec shell -c c -- sh -c echo\u00a0oops;exit\u00a07"},
		{`container none is not valid for pod shell`, "logs shell -c none"},
		{`previous terminated container "c" in pod "shell" not found`, "logs shell -c c -p"},
		{`pods "missing" not found`, "exec missing -- true"},
	} {
		args := strings.Fields(strings.ReplaceAll(row.args, "\u00a0", "\x00"))
		for i := range args {
			args[i] = strings.ReplaceAll(args[i], "\x00", " ")
		}
		if out, _ := p.TryKubectl(t, "", args...); !regexp.MustCompile(row.want).MatchString(out) {
			t.Errorf("kubectl %s: %q", row.args, out)
		}
	}
	out, err := p.TryKubectl(t, "piped input", "exec", "-i", "shell", "-c", "c", "--", "tr", "a-z", "A-Z")
	if err != nil || out != "PIPED INPUT" {
		t.Errorf("exec -i: %q, %v", out, err)
	}
	p.waitUntil("the log of the previous container", func() string {
		out, err := p.TryKubectl(t, "", "logs", "crashing", "-p")
		if err != nil || out != "run once\n" {
			return out
		}
		return ""
	})
}

// testExecTerminal checks exec -it with a terminal that is resized.
func (p *Pair) testExecTerminal() {
	cmd, master, readUntil := p.startOnTerminal("exec", "-it", "shell", "-c", "c", "--", "sh", "-c", waitForSizes+
		"exit 5")
	p.typeInput(master, readUntil)
	for readUntil("") { // until kubectl has exited
	}
	if err := cmd.Wait(); cmd.ProcessState.ExitCode() != 5 {
		p.t.Errorf("exec -it: %v", err)
	}
}

// testAttachTerminal checks attach -it with a terminal that is resized.
func (p *Pair) testAttachTerminal() {
	cmd, master, readUntil := p.startOnTerminal("attach", "-it", "shell", "-c", "tty")
	p.typeInput(master, readUntil)
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
}

// waitForSizes is a shell script that waits for two terminal sizes and reads a line in between.
const waitForSizes = `until stty size | grep '33 77'; do sleep 0.1; done; read x; echo "read $x"; until stty size | ` +
	`grep '44 88'; do sleep 0.1; done; `

// typeInput sends the input and the terminal size that waitForSizes waits for.
func (p *Pair) typeInput(master *os.File, readUntil func(string) bool) {
	expect := func(want string) {
		if !readUntil(want) {
			p.t.Errorf("%q not found in the terminal output", want)
		}
	}
	expect("33 77")
	_, _ = master.WriteString("typed\n")
	expect("read typed")
	_ = unix.IoctlSetWinsize(int(master.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 44, Col: 88})
	expect("44 88")
}

// startOnTerminal starts kubectl on a terminal with 33 rows. readUntil reads its output up to a line
// that contains a text. It returns false at the end of the output.
func (p *Pair) startOnTerminal(args ...string) (cmd *exec.Cmd, master *os.File, readUntil func(want string) bool) {
	p.t.Helper()
	master, slave, err := hosts.Terminal()
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { master.Close() })
	defer slave.Close()
	_ = unix.IoctlSetWinsize(int(master.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 33, Col: 77})
	cmd = p.kubectl(args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	lines := bufio.NewScanner(master)
	return cmd, master, func(want string) bool {
		for lines.Scan() {
			if strings.Contains(lines.Text(), want) {
				return true
			}
		}
		return false
	}
}

// testCopy copies a file to a container and back.
func (p *Pair) testCopy() {
	t := p.t
	dir := t.TempDir()
	text := bytes.Repeat([]byte("some data\n"), 100<<10)
	if err := os.WriteFile(filepath.Join(dir, "source"), text, 0o600); err != nil {
		t.Fatal(err)
	}
	p.Kubectl(t, "cp", "-c", "c", filepath.Join(dir, "source"), "shell:/tmp/file")
	p.Kubectl(t, "cp", "-c", "c", "shell:/tmp/file", filepath.Join(dir, "copy"))
	if got, err := os.ReadFile(filepath.Join(dir, "copy")); err != nil || !bytes.Equal(got, text) {
		t.Errorf("kubectl cp: got %d bytes, want %d, %v", len(got), len(text), err)
	}
}

// testAttach sends a line with kubectl attach -i and reads the response.
func (p *Pair) testAttach() {
	t := p.t
	cmd := p.kubectl("attach", "-i", "shell", "-c", "c")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_, _ = io.WriteString(in, "attached\n")
	lines := bufio.NewScanner(out)
	for lines.Scan() && lines.Text() != "got attached" {
	}
	if lines.Text() != "got attached" {
		t.Errorf("attach: got %q", lines.Text())
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
}

// testFollowLogs checks that kubectl logs -f prints a new line.
func (p *Pair) testFollowLogs() {
	t := p.t
	cmd := p.kubectl("logs", "-f", "shell", "-c", "c", "--tail=1")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	lines.Scan()
	p.Kubectl(t, "exec", "shell", "-c", "c", "--", "sh", "-c", "echo next > /proc/1/fd/1")
	if !lines.Scan() || lines.Text() != "next" {
		t.Errorf("logs -f: got %q", lines.Text())
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
}

// testPortForward forwards an open and a closed port. A connection to the closed port does not affect
// the open one.
func (p *Pair) testPortForward() {
	t := p.t
	cmd := p.kubectl("port-forward", "shell", ":80", ":81")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ports := map[string]string{}
	lines := bufio.NewScanner(out)
	for len(ports) < 2 && lines.Scan() {
		if m := regexp.MustCompile(`^Forwarding from (127\.0\.0\.1:\d+) -> (\d+)`).FindStringSubmatch(
			lines.Text()); m != nil {
			ports[m[2]] = m[1]
		}
	}
	go func() { _, _ = io.Copy(io.Discard, out) }()
	client := &http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	for range 3 {
		if resp, err := client.Get("http://" + ports["81"]); err == nil {
			resp.Body.Close()
			t.Error("port-forward: got a response from a closed port")
		}
		resp, err := client.Get("http://" + ports["80"])
		if err != nil {
			t.Errorf("port-forward after a failed connection: %v", err)
			continue
		}
		body, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if !strings.Contains(string(body), "nginx") {
			t.Errorf("port-forward: %s %q", resp.Status, body)
		}
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
}

// testDebug adds an ephemeral container with kubectl debug.
func (p *Pair) testDebug() {
	t := p.t
	p.Kubectl(t, "debug", "shell", "--image=busybox:1.36", "--target=c", "--container=debugger", "--profile=general",
		"--",
		"sh", "-c", "echo debugging; sleep 1000")
	p.waitUntil("the log of the ephemeral container", func() string {
		if out, _ := p.TryKubectl(t, "", "logs", "shell", "-c", "debugger"); out != "debugging\n" {
			return out
		}
		return ""
	})
}

// testAPIProxy sends requests to nodes, pods and services through the proxy subresources of the server.
func (p *Pair) testAPIProxy() {
	t := p.t
	node := "/api/v1/nodes/" + p.Node + "/proxy"
	var sum stats.Summary
	if err := json.Unmarshal([]byte(p.Kubectl(t, "get", "--raw", node+"/stats/summary")), &sum); err != nil ||
		len(sum.Pods) == 0 || sum.Node.NodeName != p.Node {
		t.Errorf("stats/summary: got %+v, %v", sum, err)
	}
	for path, want := range map[string]string{
		"/metrics/resource": `container_memory_working_set_bytes{container="web",namespace="default",pod="shell"}`,
		"/metrics/cadvisor": `container_network_receive_bytes_total{`, "/pods": `"name":"shell"`, "/healthz": "ok",
		"/configz": "kubeletconfig",
	} {
		if out := p.Kubectl(t, "get", "--raw", node+path); !strings.Contains(out, want) {
			t.Errorf("%s: %q not found in %.300s", path, want, out)
		}
	}
	p.Kubectl(t, "label", "pod", "shell", "app=shell")
	p.Apply(t, "apiVersion: v1\nkind: Service\nmetadata: {name: shell, namespace: default}\nspec: {selector: {app: "+
		"shell}, ports: [{name: web, port: 8000, targetPort: 80}]}\n")
	for _, target := range []string{"pods/shell:80", "pods/http:shell:80", "services/shell:web", "services/shell:8000",
		"services/shell"} {
		p.waitUntil(target, func() string {
			out, err := p.TryKubectl(t, "", "get", "--raw", "/api/v1/namespaces/default/"+target+"/proxy/")
			if err != nil || !strings.Contains(out, "nginx") {
				return out
			}
			return ""
		})
	}
	for target, want := range map[string]string{"pods/shell:81": "refused", "services/shell:9": "no service port",
		"services/none:80": "not found", "nodes/none": "not found"} {
		path := "/api/v1/namespaces/default/" + target
		if strings.HasPrefix(target, "nodes/") {
			path = "/api/v1/" + target
		}
		if out, err := p.TryKubectl(t, "", "get", "--raw", path+"/proxy/"); err == nil || !strings.Contains(out, want) {
			t.Errorf("%s: %.300s, want %q", target, out, want)
		}
	}
}

const scraperRBAC = `apiVersion: v1
kind: ServiceAccount
metadata: {name: scraper, namespace: default}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: scraper}
rules:
- {apiGroups: [""], resources: [nodes/metrics, nodes/stats], verbs: [get]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: scraper}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: scraper}
subjects: [{kind: ServiceAccount, name: scraper, namespace: default}]
`

// testNodeAuthorization sends requests to the node with a service account token. The node
// authenticates and authorizes them with the server.
func (p *Pair) testNodeAuthorization() {
	t := p.t
	p.Apply(t, scraperRBAC)
	p.waitUntil("the permissions of the scraper", func() string { // the node caches what the server denies
		out, _ := p.TryKubectl(t, "", "auth", "can-i", "get", "nodes", "--subresource=stats",
			"--as=system:serviceaccount:default:scraper")
		if !strings.Contains(out, "yes") {
			return "got " + out
		}
		return ""
	})
	token := strings.TrimSpace(p.Kubectl(t, "create", "token", "scraper"))
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	defer client.CloseIdleConnections()
	for _, r := range []struct {
		method, path, token string
		want                int
	}{
		{"GET", "/metrics/resource", token, 200}, {"GET", "/metrics/cadvisor", token, 200},
		{"GET", "/stats/summary", token,
			200},
		{"GET", "/pods", token, 403}, {"GET", "/logs/", token, 403}, {"GET", "/healthz", token, 403},
		{"GET", "/containerLogs/default/shell/c", token, 403},
		{"POST", "/exec/default/shell/c?command=id&output=1", token, 403},
		{"GET", "/exec/default/shell/c?command=id&output=1", token, 403},
		{"POST", "/run/default/shell/c?cmd=id", token, 403},
		{"GET", "/metrics/resource", "", 401}, {"GET", "/metrics/resource", token[:len(token)-4] + "AAAA", 401},
		{"GET", "/healthz", "", 401},
	} {
		req, err := http.NewRequestWithContext(t.Context(), r.method, "https://"+p.Host.Gateway.String()+":10250"+
			r.path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if r.token != "" {
			req.Header.Set("Authorization", "Bearer "+r.token)
		}
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if resp.StatusCode != r.want {
			t.Errorf("%s %s: got status %d %.200s, want %d", r.method, r.path, resp.StatusCode, body, r.want)
		}
	}
}

// testTop checks kubectl top for pods and nodes.
func (p *Pair) testTop() {
	for args, want := range map[string]string{
		"top pod shell --containers": `(?m)^shell +web +\d+m +[1-9]\d*Mi`, "top pod": `(?m)^shell +\d+m +[1-9]\d*Mi`,
		"top node": `(?m)^` + p.Node + ` +\d+m +\d+% +[1-9]\d*Mi`,
	} {
		p.waitUntil("kubectl "+args, func() string {
			out, _ := p.TryKubectl(p.t, "", strings.Fields(args)...)
			if !regexp.MustCompile(want).MatchString(out) {
				return out
			}
			return ""
		})
	}
}
