package explain

import (
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"berth/agent/localworkloads"
	"berth/agent/plan"
	"berth/agent/source"
	"berth/nodeapi"
	"berth/workloads"
)

// planWorkload converts the preview of a workload. Admission is asked for each new pod alone, in the place of one of
// the pods deleted before it.
func (h PlanContext) planWorkload(p localworkloads.Preview, manifest map[source.ObjectKey]plan.Object, now time.Time,
) nodeapi.WorkloadPlan {
	o := p.New
	out := nodeapi.WorkloadPlan{
		Kind: o.GetObjectKind().GroupVersionKind().Kind, Namespace: o.GetNamespace(), Name: o.GetName(),
		Change: workloadChange(p), Fields: p.Fields, EndedOverrides: p.Overrides, Limits: rolloutLimits(o),
		Steps: []nodeapi.WorkloadStep{}, Incomplete: !p.Settled, NextSchedule: p.Next,
	}
	var deleted []*corev1.Pod
	round, free := "", 0 // the deletions of a round end after it
	for _, step := range p.Steps {
		if step.After != round {
			round, free = step.After, len(deleted)
		}
		w := nodeapi.WorkloadStep{Action: stepAction(step), Pod: step.Pod.Name, After: step.After}
		if step.Verb == workloads.Delete {
			deleted = append(deleted, step.Pod)
			out.Steps = append(out.Steps, w)
			continue
		}
		var replaced *corev1.Pod
		if free > 0 {
			replaced, deleted, free = deleted[0], deleted[1:], free-1
		}
		w.Rejection = h.Rejection(step.Pod, replaced)
		out.Steps = append(out.Steps, w)
		if out.NewPod == nil {
			out.NewPod = new(h.planNew(step.Pod, manifest, now))
		}
	}
	out.Reasons = workloadReasons(p)
	return out
}

func workloadChange(p localworkloads.Preview) nodeapi.Change {
	switch {
	case p.NameTaken || !p.Changed:
		return nodeapi.Unchanged
	case p.Old == nil:
		return nodeapi.Create
	case p.Replaced():
		return nodeapi.Replace
	}
	return nodeapi.Update
}

// workloadReasons returns why less is done than the file asks for.
func workloadReasons(p localworkloads.Preview) (out []nodeapi.Reason) {
	add := func(code, detail string) { out = append(out, nodeapi.Reason{Code: code, Detail: detail}) }
	if p.NameTaken {
		add("NameTaken", "another workload owns an object with this name")
	}
	if p.Expired {
		add("Finished", "the Job has finished and was deleted after ttlSecondsAfterFinished")
	}
	switch w := p.New.(type) {
	case *appsv1.Deployment:
		if w.Spec.Paused {
			add("DeploymentPaused", "a paused Deployment does not roll out a new template")
		}
	case *appsv1.StatefulSet:
		if w.Spec.UpdateStrategy.Type == appsv1.OnDeleteStatefulSetStrategyType {
			add("OnDelete", "existing pods keep their template until they are deleted")
		}
	case *appsv1.DaemonSet:
		if w.Spec.UpdateStrategy.Type == appsv1.OnDeleteDaemonSetStrategyType {
			add("OnDelete", "existing pods keep their template until they are deleted")
		}
	case *batchv1.Job:
		if isTrue(w.Spec.Suspend) {
			add("JobSuspended", "a suspended Job creates no pods")
		}
	case *batchv1.CronJob:
		if isTrue(w.Spec.Suspend) {
			add("CronJobSuspended", "a suspended CronJob creates no Jobs")
		}
	}
	return out
}

// rolloutLimits returns the limits that the strategy of a workload sets for its pods.
func rolloutLimits(o workloads.Object) (out []nodeapi.Detail) {
	add := func(name string, value any) {
		out = append(out, nodeapi.Detail{Name: name, Value: fmt.Sprint(value)})
	}
	switch w := o.(type) {
	case *appsv1.Deployment:
		n := int(replicas(w.Spec.Replicas))
		add("replicas", n)
		add("strategy", w.Spec.Strategy.Type)
		if u := w.Spec.Strategy.RollingUpdate; u != nil {
			surge, unavailable := scaled(u.MaxSurge, n, true), scaled(u.MaxUnavailable, n, false)
			if surge == 0 && unavailable == 0 {
				unavailable = 1 // as the controller: a rollout could never begin
			}
			add("pods at most", n+surge)
			add("available pods at least", max(n-unavailable, 0))
		}
	case *appsv1.StatefulSet:
		add("replicas", replicas(w.Spec.Replicas))
		add("strategy", w.Spec.UpdateStrategy.Type)
		add("pod management", w.Spec.PodManagementPolicy)
		if u := w.Spec.UpdateStrategy.RollingUpdate; u != nil && u.Partition != nil && *u.Partition > 0 {
			add("partition", *u.Partition)
		}
	case *appsv1.DaemonSet:
		add("strategy", w.Spec.UpdateStrategy.Type)
		if u := w.Spec.UpdateStrategy.RollingUpdate; u != nil { // on one node
			add("pods at most", 1+min(scaled(u.MaxSurge, 1, true), 1))
			add("available pods at least", 1-min(scaled(u.MaxUnavailable, 1, true), 1))
		}
	case *batchv1.Job:
		add("completions", optional(w.Spec.Completions))
		add("parallelism", replicas(w.Spec.Parallelism))
	case *batchv1.CronJob:
		add("schedule", w.Spec.Schedule)
		add("concurrency policy", w.Spec.ConcurrencyPolicy)
		if s := w.Spec.StartingDeadlineSeconds; s != nil {
			add("starting deadline", time.Duration(*s)*time.Second)
		}
	}
	return out
}

func optional(n *int32) string {
	if n == nil {
		return "any"
	}
	return fmt.Sprint(*n)
}

// scaled is a number or percentage of pods. Validation has checked it.
func scaled(v *intstr.IntOrString, of int, up bool) int {
	n, err := intstr.GetScaledValueFromIntOrPercent(intstr.ValueOrDefault(v, intstr.FromInt32(0)), of, up)
	if err != nil {
		return 0
	}
	return n
}
