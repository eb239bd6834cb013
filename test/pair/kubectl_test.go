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

// kubectl is a stock kubectl process that ends with the test.
func (p *Pair) kubectl(args ...string) *exec.Cmd {
	p.t.Helper()
	program, err := hosts.Kubectl()
	if err != nil {
		p.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), waitBound)
	p.t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, program, append([]string{"--kubeconfig", p.Kubeconfig}, args...)...)
	home := filepath.Dir(p.Kubeconfig)
	cmd.Env = append(os.Environ(), "HOME="+home, "KUBECACHEDIR="+filepath.Join(home, "kubecache"))
	return cmd
}

const talking = `apiVersion: v1
kind: Pod
metadata: {name: talks, namespace: default}
spec:
  nodeName: %s
  terminationGracePeriodSeconds: 1
  containers:
  - {name: c, image: 'busybox:1.36', stdin: true, command: [sh, -c, 'echo begins; while read x; do echo "got $x"; done; sleep 1000']}
  - {name: tty, image: 'busybox:1.36', stdin: true, tty: true, command: [sh, -c, %q]}
  - {name: web, image: 'nginx:1.14.2'}
---
apiVersion: v1
kind: Pod
metadata: {name: again, namespace: default}
spec:
  nodeName: %s
  terminationGracePeriodSeconds: 1
  containers:
  - {name: c, image: 'busybox:1.36', command: [sh, -c, 'echo run once; exit 3']}
`

func TestKubectlReachesIntoPods(t *testing.T) {
	t.Parallel()
	p := start(t, pairOptions{})
	p.Apply(t, fmt.Sprintf(talking, p.Node, waitForSizes+"sleep 1000", p.Node))
	p.waits()
	p.commands()
	p.terminal()
	p.attachesOnTerminal()
	p.copies()
	p.attaches()
	p.follows()
	p.forwards()
	p.debugs()
	p.proxy()
	p.scrape()
	p.top()
	p.describes()
}

// waits runs kubectl wait for conditions that become true and ones that do not.
func (p *Pair) waits() {
	t := p.t
	if out := p.Kubectl(t, "wait", "--for=condition=Ready", "pod/talks",
		"--timeout="+waitBound.String()); out != "pod/talks condition met\n" {
		t.Errorf("kubectl wait: got %q", out)
	}
	if out, err := p.TryKubectl(t, "", "wait", "--for=delete", "pod/talks", "--timeout=1s"); err == nil ||
		!strings.Contains(out, "timed out waiting for the condition on pods/talks") {
		t.Errorf("kubectl wait with timeout: got %q, %v", out, err)
	}
}

// describes checks kubectl describe and events, also for a single pod.
func (p *Pair) describes() {
	for _, r := range []struct{ args, want, not string }{
		{"events --for pod/talks", `(?m)^\S+ +Normal +Started +Pod/talks +.+`, "Pod/again"},
		{"events --for pod/again --types=Warning", `(?m)^\S+.* +Warning +BackOff +Pod/again +.+`, "Normal"},
		{"events -A", `(?m)^default +.+ Pod/talks +.+`, "No events found"},
	} {
		p.until("kubectl "+r.args, func() string {
			out, _ := p.TryKubectl(p.t, "", strings.Fields(r.args)...)
			if !regexp.MustCompile(r.want).MatchString(out) || strings.Contains(out, r.not) {
				return out
			}
			return ""
		})
	}
}

// commands checks exec and logs, and their errors.
func (p *Pair) commands() {
	t := p.t
	for _, r := range []struct{ want, args string }{
		{"^begins\n", "logs talks -c c"},
		{"^one two\n$", "exec talks -c c -- echo one two"},
		{"(?s)^oops\n.*command terminated with exit code 7", "exec talks -c c -- sh -c echo\u00a0oops;exit\u00a07"},
		{`container none is not valid for pod talks`, "logs talks -c none"},
		{`previous terminated container "c" in pod "talks" not found`, "logs talks -c c -p"},
		{`pods "nobody" not found`, "exec nobody -- true"},
	} {
		args := strings.Fields(strings.ReplaceAll(r.args, "\u00a0", "\x00"))
		for i := range args {
			args[i] = strings.ReplaceAll(args[i], "\x00", " ")
		}
		if out, _ := p.TryKubectl(t, "", args...); !regexp.MustCompile(r.want).MatchString(out) {
			t.Errorf("kubectl %s: %q", r.args, out)
		}
	}
	out, err := p.TryKubectl(t, "piped through", "exec", "-i", "talks", "-c", "c", "--", "tr", "a-z", "A-Z")
	if err != nil || out != "PIPED THROUGH" {
		t.Errorf("exec -i: %q, %v", out, err)
	}
	p.until("the log of before", func() string {
		out, err := p.TryKubectl(t, "", "logs", "again", "-p")
		if err != nil || out != "run once\n" {
			return out
		}
		return ""
	})
}

