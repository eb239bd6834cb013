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

// incarnation says how a pod of the churn is made.
type incarnation struct {
	name  string
	kind  int // below kinds
	edit  int // each makes another pod of the name
	image string
}

const kinds = 6 // of pods: hooks or not, either way to be probed, and how they take TERM

// pod makes it: probed by HTTP and by a command, every other one with hooks.
func (c *churn) pod(in *incarnation) *corev1.Pod {
	steps := []string{"serve", "8080"}
	if in.kind%3 == 2 { // one that takes its time to leave
		steps = append([]string{"ignore-term", ","}, steps...)
	}
	p := c.simple(in.name, steps...)
	m := &p.Spec.Containers[0]
	m.Image = in.image
	if in.edit > 0 {
		m.Env = []corev1.EnvVar{{Name: "EDIT", Value: strconv.Itoa(in.edit)}}
	}
	m.Args[1] = "/witness/" + witnessPrefix(p) + ".main"
	// What the machine is too busy for is none of what is tested.
	probe := func(period int32, h corev1.ProbeHandler) *corev1.Probe {
		return &corev1.Probe{ProbeHandler: h, PeriodSeconds: period, FailureThreshold: 10, TimeoutSeconds: 20}
	}
	get := probe(1, corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/delay?d=50ms", Port: intstr.FromInt32(8080)}})
	run := probe(2, corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"/bin/testbox", "sleep", "100ms", ",", "print", "fine"}}})
	m.ReadinessProbe, m.LivenessProbe = get, run
	if in.kind/2%2 == 1 {
		m.ReadinessProbe, m.LivenessProbe = run, get
	}
	if in.kind%2 == 0 {
		hook := func(name string) *corev1.LifecycleHandler {
			return &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: []string{
				"/bin/testbox", "append", "/witness/" + witnessPrefix(p) + "." + name, "began", ",", "sleep", "50ms"}}}
		}
		m.Lifecycle = &corev1.Lifecycle{PostStart: hook("postStart"), PreStop: hook("preStop")}
		p.Spec.TerminationGracePeriodSeconds = new(int64(hookGrace)) // for a hook to get its turn on a busy machine
		if in.kind%3 == 2 {
			p.Spec.TerminationGracePeriodSeconds = new(int64(4))
		}
	}
	podspec.SetDefaults(p)
	return p
}

// hookGrace is in seconds. It runs on while the agent is dead.
const hookGrace = 180

// hasHooks reports whether a pod has hooks, and time for them.
func hasHooks(p *corev1.Pod) bool {
	return p.Spec.Containers[0].Lifecycle != nil && *p.Spec.TerminationGracePeriodSeconds >= hookGrace
}

// witnessPrefix is the first part of the names of the files in which an incarnation
// of a pod leaves that it ran.
func witnessPrefix(p *corev1.Pod) string {
	for _, e := range p.Spec.Containers[0].Env {
		if e.Name == "EDIT" {
			return p.Name + "." + e.Value
		}
	}
	return p.Name
}

// hangMarker is in the command of a probe that is always under way.
const hangMarker = "this-hangs"

// withHangingProbe gives a pod probes, of which one never answers in the agent's lifetime.
func (c *churn) withHangingProbe(objects []any) []any {
	for _, o := range objects {
		p, ok := o.(*corev1.Pod)
		if !ok {
			continue
		}
		run := func(steps ...string) *corev1.Probe {
			return &corev1.Probe{PeriodSeconds: 2, FailureThreshold: 10, TimeoutSeconds: 3600, ProbeHandler: corev1.ProbeHandler{
				Exec: &corev1.ExecAction{Command: append([]string{"/bin/testbox"}, steps...)}}}
		}
		p.Spec.Containers[0].ReadinessProbe = run("sleep", "100ms")
		p.Spec.Containers[1].LivenessProbe = run("sleep", "1h", ",", "print", hangMarker)
		podspec.SetDefaults(p)
	}
	return objects
}

// runExecs runs a command in a pod, one after the other, until the function that
// it returns is called. One that has started goes on when the agent dies.
func (c *churn) runExecs(pods []string) (stop func()) {
	ctx, cancel := context.WithCancel(c.Context())
	var wg sync.WaitGroup
	whole, survived, refused := 0, 0, 0
	wg.Go(func() {
		again := time.NewTicker(20 * time.Millisecond)
		defer again.Stop()
		for i := 0; ctx.Err() == nil; i++ {
			<-again.C
			if _, err := c.client.Version(ctx); err != nil {
				continue // the agent is dead just now
			}
			said, overKill, err := c.execOnce(pods[i%len(pods)])
			switch {
			case err == nil && said == "began\nended\n":
				whole++
				if overKill {
					survived++
				}
			case strings.Contains(said, "began"):
				c.Errorf("a command in %s was cut off: %v: %s", pods[i%len(pods)], err, said)
			default: // it has died meanwhile
				refused++
			}
		}
	})
	return func() {
		cancel()
		wg.Wait()
		c.Logf("%d commands ran, %d of them over a kill of the agent; %d did not begin because it was dead", whole, survived, refused)
		if survived == 0 {
			c.Error("no command ever was under way when the agent was killed")
		}
	}
}

// execOnce runs one for a second, and reports whether the agent was killed
// meanwhile.
func (c *churn) execOnce(pod string) (said string, overKill bool, err error) {
	cmd := c.agent.Command(c.Context(), "exec", pod, "-c", "main", "--", "/bin/testbox", "print", "began", ",", "sleep", "1s", ",", "print", "ended")
	out := &firstWrite{note: func() { c.under.Store(true) }}
	cmd.Stdout, cmd.Stderr = out, out
	kills := c.kills.Load()
	defer c.under.Store(false)
	err = cmd.Run()
	return out.said.String(), c.kills.Load() > kills, err
}

// firstWrite notes the first that is written.
type firstWrite struct {
	said bytes.Buffer // no part of it: io.Copy would fill it by itself
	note func()
}

func (b *firstWrite) Write(p []byte) (int, error) {
	b.note()
	return b.said.Write(p)
}
