package e2e

import (
	"context"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"berth/nodeapi"
	"berth/test/hosts"
)

// waitHTTP sends GET requests until url responds with status 200, and returns the body.
func (s *Namespace) waitHTTP(url string) string {
	s.t.Helper()
	client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	var body string
	err := hosts.WaitFor(s.t.Context(), "a response from "+url, func() (bool, error) {
		r, err := client.Get(url)
		if err != nil {
			return false, nil
		}
		defer r.Body.Close()
		text, err := io.ReadAll(r.Body)
		body = string(text)
		return err == nil && r.StatusCode == http.StatusOK, nil
	})
	if err != nil {
		s.t.Fatal(err)
	}
	return body
}

func TestPodRunsAndReportsStatus(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, s *Namespace) {
		start := time.Now().Truncate(time.Second)
		// firstTrue has the number of the watch event in which a condition first was True. One event may
		// change several conditions.
		firstTrue, events := map[string]int{}, 0
		ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
		defer cancel()
		s.Pod("web", `
			containers:
			`+box("web", "ports: [{containerPort: 8080}]", "serve"))
		var p *corev1.Pod
		err := s.watch(ctx, func(e nodeapi.PodEvent, _ map[string]*corev1.Pod) bool {
			if p = e.Pod; p == nil {
				return false
			}
			events++
			for _, c := range p.Status.Conditions {
				if name := string(c.Type); c.Status == corev1.ConditionTrue && firstTrue[name] == 0 {
					firstTrue[name] = events
				}
			}
			return p.Status.Phase == corev1.PodRunning && condition(p, corev1.PodReady) == corev1.ConditionTrue
		})
		if err != nil {
			t.Fatal(err)
		}
		if body := s.waitHTTP("http://" + p.Status.PodIP + ":8080/"); body != "web\n" {
			t.Errorf("got response %q, want \"web\\n\"", body)
		}
		st := p.Status
		if !strings.HasPrefix(st.PodIP, strings.TrimSuffix(s.Host.PodCIDR.Masked().Addr().String(), "0")) ||
			len(st.PodIPs) != 1 || st.PodIPs[0].IP != st.PodIP {
			t.Errorf("pod IPs: got %q %v, want one of %s", st.PodIP, st.PodIPs, s.Host.PodCIDR)
		}
		if st.HostIP != s.Host.Gateway.String() || len(st.HostIPs) != 1 {
			t.Errorf("host IP: got %q %v, want %s", st.HostIP, st.HostIPs, s.Host.Gateway)
		}
		if st.QOSClass != corev1.PodQOSBestEffort {
			t.Errorf("got QoS class %s, want BestEffort", st.QOSClass)
		}
		if st.StartTime == nil || st.StartTime.Time.Before(start) || st.StartTime.Time.After(time.Now()) {
			t.Errorf("start time %v is before the test or in the future", st.StartTime)
		}
		if p.Spec.NodeName != s.Host.Name || p.UID == "" {
			t.Errorf("node %q, UID %q", p.Spec.NodeName, p.UID)
		}
		checkOrder := func(a, b string) {
			if x, y := firstTrue[a], firstTrue[b]; x == 0 || y == 0 || x > y {
				t.Errorf("condition %s is not before %s: %v", a, b, firstTrue)
			}
		}
		checkOrder("PodScheduled", "PodReadyToStartContainers")
		checkOrder("PodReadyToStartContainers", "ContainersReady")
		checkOrder("Initialized", "Ready")
		c := status(p, "web")
		if !c.Ready || c.Started == nil || !*c.Started || c.RestartCount != 0 ||
			!strings.HasPrefix(c.ContainerID, "containerd://") ||
			!strings.HasSuffix(c.Image, "berth/testbox:1") || !strings.Contains(c.ImageID, "sha256:") ||
			c.State.Running.StartedAt.Time.Before(start) {
			t.Errorf("container status: %+v", c)
		}
		for _, e := range []string{"Pulled: Container image \"berth/testbox:1\" already present on machine",
			"Created: ", "Started: "} {
			s.Event("web", e)
		}
		s.checkLogFiles(p)
	})
}

// checkLogFiles checks the log files of a running pod, deletes the pod and checks that the files
// are removed.
func (s *Namespace) checkLogFiles(p *corev1.Pod) {
	dir := filepath.Join(s.Agent.LogsDir, s.ns+"_"+p.Name+"_"+string(p.UID))
	file := filepath.Join(dir, "web", "0.log")
	text, err := os.ReadFile(file)
	if err != nil {
		s.t.Error(err)
	}
	f := strings.Fields(string(text))
	if len(f) < 5 || f[1] != "stdout" || f[2] != "F" || f[3] != "serving" {
		s.t.Errorf("got log line %q, want a CRI log line with \"serving\"", text)
	}
	if _, err := time.Parse(time.RFC3339Nano, f[0]); err != nil {
		s.t.Error(err)
	}
	link := filepath.Join("/var/log/containers", p.Name+"_"+s.ns+"_web-"+
		strings.TrimPrefix(status(p, "web").ContainerID, "containerd://")+".log")
	if target, err := os.Readlink(link); err != nil || target != file {
		s.t.Errorf("symlink %s: got target %q (%v), want %s", link, target, err, file)
	}
	s.Remove(p.Name)
	s.WaitDeleted(p.Name)
	for _, path := range []string{dir, link, filepath.Join(s.Agent.RootDir, "pods", string(p.UID))} {
		if _, err := os.Lstat(path); !os.IsNotExist(err) {
			s.t.Errorf("%s still exists (%v)", path, err)
		}
	}
}
