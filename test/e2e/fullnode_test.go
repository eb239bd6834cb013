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

// fullNodeTimeout is the timeout for maxPods pods on two CPUs that other tests use too.
const fullNodeTimeout = 12 * time.Minute

// TestFullNode starts maxPods pods at the same time, with different probes. All pods become and stay ready
// without a restart, one more pod waits, and all pods terminate. With BERTH_TORTURE, maxPods has the default
// of 110, and the probes run every second.
func TestFullNode(t *testing.T) {
	maxPods, period, config := 20, 5, map[string]any{"maxPods": 20}
	if os.Getenv("BERTH_TORTURE") != "" {
		maxPods, period, config = 110, 1, nil
	}
	forEachNewNode(t, nodeOptions{CNI: true, Config: config}, func(t *testing.T, s *Namespace) {
		timing := fmt.Sprintf("periodSeconds: %d, timeoutSeconds: 20", period) // the machine may be busy
		probes := []string{
			"httpGet: {path: /healthz, port: 8080}", "tcpSocket: {port: 8080}", "exec: {command: [/bin/testbox, exit]}",
		}
		name := func(i int) string { return fmt.Sprintf("p%03d", i) }
		pod := func(i int) string {
			readiness, liveness, startup, server := probes[i%3], probes[(i+1)%3], probes[(i+2)%3], "serve"
			if i%4 == 3 { // the gRPC server does not serve plain HTTP
				readiness, liveness, startup, server = "grpc: {port: 8080}", probes[1+i/4%2], "grpc: {port: 8080}",
					"grpc 8080"
			}
			return "terminationGracePeriodSeconds: 1\ncontainers:\n" +
				box("c", fmt.Sprintf("startupProbe: {%s, failureThreshold: 600, %s}, readinessProbe: {%s, %s}, "+
					"livenessProbe: {%s, %s}",
					startup, timing, readiness, timing, liveness, timing), server)
		}
		start := time.Now()
		for i := range maxPods {
			s.Pod(name(i), pod(i))
		}
		s.waitPods("ready", maxPods, isReady(corev1.ConditionTrue))
		t.Logf("%d pods were ready after %s", maxPods, time.Since(start).Round(time.Millisecond))

		s.Pod("more", pod(maxPods))
		s.waitExplanation("more", "OutOfpods", fmt.Sprint(maxPods))

		s.watchDuringProbes(4*maxPods, func(p *corev1.Pod) { // two runs of each of the two probes of a pod
			if p.Name != "more" && !isReady(corev1.ConditionTrue)(p) {
				t.Errorf("%s is no longer ready: %s", p.Name, brief(p))
			}
		})
		addresses := map[string]bool{}
		s.waitPods("listed", maxPods, func(p *corev1.Pod) bool {
			if c := status(p, "c"); c.RestartCount != 0 {
				t.Errorf("%s", brief(p))
			}
			addresses[p.Status.PodIP] = true
			return true
		})
		if len(addresses) != maxPods {
			t.Errorf("%d pods have %d different IPs", maxPods, len(addresses))
		}

		// The waiting pod is admitted when another is deleted.
		s.Remove(name(0))
		s.Running("more")
		s.Remove("more")
		deleteStart := time.Now()
		for i := 1; i < maxPods; i++ {
			s.Remove(name(i))
		}
		s.waitPods("deleted", 0, nil)
		t.Logf("all pods were deleted after %s", time.Since(deleteStart).Round(time.Millisecond))
	})
}

// watchDuringProbes calls changed for every change of the test's pods until the given number of
// probes has run.
func (s *Namespace) watchDuringProbes(probes int, changed func(*corev1.Pod)) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), fullNodeTimeout)
	defer cancel()
	watchDone := make(chan struct{})
	go func() {
		defer close(watchDone)
		_ = s.watch(ctx, func(e nodeapi.PodEvent, _ map[string]*corev1.Pod) bool { // until the context ends
			if e.Pod != nil {
				changed(e.Pod)
			}
			return false
		})
	}()
	target := s.metric("prober_probe_total") + float64(probes)
	err := hosts.WaitFor(ctx, "probes", func() (bool, error) { return s.metric("prober_probe_total") >= target, nil })
	if cancel(); err != nil {
		s.t.Error(err)
	}
	<-watchDone
}

// waitPods waits until exactly want pods of the test meet cond. A nil cond matches every pod. The pod
// "more" does not count.
func (s *Namespace) waitPods(what string, want int, cond func(*corev1.Pod) bool) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), fullNodeTimeout)
	defer cancel()
	matching := 0
	err := s.watch(ctx, func(_ nodeapi.PodEvent, pods map[string]*corev1.Pod) bool {
		if pods == nil {
			return false
		}
		matching = 0
		for _, p := range pods {
			if p.Name != "more" && (cond == nil || cond(p)) {
				matching++
			}
		}
		return matching == want
	})
	if err != nil {
		s.t.Fatalf("got %d pods %[3]s, want %[2]d: %[4]v", matching, want, what, err)
	}
}