// terminal checks exec -it with a terminal that is resized.
func (p *Pair) terminal() {
	cmd, master, seen := p.onTerminal("exec", "-it", "talks", "-c", "c", "--", "sh", "-c", waitForSizes+"exit 5")
	p.typeInput(master, seen)
	for seen("") { // until kubectl has exited
	}
	if err := cmd.Wait(); cmd.ProcessState.ExitCode() != 5 {
		p.t.Errorf("exec -it: %v", err)
	}
}

// attachesOnTerminal checks attach -it with a terminal that is resized.
func (p *Pair) attachesOnTerminal() {
	cmd, master, seen := p.onTerminal("attach", "-it", "talks", "-c", "tty")
	p.typeInput(master, seen)
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
}

// waitForSizes is a program that waits for two terminal sizes and a line of input in between.
const waitForSizes = `until stty size | grep '33 77'; do sleep 0.1; done; read x; echo "read $x"; until stty size | grep '44 88'; do sleep 0.1; done; `

// typeInput provides what the program sizes waits for.
func (p *Pair) typeInput(master *os.File, seen func(string) bool) {
	see := func(want string) {
		if !seen(want) {
			p.t.Errorf("%q not found in the terminal output", want)
		}
	}
	see("33 77")
	_, _ = master.WriteString("typed\n")
	see("read typed")
	_ = unix.IoctlSetWinsize(int(master.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 44, Col: 88})
	see("44 88")
}

// onTerminal runs kubectl on a terminal with 33 lines. seen reads its output up to the line with a
// text.
func (p *Pair) onTerminal(args ...string) (cmd *exec.Cmd, master *os.File, seen func(want string) bool) {
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
	shown := bufio.NewScanner(master)
	return cmd, master, func(want string) bool {
		for shown.Scan() {
			if strings.Contains(shown.Text(), want) {
				return true
			}
		}
		return false
	}
}

func (p *Pair) copies() {
	t := p.t
	dir := t.TempDir()
	text := bytes.Repeat([]byte("all of it\n"), 100<<10)
	if err := os.WriteFile(filepath.Join(dir, "there"), text, 0o600); err != nil {
		t.Fatal(err)
	}
	p.Kubectl(t, "cp", "-c", "c", filepath.Join(dir, "there"), "talks:/tmp/file")
	p.Kubectl(t, "cp", "-c", "c", "talks:/tmp/file", filepath.Join(dir, "back"))
	if back, err := os.ReadFile(filepath.Join(dir, "back")); err != nil || !bytes.Equal(back, text) {
		t.Errorf("cp: %d bytes of %d, %v", len(back), len(text), err)
	}
}

