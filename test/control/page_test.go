package control

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	restclient "k8s.io/client-go/rest"

	"berth/control/ui"
	"berth/test/browser"
)

// markup would run a script if a page showed it as HTML.
const markup = `<img src=x onerror="document.title='attacked'">`

// TestPage opens the web page of a server in a browser. The node is a stand-in for an agent.
func TestPage(t *testing.T) {
	t.Parallel()
	s := Start(t)
	addNode(t, s, "n1", "4")
	agent := &pageAgent{}
	serveSummary(t, s, "n1", agent.ServeHTTP)
	t.Run("why a pod is not well", func(t *testing.T) { testPageWhy(t, s, agent) })
	t.Run("pods live", func(t *testing.T) { testPagePods(t, s) })
	t.Run("deployment", func(t *testing.T) { testPageDeployment(t, s) })
	t.Run("user with few permissions", func(t *testing.T) { testPageFewPermissions(t, s) })
	t.Run("sign-in", func(t *testing.T) { testPageSignIn(t, s) })
}

// pageAgent responds as an agent does. The pod bad has a failing container.
type pageAgent struct {
	more atomic.Int32 // lines that the log gets later
}

func (a *pageAgent) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	now := time.Now().UTC()
	switch r.URL.Path {
	case "/podWhy/default/bad":
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(map[string]any{
			"summary": `default/bad is waiting for container "main": ` + markup,
			"waitingFor": []map[string]any{{"reason": "CrashLoopBackOff", "target": "main", "message": markup,
				"since":   now.Add(-20*time.Hour - 30*time.Minute),
				"details": []map[string]string{{"name": "last exit code", "value": "3"}}}},
		})
	case "/podTimeline/default/bad":
		w.Header().Set("Content-Type", "application/json")
		span := func(id int, name, kind string, from, to time.Duration) map[string]any {
			return map[string]any{"id": id, "name": name, "kind": kind, "start": now.Add(from), "end": now.Add(to),
				"cause": markup}
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"now": now, "spans": []any{
			span(1, "run sandbox", "action", -time.Hour, -time.Hour+time.Second),
			span(2, "restart main", "action", -30*time.Minute, -29*time.Minute),
		}})
	case "/containerLogs/default/bad/main":
		a.log(w, r)
	default:
		http.NotFound(w, r)
	}
}

// log writes a log with markup, escape sequences and a long line, and more lines while it is followed.
func (a *pageAgent) log(w http.ResponseWriter, r *http.Request) {
	at := time.Now().UTC()
	line := func(text string) {
		at = at.Add(time.Millisecond)
		fmt.Fprintf(w, "%s %s\n", at.Format(time.RFC3339Nano), text)
		_ = http.NewResponseController(w).Flush()
	}
	if r.URL.Query().Get("previous") == "true" {
		line("line of the previous instance")
		return
	}
	line(markup)
	line("\x1b]0;attacked\x07\x1b[31mred\x1b[0m text")
	line(strings.Repeat("x", 1<<20))
	line("last line at first")
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for written := int32(0); r.URL.Query().Get("follow") == "true"; {
		select {
		case <-r.Context().Done():
			return
		case <-tick.C:
		}
		for ; written < a.more.Load(); written++ {
			line(fmt.Sprintf("line %d of later", written))
		}
	}
}

// link returns a link that signs the administrator in, as berth-control ui does.
func (s *Server) link(t testing.TB) string {
	t.Helper()
	client, err := restclient.HTTPClientFor(s.Config)
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.Config.Host+"/ui/links",
		bytes.NewReader([]byte(`{"duration": "1h"}`)))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set(ui.Header, "test")
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	var out ui.LinkResponse
	if err != nil || json.Unmarshal(body, &out) != nil || out.Code == "" {
		t.Fatalf("link: %s, %v: %s", resp.Status, err, body)
	}
	return s.Config.Host + "/ui/#/link/" + out.Code
}

// openPage signs the administrator in.
func openPage(t *testing.T, s *Server) *browser.Page {
	t.Helper()
	p := browser.Open(t, 1280, 900)
	t.Cleanup(p.CheckNoProblems)
	p.Go(s.link(t))
	p.WaitText("Pods that are not well", "live")
	return p
}

