package plan

import (
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestStatus(t *testing.T) {
	t.Parallel()
	gate := func(p *corev1.Pod) {
		p.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: "example.com/lb"},
			{ConditionType: "example.com/dns"}}
	}
	set := func(status corev1.ConditionStatus, types ...corev1.PodConditionType) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			for _, c := range types {
				p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: c, Status: status})
			}
		}
	}
	two := mains(con("app"), con("b"))
	// app runs, b has not started
	half := func() *driver { return fresh(two).begin().finish().begin().finish().begin().finish() }
	runCases(t, []testCase{
		{"a pod is Pending until every app container has started", half(), "start b#0",
			[]string{"pod    Pending", "app    running", "Ready=False/ContainersNotReady"}},
		{"then it is Running and Ready", up(two), "-", []string{"pod    Running", "Ready=True", "ContainersReady=True",
			"app    running since+0s started ready restarts=0"}},
		{"a pod whose containers all wait for a restart is Running", crashed(1).exit("app", 1), "",
			[]string{"pod    Running"}},
		{"an unchanged condition keeps its transition time", up().after(time.Hour), "-", []string{"Ready=True+0s"}},
		{"… and a changed one has a new time", up(never, two).after(time.Hour).exit("app", 0), "-",
			[]string{"Ready=False/ContainersNotReady+1h0m0s", "PodScheduled=True+0s"}},
		{"transition times on the control server are preserved without Memory",
			fresh(func(p *corev1.Pod) {
				p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionTrue,
					LastTransitionTime: metav1.Time{Time: t0.Add(-time.Hour)}}}
			}), "", []string{"PodScheduled=True+-1h0m0s"}},
		{"restart counts on the control server never decrease",
			fresh(func(p *corev1.Pod) {
				p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "app", ContainerID: "containerd://x",
					RestartCount: 7}}
			}), "", []string{"restarts=7"}},
		{"conditions of other writers are preserved", up(set("Unknown", "example.com/mine")), "-",
			[]string{"example.com/mine=Unknown"}},
		{"the agent's own conditions are not read from the object", up(set("False", corev1.PodScheduled)), "-",
			[]string{"!PodScheduled=False"}},
		{"… nor those of a completed resize", up(set("True", corev1.PodResizePending, corev1.PodResizeInProgress)), "-",
			[]string{"!PodResizePending", "!PodResizeInProgress"}},
		{"a readiness gate without a condition makes the pod unready", up(gate), "-",
			[]string{"ContainersReady=True", "Ready=False/ReadinessGatesNotReady"}},
		{"one true readiness gate and one false",
			up(gate, set("True", "example.com/lb"), set("False", "example.com/dns")),
			"-", []string{"Ready=False/ReadinessGatesNotReady"}},
		{"all readiness gates true", up(gate, set("True", "example.com/lb", "example.com/dns")), "-",
			[]string{" Ready=True"}},
		{"the reason of an exit in the runtime is reported", up(never).exit("app", 137).change("app",
			func(k *Container) { k.Reason = "OOMKilled" }), "", []string{"terminated OOMKilled 137"}},
		{"the previous exit is the last state", crashed(1).exit("app", 5).change("app",
			func(k *Container) { k.FinishedAt = t0.Add(-time.Minute) }), "start app#2",
			[]string{"app    terminated Error 5 restarts=1 last=(terminated Error 1)"}},
	})
}

func TestStatusFields(t *testing.T) {
	t.Parallel()
	w := up(func(p *corev1.Pod) {
		p.Generation = 7
		p.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: "a"}, {ConditionType: "b"}}
		p.Status.Conditions = []corev1.PodCondition{{Type: "b", Status: corev1.ConditionFalse}}
	})
	st := w.decide().Status
	if st.ObservedGeneration != 7 || st.StartTime == nil || !st.StartTime.Time.Equal(t0) ||
		st.QOSClass != corev1.PodQOSBestEffort {
		t.Errorf("generation %d, start %v, class %s", st.ObservedGeneration, st.StartTime, st.QOSClass)
	}
	if st.HostIP != "192.0.2.1" || len(st.HostIPs) != 1 || st.PodIP != "10.0.0.1" || len(st.PodIPs) != 1 {
		t.Errorf("addresses %s %v %s %v", st.HostIP, st.HostIPs, st.PodIP, st.PodIPs)
	}
	if cs := st.ContainerStatuses[0]; cs.ContainerID != "containerd://app-0" || cs.Image != "img" ||
		cs.ImageID != "sha:img" {
		t.Errorf("container %+v", cs)
	}
	for _, c := range st.Conditions {
		switch {
		case c.Type == "b":
		case c.ObservedGeneration != 7:
			t.Errorf("condition %s observed generation %d", c.Type, c.ObservedGeneration)
		}
		want := `corresponding condition of pod readiness gate "a" does not exist., the status of pod readiness gate ` +
			`"b" is not "True", but False`
		if c.Type == corev1.PodReady && c.Message != want {
			t.Errorf("message %q", c.Message)
		}
	}
	unready := fresh(mains(con("x"), con("y")), inits(con("i"))).decide().Status.Conditions
	for _, c := range unready {
		if c.Type == corev1.ContainersReady && c.Message != "containers with unready status: [x y]" {
			t.Errorf("message %q", c.Message)
		}
		if c.Type == corev1.PodInitialized && c.Message != "containers with incomplete status: [i]" {
			t.Errorf("message %q", c.Message)
		}
	}
}

