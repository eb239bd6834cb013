package explain

import (
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/agent/localworkloads"
	"berth/nodeapi"
	"berth/workloads"
	"berth/workloads/daemonset"
)

// WorkloadState is a workload of a manifest file, or a ReplicaSet or Job that belongs to one, with what is known about
// its pods.
type WorkloadState struct {
	localworkloads.View
	Children []localworkloads.View // its ReplicaSets or Jobs
	Pods     []*corev1.Pod         // also those of Children, ordered by name
	// Explanations are those of the pods that the agent runs, by UID.
	Explanations map[types.UID]nodeapi.PodExplanation
	Steps        []localworkloads.Step // predicted
	Node         *corev1.Node          // as DaemonSets see it
	ShuttingDown bool                  // the node shuts down
}

// NewWorkloadState returns the state of a workload without what depends on the agent. It returns false if there is no
// such workload. previews are those of all workloads of files.
func NewWorkloadState(views []localworkloads.View, previews []localworkloads.Preview, kind, namespace, name string,
) (s WorkloadState, found bool) {
	i := slices.IndexFunc(views, func(v localworkloads.View) bool {
		return kindOf(v) == kind && v.Object.GetNamespace() == namespace && v.Object.GetName() == name
	})
	if i < 0 {
		return s, false
	}
	s.View = views[i]
	family := []types.UID{s.Object.GetUID()}
	for _, v := range views {
		if len(v.Object.GetOwnerReferences()) > 0 && v.Object.GetOwnerReferences()[0].UID == family[0] {
			s.Children = append(s.Children, v)
		}
	}
	for _, v := range append([]localworkloads.View{s.View}, s.Children...) {
		for _, o := range v.Children {
			if pod, ok := o.(*corev1.Pod); ok {
				s.Pods = append(s.Pods, pod)
			}
		}
	}
	slices.SortFunc(s.Pods, func(a, b *corev1.Pod) int { return strings.Compare(a.Name, b.Name) })
	for _, p := range previews {
		for _, step := range p.Steps {
			if slices.Contains(step.Owners, family[0]) {
				s.Steps = append(s.Steps, step)
			}
		}
	}
	return s, true
}

func kindOf(v localworkloads.View) string { return v.Object.GetObjectKind().GroupVersionKind().Kind }

// WhyWorkload returns why not all pods of a workload are ready and what happens next.
func WhyWorkload(s WorkloadState, now time.Time) nodeapi.WorkloadExplanation {
	w := nodeapi.WorkloadExplanation{
		Kind: kindOf(s.View), Namespace: s.Object.GetNamespace(), Name: s.Object.GetName(), UID: s.Object.GetUID(),
	}
	w.WaitingFor = append(s.blocked(), s.ofKind()...)
	w.WaitingFor = append(w.WaitingFor, s.backOffs(now)...)
	for _, pod := range s.Pods {
		wait, waits := s.podWait(pod, now)
		if !waits {
			continue
		}
		w.WaitingFor = append(w.WaitingFor, wait)
		if x, known := s.Explanations[pod.UID]; known {
			w.Pods = append(w.Pods, x)
		}
	}
	for _, step := range s.Steps {
		if len(w.Next) == maxSteps {
			break
		}
		w.Next = append(w.Next, nodeapi.Step{Action: stepAction(step), Target: s.podName(step.Pod), After: step.After})
	}
	if cron, ok := s.Object.(*batchv1.CronJob); ok && !s.View.Next.IsZero() && !isTrue(cron.Spec.Suspend) {
		w.Next = append(w.Next, nodeapi.Step{Action: "CreateJob", At: s.View.Next})
	}
	w.Summary = s.summary(w, now)
	return w
}

func stepAction(step localworkloads.Step) string {
	if step.Verb == workloads.Delete {
		return "DeletePod"
	}
	return "CreatePod"
}

// podName is the name that the node uses for a pod.
func (s WorkloadState) podName(pod *corev1.Pod) string {
	if x, known := s.Explanations[pod.UID]; known {
		return x.Name
	}
	return pod.Name
}

// blocked returns why nothing is decided about the workload.
func (s WorkloadState) blocked() (out []nodeapi.WaitReason) {
	unobserved := s.Unobserved
	for _, v := range s.Children {
		unobserved += v.Unobserved
	}
	if s.ShuttingDown {
		out = append(out, nodeapi.WaitReason{
			Reason: "NodeShutdown", Message: "the node shuts down: no pods are created or deleted for workloads",
		})
	}
	if unobserved > 0 {
		out = append(out, nodeapi.WaitReason{Reason: "PodsNotObserved", Message: fmt.Sprintf(
			"the agent has not observed %d pods of its previous run yet", unobserved)})
	}
	if at := s.Object.GetDeletionTimestamp(); at != nil {
		out = append(out, nodeapi.WaitReason{
			Reason: "Terminating", Message: "its file was deleted or defines another workload", Since: at.Time,
		})
	}
	return out
}