// testPageWhy finds out why a pod fails, with three clicks, and reads its timeline and log.
func testPageWhy(t *testing.T, s *Server, agent *pageAgent) {
	s.Apply(t, strings.Replace(podYAML("bad", "1m", "  nodeName: n1"), "metadata: {",
		fmt.Sprintf("metadata: {annotations: {note: %q}, ", markup), 1))
	failing(t, s, "default", "bad")
	p := openPage(t, s)
	p.WaitText("default/bad", "CrashLoopBackOff", markup+". Its last exit code is 3.", "for 20h")
	p.Screenshot("overview")
	p.Click("a", "default/bad")
	p.WaitText("Pod bad", "ended with exit code 3", "last exit code: 3")
	p.Click("a", "Timeline")
	p.WaitText("run sandbox", "restart main", "29m later", markup)
	p.Screenshot("timeline")
	p.Click("a", "YAML")
	p.WaitText("note: ", `onerror=`)
	p.Click("a", "Logs")
	p.WaitText(markup, "red text", "1040384 more characters", "last line at first", "4 lines, following")
	agent.more.Store(3)
	p.WaitText("line 2 of later", "7 lines")
	p.Type("main input[type=search]", "of LATER")
	p.WaitText("3 of 7 lines")
	p.WaitNoText("last line at first")
	p.Type("main input[type=search]", " ")
	p.Click("checkbox", "previous instance")
	p.WaitText("line of the previous instance")
	if n := p.Eval(`document.querySelectorAll("main img, main script, main iframe").length`); n != "0" {
		t.Errorf("markup was rendered: %s elements", n)
	}
	if title := p.Eval(`document.title`); strings.Contains(title, "attacked") {
		t.Errorf("a script ran: the title is %q", title)
	}
	s.Kubectl(t, "delete", "pod", "bad", "--force", "--grace-period=0")
	p.WaitText("There is no pod bad in the namespace default.")
}

// failing sets the status of a pod whose container main fails again and again.
func failing(t *testing.T, s *Server, namespace, name string) {
	t.Helper()
	at := metav1.NewTime(time.Now().Add(-time.Hour))
	eventually(t, "the status update of pod "+name, func() (bool, string) {
		pod, err := s.Client.CoreV1().Pods(namespace).Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return false, err.Error()
		}
		waiting := &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}
		terminated := &corev1.ContainerStateTerminated{ExitCode: 3, Reason: "Error", StartedAt: at, FinishedAt: at}
		pod.Status.Phase = corev1.PodRunning
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "main", RestartCount: 7, Image: "busybox",
			ContainerID:          "containerd://1",
			State:                corev1.ContainerState{Waiting: waiting},
			LastTerminationState: corev1.ContainerState{Terminated: terminated}}}
		_, err = s.Client.CoreV1().Pods(namespace).UpdateStatus(t.Context(), pod, metav1.UpdateOptions{})
		return err == nil, fmt.Sprint(err)
	})
}

func testPagePods(t *testing.T, s *Server) {
	p := openPage(t, s)
	p.Click("a", "Pods")
	p.WaitText("0 pods")
	for i := range 3 {
		s.Apply(t, podYAML(fmt.Sprintf("live-%d", i), "1m", "  nodeName: n1"))
	}
	p.WaitText("live-0", "live-1", "live-2", "3 pods", "Restarts", "n1")
	p.Type("main input[type=search]", "LIVE-1 n1")
	p.WaitText("1 of 3 pods")
	p.WaitNoText("live-2")
	p.Type("main input[type=search]", " ")
	p.WaitText("live-2")
	failing(t, s, "default", "live-2")
	p.WaitText("CrashLoopBackOff", "7")
	p.Screenshot("pods")
	p.Click("a", "live-0")
	p.WaitText("Pod live-0")
	p.Click("button", "Delete")
	p.WaitText("kubectl delete pod live-0 -n default")
	p.Click("submit", "Delete")
	eventually(t, "the deletion of the pod", func() (bool, string) {
		pod, err := s.Client.CoreV1().Pods("default").Get(t.Context(), "live-0", metav1.GetOptions{})
		return err != nil || pod.DeletionTimestamp != nil, "not deleted"
	})
	s.Kubectl(t, "delete", "pod", "--all", "--force", "--grace-period=0")
	p.Click("a", "Pods")
	p.WaitText("0 pods")
}

func testPageDeployment(t *testing.T, s *Server) {
	s.Kubectl(t, "create", "deployment", "shop", "--image=shop:1", "--replicas=2")
	p := openPage(t, s)
	p.WaitText("shop", "0/2")
	p.Click("a", "shop")
	p.WaitText("Deployment shop", "0 of 2 ready", "Revision 1 is the oldest revision in the history.")
	p.Click("button", "Scale")
	p.Type("dialog input", "3")
	p.WaitText("kubectl scale deployment/shop -n default --replicas=3")
	p.Click("submit", "Scale")
	p.WaitText("0 of 3 ready", "3 on n1")
	s.Kubectl(t, "set", "image", "deployment/shop", "shop=shop:2")
	p.WaitText("2 (current)", "Changes from revision 1 to 2", "-     image: shop:1", "+     image: shop:2")
	p.Screenshot("deployment")
	p.Click("button", "Undo to this")
	p.WaitText("kubectl rollout undo deployment/shop -n default --to-revision=1")
	p.Click("submit", "Undo to this")
	p.WaitText("3 (current)", "Changes from revision 2 to 3")
	image := s.Kubectl(t, "get", "deployment", "shop", "-o", "jsonpath={.spec.template.spec.containers[0].image}")
	if image != "shop:1" {
		t.Errorf("image after undo: %q", image)
	}
	p.Click("button", "Restart")
	p.WaitText("kubectl rollout restart deployment/shop -n default")
	p.Click("submit", "Restart")
	p.WaitText("4 (current)", "kubectl.kubernetes.io/restartedAt")
	s.Kubectl(t, "delete", "deployment", "shop")
	p.WaitText("There is no Deployment shop in the namespace default.")
}

