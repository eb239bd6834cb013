package placements

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"

	"berth/control/scheduler"
)

// ownScheduler is the schedulerName of the pods that berth's scheduler is responsible for.
const ownScheduler = "berth-scheduler"

// gatedPod is a pod with scheduling gates that kube-scheduler is responsible for, and its twin for berth's scheduler.
// The twin never preempts: it must not change the cluster in another way than the pod.
type gatedPod struct {
	pod, twin *corev1.Pod
	number    int
	gates     int // that are left
}

// runScheduler runs berth's scheduler for the pods with its name, until ctx ends.
func runScheduler(ctx context.Context, client kubernetes.Interface) (wait func(), err error) {
	factory := informers.NewSharedInformerFactory(client, 0)
	s, err := scheduler.New(scheduler.Config{Name: ownScheduler, Client: client, Informers: factory,
		Events: &record.FakeRecorder{}, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		return nil, err
	}
	factory.Start(ctx.Done())
	done := make(chan struct{})
	go func() { defer close(done); s.Run(ctx) }()
	return func() { <-done; factory.Shutdown() }, nil
}

// createGated creates a pod with one or two gates and its twin. Half of them are nominated for a node, as by an
// autoscaler.
func (r *runner) createGated(ctx context.Context, s *state, pod *corev1.Pod, number int,
	random *rand.Rand) (err error) {
	g := &gatedPod{number: number, gates: 1 + random.IntN(2)}
	for i := range g.gates {
		pod.Spec.SchedulingGates = append(pod.Spec.SchedulingGates,
			corev1.PodSchedulingGate{Name: fmt.Sprintf("example.com/gate-%d", i)})
	}
	node := ""
	if chance(random, 50) {
		node = pick(random, s.nodes...).Name
	}
	twin := pod.DeepCopy()
	twin.Name, twin.Spec.SchedulerName, twin.Spec.PriorityClassName = pod.Name+"-twin", ownScheduler, neverPreempts
	if g.pod, err = r.createNominated(ctx, pod, node); err != nil {
		return err
	}
	g.twin, err = r.createNominated(ctx, twin, node)
	s.gated = g
	return err
}

func (r *runner) createNominated(ctx context.Context, pod *corev1.Pod, node string) (*corev1.Pod, error) {
	pods := r.client.CoreV1().Pods(pod.Namespace)
	created, err := pods.Create(ctx, pod, metav1.CreateOptions{})
	if err != nil || node == "" {
		return created, err
	}
	created.Status.NominatedNodeName = node
	return pods.UpdateStatus(ctx, created, metav1.UpdateOptions{})
}

// checkGated reports a difference if the pod or its twin has a node or another condition than that of its gates.
func (r *runner) checkGated(ctx context.Context, s *state) (diff string, err error) {
	if s.gated == nil {
		return "", nil
	}
	for _, pod := range []*corev1.Pod{s.gated.pod, s.gated.twin} {
		live, err := r.client.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		if live.Spec.NodeName != "" {
			diff += fmt.Sprintf("%s with gates: bound to %s\n", pod.Name, live.Spec.NodeName)
		}
		if c := scheduled(live); c.Status != corev1.ConditionFalse || c.Reason != corev1.PodReasonSchedulingGated {
			diff += fmt.Sprintf("%s with gates: condition %s %s: %s\n", pod.Name, c.Status, c.Reason, c.Message)
		}
	}
	return diff, nil
}

// scheduled returns the condition PodScheduled of a pod, or an empty one.
func scheduled(pod *corev1.Pod) corev1.PodCondition {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled {
			return c
		}
	}
	return corev1.PodCondition{}
}

// openGate removes one gate of the pod. If it was the last one, it compares the decisions about the pod and its twin.
func (r *runner) openGate(ctx context.Context, s *state) (diff string, err error) {
	if diff, err = r.checkGated(ctx, s); err != nil || diff != "" {
		return diff, err
	}
	g := s.gated
	pod, err := r.removeGate(ctx, g.pod)
	if g.gates--; err != nil || g.gates > 0 {
		if err == nil {
			_, err = r.removeGate(ctx, g.twin)
		}
		return "", err
	}
	r.Gated++
	s.gated = nil
	if diff, err = r.decide(ctx, s, pod, g.number); err != nil || diff != "" {
		return diff, err
	}
	diff, err = r.decideTwin(ctx, s, g.twin)
	return diff, errors.Join(err, r.delete(ctx, g.twin))
}

func (r *runner) removeGate(ctx context.Context, pod *corev1.Pod) (*corev1.Pod, error) {
	return r.client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.JSONPatchType,
		[]byte(`[{"op":"remove","path":"/spec/schedulingGates/0"}]`), metav1.PatchOptions{})
}

// decideTwin removes the last gate of a twin and compares what berth's scheduler does with its placement.
func (r *runner) decideTwin(ctx context.Context, s *state, twin *corev1.Pod) (diff string, err error) {
	if twin, err = r.removeGate(ctx, twin); err != nil {
		return "", err
	}
	var live *corev1.Pod
	if err := until(ctx, func() (bool, error) {
		live, err = r.client.CoreV1().Pods(twin.Namespace).Get(ctx, twin.Name, metav1.GetOptions{})
		return err == nil && (live.Spec.NodeName != "" || scheduled(live).Reason == corev1.PodReasonUnschedulable), err
	}); err != nil {
		return "", fmt.Errorf("wait for berth's scheduler: %w", err)
	}
	c, with := s.placement(), s.related(twin)
	result := c.Schedule(twin, with)
	if result.Node != live.Spec.NodeName {
		return fmt.Sprintf("%s: bound to %q, want %q\n", twin.Name, live.Spec.NodeName, result.Node), nil
	}
	if result.Node != "" {
		return "", nil
	}
	p := c.Preempt(twin, result, s.disruptionBudgets(), with)
	want := result.Message() + " preemption: " + p.Message
	if got := scheduled(live).Message; got != want {
		diff = fmt.Sprintf("%s: message\n- %s\n+ %s\n", twin.Name, want, got)
	}
	if got, want := live.Status.NominatedNodeName, p.Nominated(twin); got != want {
		diff += fmt.Sprintf("%s: nominated for %q, want %q\n", twin.Name, got, want)
	}
	return diff, nil
}
