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

// answer asks a web server until it answers.
func (s *Space) answer(url string) string {
	s.t.Helper()
	client := &http.Client{Timeout: 2 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	var body string
	err := hosts.WaitFor(s.t.Context(), "an answer from "+url, func() (bool, error) {
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
	both(t, func(t *testing.T, s *Space) {
		began := time.Now().Truncate(time.Second)
		order, events := map[string]int{}, 0 // in which event a condition was first True: one may report several
		ctx, cancel := context.WithTimeout(t.Context(), waitBound)
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
				if name := string(c.Type); c.Status == corev1.ConditionTrue && order[name] == 0 {
					order[name] = events
				}
			}
			return p.Status.Phase == corev1.PodRunning && condition(p, corev1.PodReady) == corev1.ConditionTrue
		})
		if err != nil {
			t.Fatal(err)
		}
		if body := s.answer("http://" + p.Status.PodIP + ":8080/"); body != "web\n" {
			t.Errorf("the web server answers %q", body)
		}
		st := p.Status
		if !strings.HasPrefix(st.PodIP, strings.TrimSuffix(s.Host.PodCIDR.Masked().Addr().String(), "0")) || len(st.PodIPs) != 1 || st.PodIPs[0].IP != st.PodIP {
			t.Errorf("addresses %q %v are not of %s", st.PodIP, st.PodIPs, s.Host.PodCIDR)
		}
		if st.HostIP != s.Host.Gateway.String() || len(st.HostIPs) != 1 {
			t.Errorf("host address is %q %v, want %s", st.HostIP, st.HostIPs, s.Host.Gateway)
		}
		if st.QOSClass != corev1.PodQOSBestEffort {
			t.Errorf("QoS is %s", st.QOSClass)
		}
		if st.StartTime == nil || st.StartTime.Time.Before(began) || st.StartTime.Time.After(time.Now()) {
			t.Errorf("start time %v is not within the test", st.StartTime)
		}
		if p.Spec.NodeName != s.Host.Name || p.UID == "" {
			t.Errorf("node %q, UID %q", p.Spec.NodeName, p.UID)
		}
		before := func(a, b string) {
			if x, y := order[a], order[b]; x == 0 || y == 0 || x > y {
				t.Errorf("%s is after %s in %v", a, b, order)
			}
		}
		before("PodScheduled", "PodReadyToStartContainers")
		before("PodReadyToStartContainers", "ContainersReady")
		before("Initialized", "Ready")
		c := status(p, "web")
		if !c.Ready || c.Started == nil || !*c.Started || c.RestartCount != 0 || !strings.HasPrefix(c.ContainerID, "containerd://") ||
			!strings.HasSuffix(c.Image, "berth/testbox:1") || !strings.Contains(c.ImageID, "sha256:") || c.State.Running.StartedAt.Time.Before(began) {
			t.Errorf("container's status: %+v", c)
		}
		for _, e := range []string{"Pulled: Container image \"berth/testbox:1\" already present on machine", "Created: ", "Started: "} {
			s.Event("web", e)
		}
		s.logFiles(p)
	})
}

// logFiles checks the layout of a running pod's logs, and that it goes with the
// pod.
func (s *Space) logFiles(p *corev1.Pod) {
	dir := filepath.Join(s.Agent.LogsDir, s.ns+"_"+p.Name+"_"+string(p.UID))
	file := filepath.Join(dir, "web", "0.log")
	text, err := os.ReadFile(file)
	if err != nil {
		s.t.Error(err)
	}
	f := strings.Fields(string(text))
	if len(f) < 5 || f[1] != "stdout" || f[2] != "F" || f[3] != "serving" {
		s.t.Errorf("log line %q", text)
	}
	if _, err := time.Parse(time.RFC3339Nano, f[0]); err != nil {
		s.t.Error(err)
	}
	link := filepath.Join("/var/log/containers", p.Name+"_"+s.ns+"_web-"+strings.TrimPrefix(status(p, "web").ContainerID, "containerd://")+".log")
	if target, err := os.Readlink(link); err != nil || target != file {
		s.t.Errorf("link %s leads to %q (%v), want %s", link, target, err, file)
	}
	s.Remove(p.Name)
	s.Gone(p.Name)
	for _, gone := range []string{dir, link, filepath.Join(s.Agent.RootDir, "pods", string(p.UID))} {
		if _, err := os.Lstat(gone); !os.IsNotExist(err) {
			s.t.Errorf("%s is still there (%v)", gone, err)
		}
	}
}
