package status

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"berth/agent/plan"
	"berth/podspec"
)

// Objects returns the objects of all pods, see Snapshot.Object, each changed by annotate.
func (c *Cache) Objects(annotate func(*corev1.Pod) *corev1.Pod) *corev1.PodList {
	list := &corev1.PodList{}
	for _, s := range c.List() {
		list.Items = append(list.Items, *annotate(s.Object()))
	}
	return list
}

// RunningPods returns the pods with a running container or sandbox, with the names and images of
// their running containers.
func (c *Cache) RunningPods() *corev1.PodList {
	list := &corev1.PodList{}
	for _, s := range c.List() {
		pod := corev1.Pod{}
		pod.Namespace, pod.Name, pod.UID = s.Pod.Namespace, s.Pod.Name, s.Pod.UID
		for _, k := range s.Observed.Containers {
			if k.State == plan.Running {
				pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Name: k.Name, Image: k.Image})
			}
		}
		if len(pod.Spec.Containers) > 0 || s.sandboxReady() {
			list.Items = append(list.Items, pod)
		}
	}
	return list
}

func (s *Snapshot) sandboxReady() bool {
	return len(s.Observed.Sandboxes) > 0 && s.Observed.Sandboxes[0].Ready
}

// ImagesInUse returns the images of all pods by name, ID and digest.
func (c *Cache) ImagesInUse() map[string]bool {
	use := map[string]bool{}
	for _, s := range c.List() {
		for _, k := range s.Observed.Containers {
			use[k.Image], use[k.ImageID] = true, true
		}
		for name, img := range s.Observed.Images {
			use[name], use[img.ID], use[img.Ref] = true, true, true
		}
	}
	delete(use, "")
	return use
}

// Counts counts the pods of the node.
type Counts struct {
	Pods         int
	Static       int                     // pods that do not come from an API server
	SandboxReady int                     // pods with a running sandbox
	Phases       map[corev1.PodPhase]int // pods by phase
	Containers   map[string]int          // containers by state
	Desired      map[string]int          // volumes of the pods by volume plugin
	Mounted      map[string]int          // those of Desired that are set up on the host
}

// PodsToKeep returns the desired pods that are running and not terminating.
func (c *Cache) PodsToKeep() (out []*corev1.Pod) {
	for _, s := range c.List() {
		if s.Termination == nil && s.Status.Phase == corev1.PodRunning {
			out = append(out, s.Pod)
		}
	}
	return out
}

// ActivePods returns the pods that are not in a terminal phase.
func (c *Cache) ActivePods() (out []*corev1.Pod) {
	for _, s := range c.List() {
		if s.Status.Phase != corev1.PodSucceeded && s.Status.Phase != corev1.PodFailed {
			out = append(out, s.Pod)
		}
	}
	return out
}

// Count counts the pods.
func (c *Cache) Count() Counts {
	n := Counts{
		Phases: map[corev1.PodPhase]int{}, Containers: map[string]int{},
		Desired: map[string]int{}, Mounted: map[string]int{},
	}
	for _, s := range c.List() {
		n.Pods++
		n.Phases[s.Status.Phase]++
		if podspec.IsStatic(s.Pod) {
			n.Static++
		}
		if s.sandboxReady() {
			n.SandboxReady++
		}
		for i := range s.Pod.Spec.Volumes {
			v := &s.Pod.Spec.Volumes[i]
			n.Desired[podspec.VolumePlugin(v)]++
			if o, is := s.Observed.Volumes[v.Name]; is && !o.Incomplete {
				n.Mounted[podspec.VolumePlugin(v)]++
			}
		}
		for _, k := range s.Observed.Containers {
			n.Containers[k.State.String()]++
		}
	}
	return n
}

// String returns the counts as one line.
func (n Counts) String() string {
	return fmt.Sprintf("%d pods: %d running, %d pending, %d succeeded, %d failed", n.Pods, n.Phases[corev1.PodRunning],
		n.Phases[corev1.PodPending], n.Phases[corev1.PodSucceeded], n.Phases[corev1.PodFailed])
}
