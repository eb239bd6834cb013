package e2e

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"berth/nodeapi"
	"berth/test/hosts"
)

// waitExplanation waits until the explanation of a pod contains all parts, and returns it.
func (s *Namespace) waitExplanation(pod string, parts ...string) nodeapi.PodExplanation {
	s.t.Helper()
	var explanation nodeapi.PodExplanation
	var text string
	err := hosts.WaitFor(s.t.Context(), fmt.Sprintf("explanation of %s to contain %v", pod, parts),
		func() (bool, error) {
			var err error
			if explanation, err = s.Client.Why(s.t.Context(), s.ns, pod); err != nil {
				return false, nil //nolint:nilerr // retried
			}
			text = explanation.Summary
			for _, x := range explanation.WaitingFor {
				text += fmt.Sprintf("\n%s %s %s", x.Reason, x.Target, x.Message)
				for _, f := range x.Details {
					text += fmt.Sprintf(", %s %s", f.Name, f.Value)
				}
			}
			for _, p := range parts {
				if !strings.Contains(text, p) {
					return false, nil
				}
			}
			return true, nil
		})
	if err != nil {
		s.t.Fatalf("%v: %s", err, text)
	}
	return explanation
}

// waitWhy waits until the output of berth why for a pod contains all parts.
func (s *Namespace) waitWhy(pod string, parts ...string) {
	s.t.Helper()
	out := ""
	err := hosts.WaitFor(s.t.Context(), fmt.Sprintf("berth why %s to print %q", pod, parts), func() (bool, error) {
		out, _ = s.Try("why", "-n", s.ns, pod) // retried until it succeeds
		return !slices.ContainsFunc(parts, func(p string) bool { return !strings.Contains(out, p) }), nil
	})
	if err != nil {
		s.t.Errorf("%v:\n%s", err, out)
	}
}

func TestPodForAnotherNodeFails(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, s *Namespace) {
		s.Pod("here", "nodeSelector: {zone: a, disk: ssd}\ncontainers:\n"+box("c", "", "sleep"))
		s.Running("here")
		s.Pod("elsewhere", "nodeSelector: {zone: b}\ncontainers:\n"+box("c", "", "sleep"))
		p := s.Phase("elsewhere", corev1.PodFailed)
		if p.Status.Reason != "NodeAffinity" || !strings.HasPrefix(p.Status.Message, "Pod was rejected: ") {
			t.Errorf("%s: %s", p.Status.Reason, p.Status.Message)
		}
		s.waitWhy("elsewhere", "NodeAffinity")
		s.Event("elsewhere", "NodeAffinity: ")
		s.Pod("affine", `
			affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution:
			  {nodeSelectorTerms: [{matchExpressions: [{key: zone, operator: NotIn, values: [a]}]}]}}}
			containers:
			`+box("c", "", "sleep"))
		if p := s.Phase("affine", corev1.PodFailed); p.Status.Reason != "NodeAffinity" {
			t.Errorf("%s: %s", p.Status.Reason, p.Status.Message)
		}
	})
}

func TestPodWaitsForResources(t *testing.T) {
	forEachNewNode(t, nodeOptions{CNI: true}, func(t *testing.T, s *Namespace) {
		allocatable := runtime.NumCPU()*1000 - 300
		cpu := func(m int) string { return fmt.Sprintf("resources: {requests: {cpu: %dm}}", m) }
		s.Pod("big", "containers:\n"+box("c", cpu(allocatable), "sleep"))
		s.Running("big")
		s.Pod("more", "containers:\n"+box("c", cpu(900), "sleep"))
		s.waitExplanation("more", "OutOfcpu", "900", fmt.Sprint(allocatable))
		s.Pod("small", "containers:\n"+box("c", cpu(100), "sleep"))
		s.Running("small")
		p := s.Get("more")
		if p.Status.Phase != corev1.PodPending || len(p.Status.ContainerStatuses) != 1 ||
			p.Status.ContainerStatuses[0].State.Waiting == nil {
			t.Errorf("pending pod: %s", brief(p))
		}
		s.Remove("big")
		s.Running("more")
	})
}

