package explain

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"berth/agent"
	"berth/agent/plan"
	"berth/agent/source"
	"berth/nodeapi"
)

// Here is what a manifest meets on this node.
type Here struct {
	Limits  plan.Limits
	Find    func(namespace, name string) (*agent.Snapshot, bool)                                // the pod of that name
	Objects func(pod *corev1.Pod, more map[source.ObjectKey]plan.Object) plan.Objects           // that a pod names
	Present func(pod *corev1.Pod, image string, objects plan.Objects) (img plan.Image, ok bool) // for the pod to use
	Refusal func(pod *corev1.Pod) string                                                        // what stage admit would say to a new pod; empty: yes
}

// Manifest says what a judged manifest would mean for this node, without doing it.
func Manifest(wishes *source.Wishes, here Here, now time.Time) (out nodeapi.PlanResult) {
	for _, w := range wishes.Warnings {
		out.Warnings = append(out.Warnings, Warning(w))
	}
	for _, pod := range wishes.Pods {
		out.Pods = append(out.Pods, here.plan(pod, wishes.Objects, now))
	}
	return out
}

func (h Here) plan(pod *corev1.Pod, more map[source.ObjectKey]plan.Object, now time.Time) nodeapi.PodPlan {
	objects := h.Objects(pod, more)
	s := Subject{Pod: pod, Limits: h.Limits, Refs: agent.Versions(objects)}
	var was *corev1.Pod
	if snap, found := h.Find(pod.Namespace, pod.Name); found {
		was = snap.Pod
		if was.UID == pod.UID {
			s.Seen, s.Status, s.Memory = snap.Seen, snap.Status, snap.Memory
		}
	}
	s.Seen.Images = map[string]plan.Image{} // of the manifest, which may name others
	for _, name := range append(images(pod), volumeImages(pod)...) {
		if img, ok := h.Present(pod, name, objects); ok {
			s.Seen.Images[name] = img
		}
	}
	change := Change(was, pod)
	refused := ""
	if change != nodeapi.Keep && change != nodeapi.Update {
		refused = h.Refusal(pod)
	}
	return Plan(s, change, refused, now)
}