// testPageFewPermissions signs a service account in that may read one namespace only.
func testPageFewPermissions(t *testing.T, s *Server) {
	for _, args := range [][]string{{"create", "namespace", "team"},
		{"create", "serviceaccount", "reader", "-n", "team"},
		{"create", "rolebinding", "reader", "-n", "team", "--clusterrole=view", "--serviceaccount=team:reader"},
		{"create", "deployment", "own", "-n", "team", "--image=own:1"},
		{"create", "deployment", "other", "-n", "default", "--image=other:1"}} {
		s.Kubectl(t, args...)
	}
	token := strings.TrimSpace(s.Kubectl(t, "create", "token", "reader", "-n", "team"))
	p := browser.Open(t, 1280, 900)
	t.Cleanup(p.CheckNoProblems)
	signInWithToken(p, s, token)
	p.WaitText("system:serviceaccount:team:reader", "own", "You have no permission to list nodes.")
	p.WaitNoText("other")
	p.Click("a", "own")
	p.WaitText("Deployment own", "Revision 1 is the oldest revision in the history.")
	for _, name := range []string{"Scale", "Restart"} {
		if p.Has("button", name) {
			t.Errorf("a user who may not change the Deployment sees the button %s", name)
		}
	}
	p.Go(s.Config.Host + "/ui/#/workload/Deployment/default/other")
	p.WaitText("You have no permission to read the Deployment default/other.")
	p.Screenshot("no-permission")
	// The token ends with its service account. The page notices at its next request.
	s.Kubectl(t, "delete", "serviceaccount", "reader", "-n", "team")
	p.WaitText("Sign in to berth", "Your session has expired. Sign in again.")
	s.Kubectl(t, "delete", "deployment", "other")
}

func signInWithToken(p *browser.Page, s *Server, token string) {
	p.Go(s.Config.Host + "/ui/")
	p.WaitText("Sign in to berth", "berth-control ui")
	p.Type("#token", token)
	p.Click("button", "Sign in")
}

func testPageSignIn(t *testing.T, s *Server) {
	p := browser.Open(t, 1280, 900)
	signInWithToken(p, s, "not.a.token")
	p.WaitText("the server does not accept these credentials")
	link := s.link(t)
	p.Go("about:blank")
	p.Go(link)
	p.WaitText("Pods that are not well")
	if address := p.Eval("location.href"); strings.Contains(address, "link") {
		t.Errorf("the address %s contains the link", address)
	}
	if cookie := p.Eval("document.cookie"); cookie != "" {
		t.Errorf("scripts can read the cookie %q", cookie)
	}
	p.Go(s.Config.Host + "/api/v1/namespaces") // with the cookie, which has no effect there
	p.WaitText("system:anonymous")
	p.Go(s.Config.Host + "/ui/api/api/v1/namespaces") // without the header
	p.WaitText("the request has no header")
	p.Go(s.Config.Host + "/ui/")
	p.WaitText("Pods that are not well")
	p.Click("button", "Sign out")
	p.WaitText("You are signed out.")
	p.Go("about:blank")
	p.Go(link)
	p.WaitText("this link has been used or has expired: run berth-control ui again")
}

// TestPageAfterServerRestart kills the server while the page watches pods, and starts it again.
func TestPageAfterServerRestart(t *testing.T) {
	t.Parallel()
	server := Launch(t)
	client, err := server.WaitReady(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	out, err := runControl(t, "ui", "--data-dir", server.DataDir)
	link := strings.TrimSpace(out)
	if err != nil || !strings.HasPrefix(link, "https://"+server.Listen+"/ui/#/link/") {
		t.Fatalf("berth-control ui: %v: %s", err, out)
	}
	p := browser.Open(t, 800, 600)
	p.Go(link)
	p.WaitText("Pods that are not well")
	p.Click("a", "Pods")
	p.WaitText("live", "0 pods")
	server.Kill(t)
	p.WaitText("reconnecting")
	server.Start(t)
	p.WaitText("live")
	if _, err := client.CoreV1().Pods("default").Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "after-restart"},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "busybox"}}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	p.WaitText("after-restart", "1 pod")
}

// TestPageIsOff starts a server without the page.
func TestPageIsOff(t *testing.T) {
	t.Parallel()
	server := Launch(t, "--ui=false")
	if _, err := server.WaitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	out, err := runControl(t, "ui", "--data-dir", server.DataDir)
	if err == nil || !strings.Contains(out, "the server does not serve the web page: was it started with --ui=false?") {
		t.Errorf("berth-control ui: %v: %s", err, out)
	}
}
