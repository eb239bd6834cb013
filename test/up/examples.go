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

// waitExamples waits until the example pods have reached their expected states and returns the address of
// pod web.
func (s *server) waitExamples(ctx context.Context) (ip string, err error) {
	err = hosts.WaitFor(ctx, "the example pods", func() (bool, error) {
		out, err := s.run(ctx, "get", "pods", "-o", "json")
		if err != nil {
			return false, err
		}
		var list corev1.PodList
		if err := json.Unmarshal([]byte(out), &list); err != nil {
			return false, err
		}
		done := 0
		for i := range list.Items {
			p := &list.Items[i]
			switch {
			case p.Name == "web" && ready(p):
				ip = p.Status.PodIP
				if page, err := get(ctx, "http://"+ip); err == nil && strings.Contains(page, "hello") {
					done++
				}
			case p.Name == "once" && p.Status.Phase == corev1.PodSucceeded, p.Name == "crash" && restarts(p) > 0,
				p.Name == "clock-quickstart" && ready(p):
				done++
			}
		}
		return done == 4, nil
	})
	return ip, err
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