// ofKind returns the waits that only one kind of workload has.
func (s WorkloadState) ofKind() []nodeapi.WaitReason {
	one := func(waits bool, reason, format string, args ...any) []nodeapi.WaitReason {
		if !waits {
			return nil
		}
		return []nodeapi.WaitReason{{Reason: reason, Message: fmt.Sprintf(format, args...)}}
	}
	switch w := s.Object.(type) {
	case *appsv1.Deployment:
		n := replicas(w.Spec.Replicas)
		out := one(w.Spec.Paused && w.Status.UpdatedReplicas < n, "DeploymentPaused",
			"the rollout is paused: %d of %d pods have the current template", w.Status.UpdatedReplicas, n)
		return append(out, deploymentProblems(w)...)
	case *appsv1.ReplicaSet:
		return replicaSetProblems(w)
	case *appsv1.StatefulSet:
		old := w.Status.Replicas - w.Status.UpdatedReplicas
		u := w.Spec.UpdateStrategy
		out := one(old > 0 && u.Type == appsv1.OnDeleteStatefulSetStrategyType, "OnDelete", onDeleteText, old)
		if u.RollingUpdate == nil || u.RollingUpdate.Partition == nil {
			return out
		}
		partition := *u.RollingUpdate.Partition
		return append(out, one(old > 0 && partition > 0, "Partition",
			"pods with an ordinal below %d keep an older template", partition)...)
	case *appsv1.DaemonSet:
		run, _ := daemonset.ShouldRun(w, s.Node)
		out := one(!run, "NodeNotSelected",
			"the node selector, the affinity or the tolerations of the pod template exclude this node")
		old := w.Status.CurrentNumberScheduled - w.Status.UpdatedNumberScheduled
		return append(out, one(old > 0 && w.Spec.UpdateStrategy.Type == appsv1.OnDeleteDaemonSetStrategyType,
			"OnDelete", onDeleteText, old)...)
	case *batchv1.Job:
		return one(isTrue(w.Spec.Suspend) && w.Status.CompletionTime == nil, "JobSuspended", "the Job is suspended")
	case *batchv1.CronJob:
		return one(isTrue(w.Spec.Suspend), "CronJobSuspended", "the schedule is suspended")
	}
	return nil
}

const onDeleteText = "%d pods have an older template until they are deleted"

// deploymentProblems returns the conditions that say why a rollout does not progress.
func deploymentProblems(d *appsv1.Deployment) (out []nodeapi.WaitReason) {
	for _, c := range d.Status.Conditions {
		if c.Type == appsv1.DeploymentProgressing && c.Status == corev1.ConditionFalse ||
			c.Type == appsv1.DeploymentReplicaFailure && c.Status == corev1.ConditionTrue {
			out = append(out, nodeapi.WaitReason{
				Reason: c.Reason, Message: c.Message, Since: c.LastTransitionTime.Time,
			})
		}
	}
	return out
}

func replicaSetProblems(set *appsv1.ReplicaSet) (out []nodeapi.WaitReason) {
	for _, c := range set.Status.Conditions {
		if c.Type == appsv1.ReplicaSetReplicaFailure && c.Status == corev1.ConditionTrue {
			out = append(out, nodeapi.WaitReason{
				Reason: c.Reason, Message: c.Message, Since: c.LastTransitionTime.Time,
			})
		}
	}
	return out
}

func isTrue(b *bool) bool { return b != nil && *b }

// replicas is an optional number of replicas, by default 1.
func replicas(n *int32) int32 {
	if n == nil {
		return 1
	}
	return *n
}

// backOffs returns the delays after failed pods.
func (s WorkloadState) backOffs(now time.Time) (out []nodeapi.WaitReason) {
	for _, v := range append([]localworkloads.View{s.View}, s.Children...) {
		if !v.RetryAt.After(now) {
			continue
		}
		out = append(out, nodeapi.WaitReason{
			Reason: "BackOff", Failures: v.Failures, Until: v.RetryAt,
			Message: "a failed pod is replaced after a delay, which ends when the file changes",
		})
	}
	return out
}