func TestProbes(t *testing.T) {
	t.Parallel()
	probe := &corev1.Probe{}
	short := int64(3)
	probed := mains(con("app", func(c *corev1.Container) {
		c.StartupProbe, c.ReadinessProbe, c.LivenessProbe = probe, probe,
			&corev1.Probe{TerminationGracePeriodSeconds: &short}
	}))
	with := func(w *driver, h Health) *driver {
		return w.input(func(in *Input) { in.Limits.Probing = true; in.Health = map[string]Health{"app-0": h} })
	}
	runCases(t, []testCase{
		{"without probes a running container is started and ready", up(probed), "-",
			[]string{"app    running since+0s started ready", "!probe"}},
		{"at first only the startup probe runs", with(up(probed), Health{}), "-",
			[]string{"probe  app-0 {Startup:true Readiness:false Liveness:false}", "Ready=False/ContainersNotReady",
				"!started"}},
		{"… and after it the others", with(up(probed), Health{Started: true}), "-",
			[]string{"probe  app-0 {Startup:false Readiness:true Liveness:true}", "started restarts", "Ready=False"}},
		{"a readiness probe that has succeeded makes the container ready",
			with(up(probed), Health{Started: true, Ready: true}), "-", []string{"started ready", " Ready=True"}},
		{"a container without a readiness probe is ready when it runs", with(up(), Health{}), "-",
			[]string{"started ready"}},
		{"a failed liveness probe stops the container with the probe's grace period",
			with(up(probed), Health{Started: true, Failed: true, FailedProbe: "liveness"}), "stop app-0 3s",
			[]string{`why    Killing app "Container app failed liveness probe, will be restarted" (Normal)`}},
		{"a failed startup probe stops it with the pod's grace period",
			with(up(probed), Health{Failed: true, FailedProbe: "startup"}), "stop app-0 30s", nil},
		{"under Never the event does not announce a restart",
			with(up(never, probed), Health{Started: true, Failed: true,
				FailedProbe: "liveness"}), "stop app-0 3s", []string{`"Container app failed liveness probe" (Normal)`}},
		{"then it is restarted like after any exit", with(up(probed),
			Health{Started: true, Failed: true, FailedProbe: "liveness"}).begin().finish(), "start app#1", nil},
		{"in a terminating container only the readiness probe runs",
			with(up(probed), Health{Started: true, Ready: true}).deleted(30 * time.Second), "stop app-0 30s",
			[]string{"probe  app-0 {Startup:false Readiness:true Liveness:false}", " Ready=True"}},
		{"the readiness of a sidecar counts for the pod",
			with(up(inits(sidecar("side", func(c *corev1.Container) { c.ReadinessProbe = probe }))), Health{}), "-",
			[]string{" Ready=False/ContainersNotReady"}},
		{"an exited container is not probed", with(up(probed), Health{}).exit("app", 1).begin(), "-",
			[]string{"!probe"}},
	})
}

func TestTerminationMessagesShareLimit(t *testing.T) {
	t.Parallel()
	for n, want := range map[int]int{1: 4096, 3: 4096, 4: 3072, 12: 1024} {
		all := []corev1.Container{con("app")}
		for i := 1; i < n; i++ {
			all = append(all, con(fmt.Sprintf("c%d", i)))
		}
		w := up(never, mains(all...)).exit("app", 1).change("app",
			func(k *Container) { k.Message = strings.Repeat("é", 2048) })
		x := w.decide().Status.ContainerStatuses[0].State.Terminated
		if x == nil || len(x.Message) != want || !utf8.ValidString(x.Message) {
			t.Errorf("%d containers: %+v", n, x)
		}
	}
}