// TestCriticalPodPreemptsOthers fills a node with pods of all three QoS classes. A critical pod
// preempts one sufficient pod of a lower QoS class and no other pod.
func TestCriticalPodPreemptsOthers(t *testing.T) {
	forEachNewNode(t, nodeOptions{CNI: true}, func(t *testing.T, s *Namespace) {
		allocatable := runtime.NumCPU() * 1000
		cpu := func(m int) string { return fmt.Sprintf("resources: {requests: {cpu: %dm}}", m) }
		s.Pod("besteffort", "containers:\n"+box("c", "", "sleep"))
		s.Pod("guaranteed", "containers:\n"+box("c", fmt.Sprintf("resources: {limits: {cpu: %dm, memory: 64Mi}}",
			allocatable/2), "sleep"))
		s.Pod("large", "containers:\n"+box("c", cpu(allocatable/4), "sleep"))
		s.Pod("small", "restartPolicy: OnFailure\nterminationGracePeriodSeconds: 7\ncontainers:\n"+
			box("c", cpu(allocatable/8), "sleep"))
		for _, name := range []string{"besteffort", "guaranteed", "large", "small"} {
			s.Running(name)
		}
		s.Pod("plain", "containers:\n"+box("c", cpu(allocatable/5), "sleep"))
		s.waitExplanation("plain", "OutOfcpu")
		s.Pod("system", "priorityClassName: system-node-critical\ncontainers:\n"+box("c", cpu(allocatable/5), "sleep"))
		victim := s.Phase("small", corev1.PodFailed)
		if victim.Status.Reason != "Preempting" ||
			victim.Status.Message != "Preempted in order to admit critical pod" ||
			condition(victim, corev1.DisruptionTarget) != corev1.ConditionTrue {
			t.Errorf("reason %q, message %q: %s", victim.Status.Reason, victim.Status.Message, brief(victim))
		}
		s.Event("small", "Preempting: Preempted in order to admit critical pod "+s.ns+"/system")
		s.Running("system")
		s.Event("system", "Preempting: Preempts "+s.ns+"/small in order to be admitted")
		uids := map[string]string{}
		for _, name := range []string{"besteffort", "guaranteed", "large"} {
			uids[name] = string(s.Running(name).UID)
		}
		if p := s.Get("plain"); p.Status.Phase != corev1.PodPending {
			t.Errorf("a pod without priority took the freed CPU: %s", brief(p))
		}
		// An agent restart changes nothing.
		if err := s.Agent.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
		s.Running("system")
		if p := s.Phase("small", corev1.PodFailed); p.UID != victim.UID || p.Status.Reason != "Preempting" {
			t.Errorf("after a restart: %s", brief(p))
		}
		for name, uid := range uids {
			if p := s.Running(name); string(p.UID) != uid || p.Status.ContainerStatuses[0].RestartCount != 0 {
				t.Errorf("%s was replaced or restarted: %s", name, brief(p))
			}
		}
		// Pods that were admitted before the restart can be preempted too.
		s.Pod("second", "priorityClassName: system-node-critical\ncontainers:\n"+box("c", cpu(allocatable/4), "sleep"))
		if p := s.Phase("large", corev1.PodFailed); p.Status.Reason != "Preempting" || string(p.UID) != uids["large"] {
			t.Errorf("after a restart: %s", brief(p))
		}
		s.Running("second")
		for _, name := range []string{"besteffort", "guaranteed"} {
			if p := s.Running(name); string(p.UID) != uids[name] {
				t.Errorf("%s was replaced or restarted: %s", name, brief(p))
			}
		}
		// An edit that keeps the UID starts the pod again.
		s.Pod("small", "restartPolicy: OnFailure\nterminationGracePeriodSeconds: 7\ncontainers:\n"+
			box("c", cpu(1), "sleep"))
		s.Running("small")
		// No controller recreates the preempted pod. The node admits it again when resources are free.
		s.waitExplanation("large", "OutOfcpu")
		s.Remove("second")
		if p := s.Running("large"); string(p.UID) != uids["large"] || p.Status.Reason != "" {
			t.Errorf("readmitted pod: %s", brief(p))
		}
	})
}