// podWait returns what keeps a pod from being available, or of a Job from succeeding.
func (s WorkloadState) podWait(pod *corev1.Pod, now time.Time) (nodeapi.WaitReason, bool) {
	target := "pod " + s.podName(pod)
	x, known := s.Explanations[pod.UID]
	if pod.Status.Phase == corev1.PodSucceeded {
		return nodeapi.WaitReason{}, false
	}
	if pod.DeletionTimestamp == nil && pod.Status.Phase != corev1.PodFailed && workloads.ReadySince(pod) != nil {
		available, at := workloads.Available(pod, s.minReadySeconds(), now)
		return nodeapi.WaitReason{
			Reason: "MinReadySeconds", Target: target, Message: "it is ready, but not yet long enough to be available",
			Since: workloads.ReadySince(pod).Time, Until: at,
		}, !available
	}
	switch {
	case pod.Status.Phase == corev1.PodFailed && pod.DeletionTimestamp == nil:
		_, ofJob := s.Object.(*batchv1.Job)
		if _, ofCronJob := s.Object.(*batchv1.CronJob); ofJob || ofCronJob {
			return nodeapi.WaitReason{}, false // counted by the Job
		}
		return nodeapi.WaitReason{Reason: "PodFailed", Target: target, Message: x.Summary}, true
	case !known:
		return nodeapi.WaitReason{
			Reason: "PodNotStarted", Target: target, Message: "the agent has not started it yet",
		}, true
	case len(x.WaitingFor) > 0:
		wait := x.WaitingFor[0]
		if on := targetText(pod, wait); on != "" {
			target += " " + on
		}
		wait.Target, wait.Details = target, nil
		return wait, true
	case pod.DeletionTimestamp != nil:
		return nodeapi.WaitReason{Reason: "Terminating", Target: target, Message: x.Summary}, true
	case s.ofJob(pod) && pod.Status.Phase == corev1.PodRunning:
		return nodeapi.WaitReason{}, false // it runs, which is all a Job needs
	}
	return nodeapi.WaitReason{Reason: "PodNotReady", Target: target, Message: x.Summary}, true
}

func (s WorkloadState) ofJob(pod *corev1.Pod) bool {
	return len(pod.OwnerReferences) > 0 && pod.OwnerReferences[0].Kind == "Job"
}

func (s WorkloadState) minReadySeconds() int32 {
	switch w := s.Object.(type) {
	case *appsv1.Deployment:
		return w.Spec.MinReadySeconds
	case *appsv1.ReplicaSet:
		return w.Spec.MinReadySeconds
	case *appsv1.StatefulSet:
		return w.Spec.MinReadySeconds
	case *appsv1.DaemonSet:
		return w.Spec.MinReadySeconds
	}
	return 0
}

// summary is one sentence about the workload.
func (s WorkloadState) summary(w nodeapi.WorkloadExplanation, now time.Time) string {
	name := w.Kind + " " + w.Namespace + "/" + w.Name
	state := ""
	switch o := s.Object.(type) {
	case *appsv1.Deployment:
		state = readyText(o.Status.ReadyReplicas, replicas(o.Spec.Replicas))
	case *appsv1.ReplicaSet:
		state = readyText(o.Status.ReadyReplicas, replicas(o.Spec.Replicas))
	case *appsv1.StatefulSet:
		state = readyText(o.Status.ReadyReplicas, replicas(o.Spec.Replicas))
	case *appsv1.DaemonSet:
		state = readyText(o.Status.NumberReady, o.Status.DesiredNumberScheduled)
	case *batchv1.Job:
		for _, c := range o.Status.Conditions {
			if c.Status == corev1.ConditionTrue && (c.Type == batchv1.JobComplete || c.Type == batchv1.JobFailed) {
				return joined(name+" is finished: "+string(c.Type), c.Reason, c.Message)
			}
		}
		state = fmt.Sprintf("%d of %d completions have succeeded, %d pods are active", o.Status.Succeeded,
			replicas(o.Spec.Completions), o.Status.Active)
	case *batchv1.CronJob:
		state = fmt.Sprintf("%d Jobs are active", len(o.Status.Active))
		if !s.View.Next.IsZero() && !isTrue(o.Spec.Suspend) {
			state += fmt.Sprintf(", the next schedule is in %s", rounded(max(s.View.Next.Sub(now), 0)))
		}
	}
	if len(w.WaitingFor) == 0 {
		return name + ": " + state
	}
	x := w.WaitingFor[0]
	text := joined(name+": "+state, joined(x.Target, x.Reason), x.Message)
	if x.Until.After(now) {
		text += fmt.Sprintf(" (for another %s)", rounded(x.Until.Sub(now)))
	}
	return text
}

func readyText(ready, desired int32) string {
	return fmt.Sprintf("%d of %d pods are ready", ready, desired)
}
