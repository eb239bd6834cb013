package cli

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

func TestPodStatusMatchesKubectl(t *testing.T) {
	const sidecar, plain = true, false
	inits := func(kinds ...bool) []corev1.Container {
		var cs []corev1.Container
		for i, k := range kinds {
			c := corev1.Container{Name: fmt.Sprint("init", i)}
			if k == sidecar {
				c.RestartPolicy = ptr.To(corev1.ContainerRestartPolicyAlways)
			}
			cs = append(cs, c)
		}
		return cs
	}
	st := func(s corev1.ContainerState) corev1.ContainerStatus { return corev1.ContainerStatus{State: s} }
	ready := func(s corev1.ContainerState) corev1.ContainerStatus {
		return corev1.ContainerStatus{State: s, Ready: true, Started: new(true)}
	}
	restarted := func(c corev1.ContainerStatus, n int32) corev1.ContainerStatus {
		c.RestartCount, c.LastTerminationState = n, exited(1, "Error", time.Minute)
		return c
	}
	true_ := func(types ...corev1.PodConditionType) (cs []corev1.PodCondition) {
		for _, c := range types {
			cs = append(cs, corev1.PodCondition{Type: c, Status: corev1.ConditionTrue})
		}
		return cs
	}
	up := running(time.Minute)
	for _, tt := range []struct {
		name       string
		inits      []corev1.Container
		init       []corev1.ContainerStatus
		main       []corev1.ContainerStatus
		phase      corev1.PodPhase
		reason     string
		conditions []corev1.PodCondition
		deleted    bool
		want       string // ready/total status restarts
	}{
		{name: "unknown state: the phase", phase: "Pending", want: "0/2 Pending 0"},
		{
			name: "scheduling gate", phase: "Pending",
			conditions: []corev1.PodCondition{{Type: corev1.PodScheduled, Reason: "SchedulingGated"}},
			want:       "0/2 SchedulingGated 0",
		},
		{name: "rejected pod", phase: "Failed", reason: "OutOfcpu", want: "0/2 OutOfcpu 0"},
		{
			name: "containers being made", phase: "Pending",
			main: []corev1.ContainerStatus{st(waiting("ContainerCreating", "")), st(waiting("ContainerCreating", ""))},
			want: "0/2 ContainerCreating 0",
		},
		{
			name: "all ready", phase: "Running", main: []corev1.ContainerStatus{ready(up), ready(up)},
			want: "2/2 Running 0",
		},
		{
			name: "one not ready", phase: "Running", main: []corev1.ContainerStatus{ready(up), st(up)},
			want: "1/2 Running 0",
		},
		{
			name: "crash loop with restarts", phase: "Running",
			main: []corev1.ContainerStatus{ready(up), restarted(st(waiting("CrashLoopBackOff", "")), 4)},
			want: "1/2 CrashLoopBackOff 4",
		},
		{
			name: "reason of the first container that has one", phase: "Running",
			main: []corev1.ContainerStatus{st(waiting("ErrImagePull", "")), st(waiting("CrashLoopBackOff", ""))},
			want: "0/2 ErrImagePull 0",
		},
		{
			name: "OOM kill", phase: "Failed",
			main: []corev1.ContainerStatus{st(exited(137, "OOMKilled", 0))}, want: "0/2 OOMKilled 0",
		},
		{
			name: "exit without a reason", phase: "Failed",
			main: []corev1.ContainerStatus{st(exited(3, "", 0))}, want: "0/2 ExitCode:3 0",
		},
		{
			name: "signal without a reason", phase: "Failed",
			main: []corev1.ContainerStatus{
				st(corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 137, Signal: 9}}),
			},
			want: "0/2 Signal:9 0",
		},
		{
			name: "completed", phase: "Succeeded",
			main: []corev1.ContainerStatus{st(exited(0, "Completed", 0)), st(exited(0, "Completed", 0))},
			want: "0/2 Completed 0",
		},
		{
			name: "one completed, one running, pod ready", phase: "Running", conditions: true_(corev1.PodReady),
			main: []corev1.ContainerStatus{st(exited(0, "Completed", 0)), ready(up)}, want: "1/2 Running 0",
		},
		{
			name: "one completed, one running, pod not ready", phase: "Running",
			main: []corev1.ContainerStatus{st(exited(0, "Completed", 0)), ready(up)}, want: "1/2 NotReady 0",
		},
		{
			name: "first of two init containers running", inits: inits(plain, plain), phase: "Pending",
			init: []corev1.ContainerStatus{st(up), st(waiting("PodInitializing", ""))},
			main: []corev1.ContainerStatus{st(waiting("PodInitializing", ""))}, want: "0/2 Init:0/2 0",
		},
		{
			name: "second init container waiting", inits: inits(plain, plain), phase: "Pending",
			init: []corev1.ContainerStatus{st(exited(0, "Completed", 0)), st(waiting("PodInitializing", ""))},
			want: "0/2 Init:1/2 0",
		},
		{
			name: "init container in a crash loop", inits: inits(plain), phase: "Pending",
			init: []corev1.ContainerStatus{restarted(st(waiting("CrashLoopBackOff", "")), 2)},
			want: "0/2 Init:CrashLoopBackOff 2",
		},
		{
			name: "failed init container", inits: inits(plain), phase: "Failed",
			init: []corev1.ContainerStatus{st(exited(1, "Error", 0))}, want: "0/2 Init:Error 0",
		},
		{
			name: "failed init container without a reason", inits: inits(plain), phase: "Failed",
			init: []corev1.ContainerStatus{st(exited(4, "", 0))}, want: "0/2 Init:ExitCode:4 0",
		},
		{
			name: "init is over, the mains are being made", inits: inits(plain), phase: "Pending",
			init: []corev1.ContainerStatus{st(exited(0, "Completed", 0))},
			main: []corev1.ContainerStatus{st(waiting("PodInitializing", ""))}, want: "0/2 PodInitializing 0",
		},
		{
			name: "sidecars are counted", inits: inits(sidecar), phase: "Running",
			init: []corev1.ContainerStatus{ready(up)}, main: []corev1.ContainerStatus{ready(up), ready(up)},
			want: "3/3 Running 0",
		},
		{
			name: "sidecar not started", inits: inits(sidecar), phase: "Pending",
			init: []corev1.ContainerStatus{st(up)}, want: "0/3 Init:0/1 0",
		},
		{
			name: "restarting sidecar after the start", inits: inits(sidecar), phase: "Running",
			conditions: true_(corev1.PodInitialized),
			init:       []corev1.ContainerStatus{restarted(st(waiting("CrashLoopBackOff", "")), 2)},
			main:       []corev1.ContainerStatus{restarted(ready(up), 1), ready(up)}, want: "2/3 Running 3",
		},
		{
			name: "restarts of plain init containers are forgotten once they are over", inits: inits(plain),
			phase: "Running", init: []corev1.ContainerStatus{restarted(st(exited(0, "Completed", 0)), 7)},
			main: []corev1.ContainerStatus{ready(up), ready(up)}, want: "2/2 Running 0",
		},
		{
			name: "deleted pod", phase: "Running", main: []corev1.ContainerStatus{ready(up), ready(up)},
			deleted: true, want: "2/2 Terminating 0",
		},
		{
			name: "deleted pod that has terminated", phase: "Succeeded",
			main: []corev1.ContainerStatus{st(exited(0, "Completed", 0))}, deleted: true, want: "0/2 Completed 0",
		},
		{
			name: "deleted pod of a lost node", phase: "Running", reason: "NodeLost", deleted: true,
			want: "0/2 Unknown 0",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := corev1.Pod{Spec: corev1.PodSpec{InitContainers: tt.inits, Containers: make([]corev1.Container, 2)}}
			for i := range tt.init {
				tt.init[i].Name = tt.inits[i].Name
			}
			p.Status = corev1.PodStatus{
				Phase:                 tt.phase,
				Reason:                tt.reason,
				Conditions:            tt.conditions,
				InitContainerStatuses: tt.init,
				ContainerStatuses:     tt.main,
			}
			if tt.deleted {
				p.DeletionTimestamp = new(before(0))
			}
			s := summarize(&p)
			if got := fmt.Sprintf("%d/%d %s %d", s.ready, s.total, s.status, s.restarts); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
			if (s.restarts > 0) != !s.lastRestart.IsZero() {
				t.Errorf("%d restarts, the last at %v", s.restarts, s.lastRestart)
			}
		})
	}
}

func TestShort(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0s", 310 * time.Nanosecond: "310ns", 310 * time.Microsecond: "310µs", 1234 * time.Microsecond: "1.23ms",
		84*time.Millisecond + 400*time.Microsecond: "84ms",
		1243 * time.Millisecond:                    "1.24s", 12340 * time.Millisecond: "12.3s",
		125400 * time.Millisecond: "2m5s",
	} {
		if got := short(d); got != want {
			t.Errorf("short(%d) = %s, want %s", d, got, want)
		}
	}
}
