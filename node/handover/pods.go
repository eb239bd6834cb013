package handover

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// Pod is a pod of the node with its running containers.
type Pod struct {
	Name       string            `json:"name"`       // namespace/name
	Containers map[string]string `json:"containers"` // ID by name, of running containers
	// Exited has the IDs of containers that have exited and were not started again, by name.
	Exited   map[string]string `json:"exited,omitempty"`
	Finished bool              `json:"finished,omitempty"`
}

// RunningPods returns the pods that have not finished, sorted by name.
func RunningPods(pods []*corev1.Pod) []Pod {
	return slices.DeleteFunc(AllPods(pods), func(p Pod) bool { return p.Finished })
}

// AllPods returns all pods, sorted by name.
func AllPods(pods []*corev1.Pod) (out []Pod) {
	for _, p := range pods {
		one := Pod{Name: key(p), Containers: map[string]string{}, Exited: map[string]string{},
			Finished: isFinished(p)}
		for _, list := range [][]corev1.ContainerStatus{
			p.Status.InitContainerStatuses, p.Status.ContainerStatuses, p.Status.EphemeralContainerStatuses,
		} {
			for _, c := range list {
				switch {
				case c.State.Running != nil:
					one.Containers[c.Name] = c.ContainerID
				case c.State.Terminated != nil:
					one.Exited[c.Name] = c.State.Terminated.ContainerID
				case c.LastTerminationState.Terminated != nil:
					one.Exited[c.Name] = c.LastTerminationState.Terminated.ContainerID
				}
			}
		}
		out = append(out, one)
	}
	slices.SortFunc(out, func(a, b Pod) int { return cmp.Compare(a.Name, b.Name) })
	return out
}

// Outcome is what became of a pod.
type Outcome struct {
	Pod       string `json:"pod"`
	Result    string `json:"result"`
	Container string `json:"container,omitempty"` // the first one that differs
}

// Results of a hand-over for a pod.
const (
	Adopted  = "adopted"     // all containers that ran before run
	Exited   = "exited"      // a container that ran before has exited, and no other one runs in its place
	Changed  = "changed"     // another container runs in the place of one that ran before, or none
	NotKnown = "not adopted" // the agent does not report the pod
)

// Failed reports whether the pod was not adopted unchanged.
func (o Outcome) Failed() bool { return o.Result != Adopted && o.Result != Exited }

// Compare compares the pods before a hand-over with those that the agent reports.
func Compare(before, after []Pod) (out []Outcome) {
	for _, p := range before {
		i := slices.IndexFunc(after, func(q Pod) bool { return q.Name == p.Name })
		o := Outcome{Pod: p.Name, Result: Adopted}
		if i < 0 {
			o.Result = NotKnown
		} else {
			for _, name := range sortedKeys(p.Containers) {
				id, now := p.Containers[name], after[i].Containers[name]
				if now == "" && id != "" && after[i].Exited[name] == id {
					o.Result, o.Container = Exited, name // such as a Job that completes, or a crash loop
				} else if now != id {
					o.Result, o.Container = Changed, name
					break
				}
			}
		}
		out = append(out, o)
	}
	return out
}

// Failures returns the number of pods that were not adopted unchanged.
func Failures(outcomes []Outcome) (n int) {
	for _, o := range outcomes {
		if o.Failed() {
			n++
		}
	}
	return n
}
