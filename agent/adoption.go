package agent

import (
	"context"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/agent/checkpoint"
	"berth/agent/ownership"
	"berth/agent/plan"
	"berth/agent/source"
	"berth/podspec"
)

// Adopter finds and adopts pods that the kubelet created.
type Adopter interface {
	// Foreign lists the pods on the host that belong to another program.
	Foreign(ctx context.Context) ([]ownership.Foreign, error)
	// Adopt records durably that pods belong to the agent. After an error it can be repeated.
	Adopt(ctx context.Context, pods []*corev1.Pod, records map[types.UID]ownership.Adoption) error
	// Supports reports whether berth supports a foreign pod. One that it does not support stays foreign.
	Supports(pod *corev1.Pod) bool
	// WithStatus returns the pod with the status that the kubelet has reported, if that is known.
	WithStatus(pod *corev1.Pod) *corev1.Pod
	// State returns which pods were adopted.
	State() ownership.State
	// Forget removes the record of a pod of which nothing is left.
	Forget(uid types.UID)
}

// adoptRetry is the delay after a failed adoption.
const adoptRetry = time.Second

// listForeign lists the pods that may be adopted. Those that no source wants are not changed.
func (a *Agent) listForeign(ctx context.Context) error {
	if a.Adopter == nil {
		return nil
	}
	all, err := a.Adopter.Foreign(ctx)
	a.foreign = map[types.UID]ownership.Foreign{}
	for _, f := range all {
		if f.Adoptable() {
			a.foreign[f.UID] = f
		}
	}
	return err
}

// adoptWanted adopts the foreign pods that a source wants, and returns the changed pods to start or
// update. A foreign pod is not started before its source has synced and the pod is adopted.
func (a *Agent) adoptWanted(ctx context.Context, snap *source.Snapshot, changed []*corev1.Pod) []*corev1.Pod {
	if len(a.foreign) == 0 {
		return changed
	}
	var wanted []*corev1.Pod
	records := map[types.UID]ownership.Adoption{}
	for _, p := range snap.Pods {
		p = a.desired.pods[p.UID] // with ephemeral containers
		if _, foreign := a.foreign[p.UID]; !foreign || a.workers[p.UID] != nil {
			continue
		}
		changed = slices.DeleteFunc(changed, func(c *corev1.Pod) bool { return c.UID == p.UID })
		if !a.Adopter.Supports(p) {
			continue
		}
		wanted = append(wanted, p)
		rec := ownership.NewAdoption(p, time.Now())
		if of := a.sourceUIDs[p.UID]; of != "" {
			rec.SourceUID, rec.Content = of, p.Annotations[source.AnnotationContent]
		}
		records[p.UID] = rec
	}
	if !snap.Ready || len(wanted) == 0 {
		return changed
	}
	pods, err := a.adoptPods(ctx, wanted, records)
	if err != nil {
		a.Log.Warn("pod adoption failed; retrying", "pods", len(wanted), "err", err)
		time.AfterFunc(adoptRetry, func() {
			a.call(ctx, func() {
				if a.applied[snap.Source] == snap {
					a.startAll(a.adoptWanted(ctx, snap, nil))
				}
			})
		})
	}
	return append(changed, pods...)
}

// adoptPods adopts pods that the kubelet created, and reads their state. What the agent would remember
// of them is restored from their status.
func (a *Agent) adoptPods(ctx context.Context, pods []*corev1.Pod,
	records map[types.UID]ownership.Adoption) ([]*corev1.Pod, error) {
	if err := a.Adopter.Adopt(ctx, pods, records); err != nil {
		return nil, err
	}
	listed, err := a.Runtime.Pods(ctx)
	if err != nil {
		return nil, err
	}
	if a.adopted.pods == nil {
		a.adopted.pods, a.adopted.stale = map[types.UID]RuntimePod{}, map[types.UID]bool{}
	}
	a.adopted.listed = time.Now()
	for _, p := range pods {
		found := listed[p.UID]
		rec := checkpoint.Record{Pod: p, BootID: a.BootID, OwnerMarked: true}
		rec.Memory, rec.Verdict = adoptedState(a.Adopter.WithStatus(p), found)
		a.Records[p.UID] = rec
		if len(found.Sandboxes)+len(found.Containers) > 0 {
			a.adopted.pods[p.UID] = found
		}
		delete(a.foreign, p.UID)
		a.Log.Info("pod adopted from the kubelet", "pod", p.Namespace+"/"+p.Name, "podUID", string(p.UID),
			"containers", len(found.Containers))
	}
	return pods, nil
}

// adoptedState returns what the agent would remember of an adopted pod. One with a sandbox was admitted.
func adoptedState(p *corev1.Pod, found RuntimePod) (m plan.Memory, v plan.Verdict) {
	if len(found.Sandboxes) > 0 {
		v = plan.Verdict{State: plan.Admitted}
	}
	return plan.AdoptedMemory(p, found.Sandboxes, found.Containers), v
}

// isAdopted reports whether the pod was adopted.
func (a *Agent) isAdopted(uid types.UID) bool {
	if a.Adopter == nil {
		return false
	}
	_, adopted := a.Adopter.State().Adopted[uid]
	return adopted
}

// startAll starts or updates the workers of pods.
func (a *Agent) startAll(pods []*corev1.Pod) {
	for _, p := range pods {
		a.startOrUpdate(p)
	}
}

// withKubeletUIDs returns a snapshot in which adopted static pods have the identity that the kubelet
// gave them, as long as their files are unchanged. The kubelet derives the UID of a static pod from
// the path and the content of its file. It is read from the sandbox and never computed again.
func (a *Agent) withKubeletUIDs(snap *source.Snapshot) *source.Snapshot {
	if a.Adopter == nil || !slices.ContainsFunc(snap.Pods, podspec.IsStatic) {
		return snap
	}
	state := a.Adopter.State()
	out := *snap
	out.Pods = slices.Clone(snap.Pods)
	mapped := false
	for i, p := range snap.Pods {
		uid, name, content := a.kubeletIdentity(p, state)
		if uid == "" {
			continue
		}
		mapped = true
		a.sourceUIDs[uid] = p.UID
		p = p.DeepCopy()
		p.UID, p.Name = uid, name
		p.Annotations[source.AnnotationHash], p.Annotations[source.AnnotationAdopted] = string(uid), content
		out.Pods[i] = p
	}
	if !mapped {
		return snap
	}
	return &out
}

// kubeletIdentity returns the identity of the adopted or adoptable static pod of a file, and the
// content of the file at the adoption. An empty UID means that there is none.
func (a *Agent) kubeletIdentity(p *corev1.Pod, state ownership.State) (uid types.UID, name, content string) {
	if !podspec.IsStatic(p) {
		return "", "", ""
	}
	for uid, rec := range state.Adopted {
		if rec.SourceUID == p.UID {
			return uid, rec.Name, rec.Content
		}
	}
	node := strings.ToLower(p.Spec.NodeName)
	free := func(uid types.UID) bool { return a.sourceUIDs[uid] == "" || a.sourceUIDs[uid] == p.UID }
	current := ownership.CurrentStaticPod(a.foreign, p.Namespace, p.Name, node, free)
	return current.UID, current.Name, p.Annotations[source.AnnotationContent]
}

// forgetAdoption removes the record of an adopted pod that is gone and no longer desired.
func (a *Agent) forgetAdoption(uid types.UID) {
	if a.Adopter != nil && a.desired.pods[uid] == nil {
		a.Adopter.Forget(uid)
		delete(a.sourceUIDs, uid)
	}
}