func (p *Pair) attaches() {
	t := p.t
	cmd := p.kubectl("attach", "-i", "talks", "-c", "c")
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

func (p *Pair) follows() {
	t := p.t
	cmd := p.kubectl("logs", "-f", "talks", "-c", "c", "--tail=1")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	lines.Scan()
	p.Kubectl(t, "exec", "talks", "-c", "c", "--", "sh", "-c", "echo news > /proc/1/fd/1")
	if !lines.Scan() || lines.Text() != "news" {
		t.Errorf("logs -f: got %q", lines.Text())
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
}

func (p *Pair) forwards() {
	t := p.t
	cmd := p.kubectl("port-forward", "talks", ":80", ":81")
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
			t.Error("a closed port responds")
		}
		resp, err := client.Get("http://" + ports["80"])
		if err != nil {
			t.Errorf("port-forward after a closed port: %v", err)
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

func (p *Pair) debugs() {
	t := p.t
	p.Kubectl(t, "debug", "talks", "--image=busybox:1.36", "--target=c", "--container=look", "--profile=general", "--",
		"sh", "-c", "echo it is me; sleep 1000")
	p.until("what the debugger says", func() string {
		if out, _ := p.TryKubectl(t, "", "logs", "talks", "-c", "look"); out != "it is me\n" {
			return out
		}
		return ""
	})
}

// proxy sends requests to the node's API through the server.
func (p *Pair) proxy() {
	t := p.t
	node := "/api/v1/nodes/" + p.Node + "/proxy"
	var sum stats.Summary
	if err := json.Unmarshal([]byte(p.Kubectl(t, "get", "--raw", node+"/stats/summary")), &sum); err != nil ||
		len(sum.Pods) == 0 || sum.Node.NodeName != p.Node {
		t.Errorf("stats: %v %+v", err, sum)
	}
	for path, want := range map[string]string{
		"/metrics/resource": `container_memory_working_set_bytes{container="web",namespace="default",pod="talks"}`,
		"/metrics/cadvisor": `container_network_receive_bytes_total{`, "/pods": `"name":"talks"`, "/healthz": "ok",
		"/configz": "kubeletconfig",
	} {
		if out := p.Kubectl(t, "get", "--raw", node+path); !strings.Contains(out, want) {
			t.Errorf("%s: %.300s", path, out)
		}
	}
	p.Kubectl(t, "label", "pod", "talks", "app=talks")
	p.Apply(t, "apiVersion: v1\nkind: Service\nmetadata: {name: talks, namespace: default}\nspec: {selector: {app: "+
		"talks}, ports: [{name: web, port: 8000, targetPort: 80}]}\n")
	for _, to := range []string{"pods/talks:80", "pods/http:talks:80", "services/talks:web", "services/talks:8000",
		"services/talks"} {
		p.until(to, func() string {
			out, err := p.TryKubectl(t, "", "get", "--raw", "/api/v1/namespaces/default/"+to+"/proxy/")
			if err != nil || !strings.Contains(out, "nginx") {
				return out
			}
			return ""
		})
	}
	for to, want := range map[string]string{"pods/talks:81": "refused", "services/talks:9": "no service port",
		"services/none:80": "not found", "nodes/none": "not found"} {
		path := "/api/v1/namespaces/default/" + to
		if strings.HasPrefix(to, "nodes/") {
			path = "/api/v1/" + to
		}
		if out, err := p.TryKubectl(t, "", "get", "--raw", path+"/proxy/"); err == nil || !strings.Contains(out, want) {
			t.Errorf("%s: %.300s, want %q", to, out, want)
		}
	}
}

const scraper = `apiVersion: v1
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

// scrape sends a request to the node with a service account token. The node authenticates and
// authorizes it with the server.
func (p *Pair) scrape() {
	t := p.t
	p.Apply(t, scraper)
	token := strings.TrimSpace(p.Kubectl(t, "create", "token", "scraper"))
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	defer client.CloseIdleConnections()
	for _, r := range []struct {
		method, path, token string
		want                int
	}{
		{"GET", "/metrics/resource", token, 200}, {"GET", "/metrics/cadvisor", token, 200}, {"GET", "/stats/summary", token,
			200},
		{"GET", "/pods", token, 403}, {"GET", "/logs/", token, 403}, {"GET", "/healthz", token, 403},
		{"GET", "/containerLogs/default/talks/c", token, 403},
		{"POST", "/exec/default/talks/c?command=id&output=1", token, 403},
		{"GET", "/exec/default/talks/c?command=id&output=1", token, 403},
		{"POST", "/run/default/talks/c?cmd=id", token, 403},
		{"GET", "/metrics/resource", "", 401}, {"GET", "/metrics/resource", token[:len(token)-4] + "AAAA", 401},
		{"GET", "/healthz", "", 401},
	} {
		req, err := http.NewRequestWithContext(t.Context(), r.method, "https://"+p.Host.Gateway.String()+":10250"+r.path, nil)
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
			t.Errorf("%s %s: %d %.200s, want %d", r.method, r.path, resp.StatusCode, body, r.want)
		}
	}
}

// top checks kubectl top for pods and nodes, based on the metrics of the node's API.
func (p *Pair) top() {
	for args, want := range map[string]string{
		"top pod talks --containers": `(?m)^talks +web +\d+m +[1-9]\d*Mi`, "top pod": `(?m)^talks +\d+m +[1-9]\d*Mi`,
		"top node": `(?m)^` + p.Node + ` +\d+m +\d+% +[1-9]\d*Mi`,
	} {
		p.until("kubectl "+args, func() string {
			out, _ := p.TryKubectl(p.t, "", strings.Fields(args)...)
			if !regexp.MustCompile(want).MatchString(out) {
				return out
			}
			return ""
		})
	}
}
