package crash

import (
	"bytes"
	"context"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"berth/podspec"
)

// incarnation describes one incarnation of a churn pod.
type incarnation struct {
	name  string
	kind  int // 0 to kinds-1
	edit  int // each value results in another pod of the same name
	image string
}

const kinds = 6 // pod kinds: with or without hooks, HTTP or exec liveness probe, handling of SIGTERM

// pod returns the pod of an incarnation. All pods have an HTTP and an exec probe, half of them have hooks.
func (c *churn) pod(in *incarnation) *corev1.Pod {
	steps := []string{"serve", "8080"}
	if in.kind%3 == 2 { // ignores SIGTERM and is killed after its grace period
		steps = append([]string{"ignore-term", ","}, steps...)
	}
	p := c.simple(in.name, steps...)
	m := &p.Spec.Containers[0]
	m.Image = in.image
	if in.edit > 0 {
		m.Env = []corev1.EnvVar{{Name: "EDIT", Value: strconv.Itoa(in.edit)}}
	}
	m.Args[1] = "/witness/" + witnessPrefix(p) + ".main"
	// The thresholds are high: probes must not fail on a busy machine.
	probe := func(period int32, h corev1.ProbeHandler) *corev1.Probe {
		return &corev1.Probe{ProbeHandler: h, PeriodSeconds: period, FailureThreshold: 10, TimeoutSeconds: 20}
	}
	get := probe(1, corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/delay?d=50ms",
		Port: intstr.FromInt32(8080)}})
	run := probe(2, corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"/bin/testbox", "sleep", "100ms",
		",", "print", "fine"}}})
	m.ReadinessProbe, m.LivenessProbe = get, run
	if in.kind/2%2 == 1 {
		m.ReadinessProbe, m.LivenessProbe = run, get
	}
	if in.kind%2 == 0 {
		hook := func(name string) *corev1.LifecycleHandler {
			return &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: []string{
				"/bin/testbox", "append", "/witness/" + witnessPrefix(p) + "." + name, "started", ",", "sleep",
				"50ms"}}}
		}
		m.Lifecycle = &corev1.Lifecycle{PostStart: hook("postStart"), PreStop: hook("preStop")}
		p.Spec.TerminationGracePeriodSeconds = new(int64(hookGrace)) // time for the hook on a busy machine
		if in.kind%3 == 2 {
			p.Spec.TerminationGracePeriodSeconds = new(int64(4))
		}
	}
	podspec.SetDefaults(p)
	return p
}

// hookGrace is a grace period in seconds. It continues while the agent is down.
const hookGrace = 180

// hasHooks reports whether a pod has hooks and a grace period that is long enough for them.
func hasHooks(p *corev1.Pod) bool {
	return p.Spec.Containers[0].Lifecycle != nil && *p.Spec.TerminationGracePeriodSeconds >= hookGrace
}

// witnessPrefix returns the first part of the names of the witness files of an incarnation.
func witnessPrefix(p *corev1.Pod) string {
	for _, e := range p.Spec.Containers[0].Env {
		if e.Name == "EDIT" {
			return p.Name + "." + e.Value
		}
	}
	return p.Name
}

// hangMarker is part of the command of a probe that is always in progress.
const hangMarker = "this-hangs"

// withHangingProbe adds probes to the pod in objects. One of them does not return while the test runs.
func (c *churn) withHangingProbe(objects []any) []any {
	for _, o := range objects {
		p, ok := o.(*corev1.Pod)
		if !ok {
			continue
		}
		run := func(steps ...string) *corev1.Probe {
			return &corev1.Probe{PeriodSeconds: 2, FailureThreshold: 10, TimeoutSeconds: 3600,
				ProbeHandler: corev1.ProbeHandler{
					Exec: &corev1.ExecAction{Command: append([]string{"/bin/testbox"}, steps...)}}}
		}
		p.Spec.Containers[0].ReadinessProbe = run("sleep", "100ms")
		p.Spec.Containers[1].LivenessProbe = run("sleep", "1h", ",", "print", hangMarker)
		podspec.SetDefaults(p)
	}
	return objects
}

// runExecs runs commands in the pods, one at a time, until stop is called. A command that has started
// must complete even if the agent is killed.
func (c *churn) runExecs(pods []string) (stop func()) {
	ctx, cancel := context.WithCancel(c.Context())
	var wg sync.WaitGroup
	completed, survived, failed := 0, 0, 0
	wg.Go(func() {
		ticker := time.NewTicker(20 * time.Millisecond)
		defer ticker.Stop()
		for i := 0; ctx.Err() == nil; i++ {
			<-ticker.C
			if _, err := c.client.Version(ctx); err != nil {
				continue // the agent is down
			}
			output, agentKilled, err := c.execOnce(pods[i%len(pods)])
			switch {
			case err == nil && output == "started\nended\n":
				completed++
				if agentKilled {
					survived++
				}
			case strings.Contains(output, "started"):
				c.Errorf("exec in %s was interrupted: %v: %s", pods[i%len(pods)], err, output)
			default: // the agent was killed before the command started
				failed++
			}
		}
	})
	return func() {
		cancel()
		wg.Wait()
		c.Logf("%d execs completed, %d of them across an agent kill; %d did not start because the agent was down",
			completed, survived, failed)
		if survived == 0 {
			c.Error("no exec was in progress during an agent kill")
		}
	}
}

// execOnce runs a command that takes a second. It returns the output and whether the agent was killed
// meanwhile.
func (c *churn) execOnce(pod string) (output string, agentKilled bool, err error) {
	cmd := c.agent.Command(c.Context(), "exec", pod, "-c", "main", "--", "/bin/testbox", "print", "started", ",",
		"sleep", "1s", ",", "print", "ended")
	out := &firstWrite{onWrite: func() { c.execRunning.Store(true) }}
	cmd.Stdout, cmd.Stderr = out, out
	kills := c.kills.Load()
	defer c.execRunning.Store(false)
	err = cmd.Run()
	return out.output.String(), c.kills.Load() > kills, err
}

// firstWrite buffers output and calls onWrite on each write.
type firstWrite struct {
	output  bytes.Buffer // not embedded: io.Copy would use its ReadFrom and bypass Write
	onWrite func()
}

func (b *firstWrite) Write(p []byte) (int, error) {
	b.onWrite()
	return b.output.Write(p)
}
