package handover

import (
	"cmp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/version"

	"berth/podspec"
)

// HandbackFacts are what MakeHandback knows about the host.
type HandbackFacts struct {
	Pods           []*corev1.Pod     // as berth reports them
	PodsErr        string            // why they are unknown; empty: Pods is complete
	Before         []Pod             // pods of the node before the takeover
	Checkpoints    map[string]string // of the kubelet, by name in the root directory
	KubeletVersion string            // as the kubelet prints it; empty: unknown
}

// nameAndImageHash is the first release of the kubelet that compares only name and image of a container
// with its annotations. Older ones restart containers whose spec they hash in another way.
var nameAndImageHash = version.MustParseGeneric("1.31.0")

// MakeHandback makes the plan of a handback. It rejects pods that the kubelet would restart, run twice
// or give wrong resources.
func MakeHandback(f HandbackFacts) Plan {
	var rows []Row
	if f.PodsErr != "" {
		rows = append(rows, Row{Subject: "pods of this node", Verdict: Rejected,
			Note: "berth does not report them: " + f.PodsErr})
	}
	allocated, err := parseAllocations(f.Checkpoints[allocatedPods])
	if err != nil {
		rows = append(rows, Row{Subject: allocatedPods, Verdict: Rejected, Note: "unknown format: " + err.Error()})
	}
	resized := map[types.UID]Allocation{}
	old := oldKubelet(f.KubeletVersion)
	if f.KubeletVersion == "" {
		rows = append(rows, Row{Subject: "version of the kubelet", Verdict: Warning,
			Note: "unknown; a kubelet before 1.31 restarts containers that berth has started"})
	}
	for _, p := range f.Pods {
		if isFinished(p) {
			continue
		}
		found := slices.Concat(fileRows(p), deviceRows(p), resizeRows(p, allocated[p.UID]))
		if old {
			found = append(found, f.hashRows(p)...)
		}
		if len(found) == 0 {
			found = []Row{{Subject: "pod", Pod: key(p), Verdict: Supported}}
		}
		rows = append(rows, found...)
		if a := allocated[p.UID]; len(a.changedFields(p)) > 0 {
			resized[p.UID] = a.resized(p)
		}
	}
	slices.SortStableFunc(rows, func(a, b Row) int { return cmp.Compare(order(a.Verdict), order(b.Verdict)) })
	return Plan{Rows: rows, Resized: resized}
}

// fileRows rejects a pod of a file that berth has created. The UID of a static pod is part of its
// sandbox, and the kubelet computes another one than berth.
func fileRows(p *corev1.Pod) []Row {
	adopted := p.Annotations[podspec.AdoptedAnnotation]
	if !podspec.IsStatic(p) || adopted != "" && adopted == p.Annotations[podspec.ContentAnnotation] {
		return nil
	}
	cause := "berth created this static pod"
	if adopted != "" {
		cause = "the file of this static pod was changed since the takeover"
	}
	return []Row{{Subject: "metadata.uid", Pod: key(p), Value: string(p.UID), Verdict: Rejected,
		Note: cause + ": the kubelet would start a second pod under another UID and then stop this one; move the " +
			"file away, wait until the pod is deleted, hand back, and restore the file"}}
}

// deviceRows rejects a pod with devices, which the kubelet would consider free.
func deviceRows(p *corev1.Pod) (rows []Row) {
	for _, list := range containerStatuses(p) {
		for _, c := range list {
			for _, r := range c.AllocatedResourcesStatus {
				rows = append(rows, Row{
					Subject: "status.containerStatuses[" + c.Name + "].allocatedResourcesStatus", Pod: key(p),
					Value: string(r.Name), Verdict: Rejected,
					Note: "allocations of devices are not written to " + deviceManager + "; delete the pod first",
				})
			}
		}
	}
	return rows
}

func containerStatuses(p *corev1.Pod) [][]corev1.ContainerStatus {
	return [][]corev1.ContainerStatus{
		p.Status.InitContainerStatuses, p.Status.ContainerStatuses, p.Status.EphemeralContainerStatuses,
	}
}

// resizeRows rejects a pod that has a resize in progress, or a volume of another size than the kubelet would
// restore. Other amounts than those of the kubelet are converted.
func resizeRows(p *corev1.Pod, kubelet Allocation) (rows []Row) {
	for _, c := range p.Status.Conditions {
		if (c.Type == corev1.PodResizePending || c.Type == corev1.PodResizeInProgress) &&
			c.Status == corev1.ConditionTrue {
			rows = append(rows, Row{Subject: "status.conditions[" + string(c.Type) + "]", Pod: key(p), Value: c.Reason,
				Verdict: Rejected, Note: "the allocated resources differ from the spec; wait for the resize"})
		}
	}
	volumes := kubelet.changedVolumes(p)
	for _, field := range kubelet.changedFields(p) {
		r := Row{Subject: field, Pod: key(p), Verdict: Supported,
			Note: "the pod was resized under berth; the handback writes its resources to " + allocatedPods}
		if slices.Contains(volumes, field) {
			r.Verdict, r.Note = Rejected, "the size was changed under berth, and "+allocatedPods+
				" has the previous one; delete the pod"
		}
		rows = append(rows, r)
	}
	return rows
}

// oldKubelet reports whether a kubelet of this version restarts containers that berth has started.
func oldKubelet(text string) bool {
	v, err := version.ParseGeneric(strings.TrimSpace(strings.TrimPrefix(text, "Kubernetes ")))
	return err == nil && v.LessThan(nameAndImageHash)
}

// hashRows rejects the containers that berth has started.
func (f HandbackFacts) hashRows(p *corev1.Pod) (rows []Row) {
	before := map[string]string{}
	for _, b := range f.Before {
		if b.Name == key(p) {
			before = b.Containers
		}
	}
	for _, list := range containerStatuses(p) {
		for _, c := range list {
			if c.State.Running != nil && before[c.Name] != c.ContainerID {
				rows = append(rows, Row{
					Subject: "status.containerStatuses[" + c.Name + "].containerID", Pod: key(p),
					Value:   f.KubeletVersion,
					Verdict: Rejected,
					Note: "berth started this container, which a kubelet before 1.31 restarts; " +
						"upgrade the kubelet first",
				})
			}
		}
	}
	return rows
}
