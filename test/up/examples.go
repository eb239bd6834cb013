package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"berth/test/hosts"
)

// workloads are the workloads of the examples with the status that each must reach, as a template of kubectl.
var workloads = []struct{ namespace, name, path, want string }{
	{"default", "deployment/my-nginx", "{.status.availableReplicas}", "3"},
	{"default", "statefulset/web", "{.status.availableReplicas}", "2"},
	{"kube-system", "daemonset/fluentd-elasticsearch", "{.status.numberAvailable}", "1"},
	{"default", "job/pi", "{.status.succeeded}", "2"},
}

// waitExamples waits until the example pods and workloads have reached their expected states and returns the
// address of pod web.
func (s *server) waitExamples(ctx context.Context) (ip string, err error) {
	err = hosts.WaitFor(ctx, "the example pods", func() (bool, error) {
		var done bool
		ip, done, err = s.examplePods(ctx)
		return done, err
	})
	if err != nil {
		return "", err
	}
	for _, w := range workloads {
		if _, err := s.run(ctx, "wait", "-n", w.namespace, w.name, "--for=jsonpath="+w.path+"="+w.want,
			"--timeout=5m"); err != nil {
			return "", err
		}
	}
	return ip, nil
}

// examplePods reports whether the example pods have reached their expected states, and the address of pod web.
func (s *server) examplePods(ctx context.Context) (ip string, done bool, err error) {
	out, err := s.run(ctx, "get", "pods", "-o", "json")
	if err != nil {
		return "", false, err
	}
	var list corev1.PodList
	if err := json.Unmarshal([]byte(out), &list); err != nil {
		return "", false, err
	}
	reached := 0
	for i := range list.Items {
		p := &list.Items[i]
		switch {
		case p.Name == "web" && ready(p):
			ip = p.Status.PodIP
			if page, err := get(ctx, "http://"+ip); err == nil && strings.Contains(page, "hello") {
				reached++
			}
		case p.Name == "once" && p.Status.Phase == corev1.PodSucceeded, p.Name == "crash" && restarts(p) > 0,
			p.Name == "clock-quickstart" && ready(p):
			reached++
		}
	}
	return ip, reached == 4, nil
}

// update shows a rolling update of the example Deployment and its history.
func (s *server) update(ctx context.Context) error {
	for _, args := range [][]string{
		{"set", "image", "deployment/my-nginx", "nginx=nginx:1.16.1"},
		{"annotate", "deployment/my-nginx", "kubernetes.io/change-cause=nginx 1.16.1"},
		{"rollout", "status", "deployment/my-nginx", "--timeout=5m"},
		{"rollout", "history", "deployment/my-nginx"},
		{"get", "deployments,statefulsets,daemonsets,jobs,cronjobs", "-A", "-o", "wide"},
		{"get", "persistentvolumeclaims"},
	} {
		fmt.Println("\n$ kubectl", strings.Join(args, " "))
		if err := s.print(ctx, args...); err != nil {
			return err
		}
	}
	return nil
}

func ready(p *corev1.Pod) bool {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

func restarts(p *corev1.Pod) (n int32) {
	for _, c := range p.Status.ContainerStatuses {
		n += c.RestartCount
	}
	return n
}

func get(ctx context.Context, url string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	page, err := io.ReadAll(io.LimitReader(resp.Body, 4<<10))
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s", resp.Status)
	}
	return string(page), err
}
