package e2e

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"berth/nodeapi"
	"berth/test/hosts"
)

// whyHas waits until berth why says all parts of a pod, and returns it.
func (s *Space) whyHas(pod string, parts ...string) nodeapi.Why {
	s.t.Helper()
	var w nodeapi.Why
	var text string
	err := hosts.WaitFor(s.t.Context(), fmt.Sprintf("why %s to say %v", pod, parts), func() (bool, error) {
		var err error
		if w, err = s.Client.Why(s.t.Context(), s.ns, pod); err != nil {
			return false, nil //nolint:nilerr // not yet: asked again
		}
		text = w.Summary
		for _, x := range w.Waiting {
			text += fmt.Sprintf("\n%s %s %s", x.For, x.On, x.Message)
			for _, f := range x.Figures {
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
	return w
}

func TestAPodForAnotherNodeFails(t *testing.T) {
	both(t, func(t *testing.T, s *Space) {
		s.Pod("here", "nodeSelector: {zone: a, disk: ssd}\ncontainers:\n"+box("c", "", "sleep"))
		s.Running("here")
		s.Pod("elsewhere", "nodeSelector: {zone: b}\ncontainers:\n"+box("c", "", "sleep"))
		p := s.Phase("elsewhere", corev1.PodFailed)
		if p.Status.Reason != "NodeAffinity" || !strings.HasPrefix(p.Status.Message, "Pod was rejected: ") {
			t.Errorf("%s: %s", p.Status.Reason, p.Status.Message)
		}
		s.contains("why", s.Berth("why", "-n", s.ns, "elsewhere"), "NodeAffinity")
		s.Event("elsewhere", "NodeAffinity: ")
		s.Pod("affine", `
			affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: zone, operator: NotIn, values: [a]}]}]}}}
			containers:
			`+box("c", "", "sleep"))
		if p := s.Phase("affine", corev1.PodFailed); p.Status.Reason != "NodeAffinity" {
			t.Errorf("%s: %s", p.Status.Reason, p.Status.Message)
		}
	})
}

func TestAPodWithoutRoomWaitsAndStartsWhenThereIs(t *testing.T) {
	alone(t, nodeOptions{CNI: true}, func(t *testing.T, s *Space) {
		most := runtime.NumCPU()*1000 - 300
		cpu := func(m int) string { return fmt.Sprintf("resources: {requests: {cpu: %dm}}", m) }
		s.Pod("big", "containers:\n"+box("c", cpu(most), "sleep"))
		s.Running("big")
		s.Pod("more", "containers:\n"+box("c", cpu(900), "sleep"))
		s.whyHas("more", "OutOfcpu", "900", fmt.Sprint(most))
		s.Pod("small", "containers:\n"+box("c", cpu(100), "sleep"))
		s.Running("small")
		p := s.Get("more")
		if p.Status.Phase != corev1.PodPending || len(p.Status.ContainerStatuses) != 1 || p.Status.ContainerStatuses[0].State.Waiting == nil {
			t.Errorf("while it waits: %s", brief(p))
		}
		s.Remove("big")
		s.Running("more")
	})
}
