package explain

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"berth/agent/plan"
	"berth/nodeapi"
	"berth/podspec"
)

// probedSubject is a running pod with the given probe state.
func probedSubject(h plan.Health) PodState {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default", UID: "u1"}}
	get := func(path string) *corev1.Probe {
		return &corev1.Probe{
			ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: path, Port: intstr.FromInt32(80)}},
		}
	}
	p.Spec.Containers = []corev1.Container{
		{Name: "a", Image: "img", StartupProbe: get("/s"), ReadinessProbe: get("/r"), LivenessProbe: get("/l")},
	}
	podspec.SetDefaults(p)
	return PodState{
		Pod: p, LastSync: t0, Limits: limits, Verdict: plan.Verdict{State: plan.Admitted},
		Status: corev1.PodStatus{Phase: corev1.PodRunning},
		Observed: plan.Observed{
			Containers: []plan.Container{{ID: "a-0", Name: "a", State: plan.Running, StartedAt: t0.Add(-time.Minute)}},
		},
		Memory: plan.Memory{Health: map[string]plan.Health{"a-0": h}},
	}
}

func TestWhyReportsFailingProbe(t *testing.T) {
	bad := func(kind plan.ProbeKind) []plan.ProbeState {
		return []plan.ProbeState{{Kind: kind, Consecutive: 3, Failure: "HTTP probe failed with statuscode: 503"}}
	}
	for _, c := range []struct {
		name string
		h    plan.Health
		want string // "": nothing
	}{
		{"no result yet", plan.Health{}, "StartupProbe: startup probe (httpGet http://:80/s) has not succeeded yet"},
		{
			"failing startup probe", plan.Health{Probes: bad(plan.StartupProbe)},
			"StartupProbe: startup probe failing (httpGet http://:80/s): HTTP probe failed with statuscode: 503",
		},
		{
			"failing readiness probe", plan.Health{Started: true, Probes: bad(plan.ReadinessProbe)},
			"ReadinessProbe: readiness probe failing (httpGet http://:80/r): HTTP probe failed with statuscode: 503",
		},
		{"all probes pass", plan.Health{Started: true, Ready: true}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			var got []string
			for _, w := range unhealthy(probedSubject(c.h)) {
				got = append(got, w.Reason+": "+w.Message)
			}
			if strings.Join(got, "\n") != c.want {
				t.Errorf("got  %q\nwant %q", got, c.want)
			}
		})
	}
	without := probedSubject(plan.Health{})
	without.Limits.Probing = false
	if got := unhealthy(without); got != nil {
		t.Errorf("probes of an inactive pod: %+v", got)
	}
}

func TestProbesIncludesInactiveProbes(t *testing.T) {
	yes, no := true, false
	made := func(kind plan.ProbeKind, ok bool, passed *bool) ProbeState {
		return ProbeState{
			ContainerID: "a-0",
			Probed:      plan.ProbeState{Kind: kind, OK: ok, Consecutive: 1},
			Passed:      passed,
			NextRun:     t0.Add(time.Second),
		}
	}
	states := func(s PodState, made ...ProbeState) string {
		var out []string
		for _, p := range Probes(s, made, t0).Probes {
			out = append(out, p.Kind+" "+string(p.State)+" "+p.WaitingFor)
		}
		return strings.Join(out, ", ")
	}
	gone := probedSubject(plan.Health{})
	gone.Observed.Containers = nil
	for _, c := range []struct{ name, got, want string }{
		{
			"no container", states(gone),
			"startup waiting the container to run, readiness waiting the container to run, liveness waiting the " +
				"container to run",
		},
		{
			"while the container starts", states(probedSubject(plan.Health{}), made(plan.StartupProbe, false, nil)),
			"startup pending , readiness waiting the startup probe, liveness waiting the startup probe",
		},
		{"after the container has started", states(
			probedSubject(plan.Health{Started: true}), made(plan.StartupProbe, true, &yes),
			made(plan.ReadinessProbe, false, &no), made(plan.LivenessProbe, true, &yes),
		),
			"startup done , readiness failing , liveness passing "},
		{
			"before the first result", states(probedSubject(plan.Health{Started: true})),
			"startup done , readiness waiting the container to be started, liveness waiting the container " +
				"to be started",
		},
	} {
		if c.got != c.want {
			t.Errorf("%s:\n got  %s\n want %s", c.name, c.got, c.want)
		}
	}
	p := Probes(
		probedSubject(plan.Health{Started: true}), []ProbeState{made(plan.ReadinessProbe, false, &no)}, t0,
	).Probes[1]
	if p.Failures != 1 || p.Successes != 0 || p.PeriodSeconds != 10 || p.Action != "httpGet http://:80/r" ||
		!p.NextRun.Equal(t0.Add(time.Second)) ||
		p.State != nodeapi.ProbeFailing {
		t.Errorf("%+v", p)
	}
}
