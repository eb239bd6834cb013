package shutdown

import (
	"cmp"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"berth/podspec"
)

// critical is the lowest priority of critical pods.
const critical = 2_000_000_000

// Group is the group of pods from a priority up to that of the next group.
type Group struct {
	Priority    int32
	GracePeriod time.Duration
}

// Groups returns the configured groups in order: byPriority if it is set, or else regular pods and
// critical pods, which get the last part of the total. No groups mean that graceful shutdown is
// disabled.
func Groups(total, forCritical time.Duration, byPriority []Group) []Group {
	out := slices.Clone(byPriority)
	if len(out) == 0 && total > 0 {
		out = []Group{{0, total - forCritical}, {critical, forCritical}}
	}
	slices.SortFunc(out, func(a, b Group) int { return cmp.Compare(a.Priority, b.Priority) })
	return out
}

// TotalGracePeriod returns the maximum duration of all groups.
func TotalGracePeriod(groups []Group) (sum time.Duration) {
	for _, g := range groups {
		sum += g.GracePeriod
	}
	return sum
}

// Step is a group with its pods.
type Step struct {
	Group
	Pods []Pod
}

// Pod is a pod with its grace period.
type Pod struct {
	*corev1.Pod
	GracePeriod time.Duration
}

// Steps assigns pods to groups. Pods with a lower priority than any group are in the first one.
// Groups without pods are omitted.
func Steps(pods []*corev1.Pod, groups []Group) []Step {
	steps := make([]Step, len(groups))
	for i, g := range groups {
		steps[i].Group = g
	}
	for _, pod := range pods {
		at := 0
		for i, g := range groups {
			if podspec.Priority(pod) >= g.Priority {
				at = i
			}
		}
		if len(groups) > 0 {
			steps[at].Pods = append(steps[at].Pods, Pod{pod, min(podspec.GracePeriod(pod), groups[at].GracePeriod)})
		}
	}
	for _, s := range steps {
		slices.SortFunc(s.Pods, func(a, b Pod) int {
			return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
		})
	}
	return slices.DeleteFunc(steps, func(s Step) bool { return len(s.Pods) == 0 })
}
