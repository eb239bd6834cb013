package e2e

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"berth/nodeapi"
	"berth/test/hosts"
)

// fullBound is how long as many pods may take as a node has, on two CPUs that
// others use too.
const fullBound = 12 * time.Minute

// TestFullNode starts as many pods at once as a node takes, each probed every
// second in another way, from its start on: all run, none is restarted or loses its readiness,
// one more waits its turn, and all end cleanly. With BERTH_TORTURE it is the 110
// of a node's default.
func TestFullNode(t *testing.T) {
	most, config := 40, map[string]any{"maxPods": 40}
	if os.Getenv("BERTH_TORTURE") != "" {
		most, config = 110, nil
	}
	alone(t, nodeOptions{CNI: true, Config: config}, func(t *testing.T, s *Space) {
		const second = "periodSeconds: 1, timeoutSeconds: 20" // it is the machine that is slow, if anything is
		probes := []string{
			"httpGet: {path: /healthz, port: 8080}", "tcpSocket: {port: 8080}", "exec: {command: [/bin/testbox, exit]}",
		}
		name := func(i int) string { return fmt.Sprintf("p%03d", i) }
		pod := func(i int) string {
			ready, alive, start, server := probes[i%3], probes[(i+1)%3], probes[(i+2)%3], "serve"
			if i%4 == 3 { // what speaks gRPC speaks no plain HTTP
				ready, alive, start, server = "grpc: {port: 8080}", probes[1+i/4%2], "grpc: {port: 8080}", "grpc 8080"
			}
			return "terminationGracePeriodSeconds: 1\ncontainers:\n" + box("c", fmt.Sprintf("startupProbe: {%s, failureThreshold: 600, %s}, readinessProbe: {%s, %s}, livenessProbe: {%s, %s}",
				start, second, ready, second, alive, second), server)
		}
		began := time.Now()
		for i := range most {
			s.Pod(name(i), pod(i))
		}
		s.all("ready", most, isReady(corev1.ConditionTrue))
		t.Logf("%d pods were ready after %s", most, time.Since(began).Round(time.Millisecond))

		s.Pod("more", pod(most))
		s.whyHas("more", "OutOfpods", fmt.Sprint(most))

		s.whileProbed(4*most, func(p *corev1.Pod) { // twice by each of its two probes
			if p.Name != "more" && !isReady(corev1.ConditionTrue)(p) {
				t.Errorf("%s is not ready any more: %s", p.Name, brief(p))
			}
		})
		addresses := map[string]bool{}
		s.all("as they were", most, func(p *corev1.Pod) bool {
			if c := status(p, "c"); c.RestartCount != 0 {
				t.Errorf("%s", brief(p))
			}
			addresses[p.Status.PodIP] = true
			return true
		})
		if len(addresses) != most {
			t.Errorf("%d pods have %d addresses", most, len(addresses))
		}

		// The one that waits has its turn when another goes.
		s.Remove(name(0))
		s.Running("more")
		s.Remove("more")
		ended := time.Now()
		for i := 1; i < most; i++ {
			s.Remove(name(i))
		}
		s.all("gone", 0, nil)
		t.Logf("they were gone after %s", time.Since(ended).Round(time.Millisecond))
	})
}

// whileProbed looks at every change of the test's pods until so many more probes
// have been made.
func (s *Space) whileProbed(probes int, changed func(*corev1.Pod)) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), fullBound)
	defer cancel()
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		_ = s.watch(ctx, func(e nodeapi.PodEvent, _ map[string]*corev1.Pod) bool { // until the context ends
			if e.Pod != nil {
				changed(e.Pod)
			}
			return false
		})
	}()
	enough := s.metric("prober_probe_total") + float64(probes)
	err := hosts.WaitFor(ctx, "probes", func() (bool, error) { return s.metric("prober_probe_total") >= enough, nil })
	if cancel(); err != nil {
		s.t.Error(err)
	}
	<-watched
}

// all waits until so many pods of the test are as they should be; none: until
// there is no pod any more. One that is named "more" counts for nothing.
func (s *Space) all(what string, most int, cond func(*corev1.Pod) bool) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), fullBound)
	defer cancel()
	good := 0
	err := s.watch(ctx, func(_ nodeapi.PodEvent, now map[string]*corev1.Pod) bool {
		if now == nil {
			return false
		}
		good = 0
		for _, p := range now {
			if p.Name != "more" && (cond == nil || cond(p)) {
				good++
			}
		}
		return good == most
	})
	if err != nil {
		s.t.Fatalf("%d pods of %d are %s: %v", good, most, what, err)
	}
}
