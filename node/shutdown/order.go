package shutdown

import (
	"cmp"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"berth/podspec"
)

// critical is the priority from which on pods are critical to the cluster.
const critical = 2_000_000_000

// Group are the pods from a priority on, up to the next group's.
type Group struct {
	Priority    int32
	GracePeriod time.Duration
}

// Groups are those of the configuration, in order: byPriority where it is given, or
// else pods without a special priority and critical ones, which have their part of
// the total at its end. None: shutdown is not handled.
func Groups(total, forCritical time.Duration, byPriority []Group) []Group {
	out := slices.Clone(byPriority)
	if len(out) == 0 && total > 0 {
		out = []Group{{0, total - forCritical}, {critical, forCritical}}
	}
	slices.SortFunc(out, func(a, b Group) int { return cmp.Compare(a.Priority, b.Priority) })
	return out
}

// TotalGracePeriod is how long all groups take at most.
func TotalGracePeriod(groups []Group) (sum time.Duration) {
	for _, g := range groups {
		sum += g.GracePeriod
	}
	return sum
}

// Step is a group with those that go in it.
type Step struct {
	Group
	Pods []Pod
}

// Pod is one pod and the time that it has.
type Pod struct {
	*corev1.Pod
	GracePeriod time.Duration
}

// Steps puts pods into their groups. A pod of a lower priority than any group's is in
// the first. Groups without pods take no time.
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
