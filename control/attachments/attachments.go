package attachments

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// MaxWaitForUnmount is how long a volume that no pod uses stays attached to a node that is not ready.
const MaxWaitForUnmount = 6 * time.Minute

// ManagedAnnotation is the annotation of nodes whose agent leaves attaching and detaching to the controller.
const ManagedAnnotation = "volumes.kubernetes.io/controller-managed-attach-detach"

// Reasons of a forced deletion, as in the metric of kube-controller-manager.
const (
	ForcedByTimeout      = "timeout"
	ForcedByOutOfService = "out-of-service"
)

const (
	attachmentPrefix = "csi-"
	volumePrefix     = "kubernetes.io/csi/"
	volumeSeparator  = "^"
)

// Name returns the name of the VolumeAttachment of a volume and a node. Agents compute the same name.
func Name(driver, handle, node string) string {
	sum := sha256.Sum256([]byte(handle + driver + node))
	return attachmentPrefix + hex.EncodeToString(sum[:])
}

// VolumeName returns the name of a volume in volumesAttached and volumesInUse of a Node.
func VolumeName(driver, handle string) corev1.UniqueVolumeName {
	return corev1.UniqueVolumeName(volumePrefix + driver + volumeSeparator + handle)
}

// has reports whether a volume of a Node's status is that of a VolumeAttachment. The VolumeAttachment has no handle,
// and its PersistentVolume may be gone, but its name is a hash of the handle.
func has(a *storagev1.VolumeAttachment, name corev1.UniqueVolumeName) bool {
	handle, ok := strings.CutPrefix(string(name), volumePrefix+a.Spec.Attacher+volumeSeparator)
	return ok && Name(a.Spec.Attacher, handle, a.Spec.NodeName) == a.Name
}

// Managed reports whether a VolumeAttachment is one of the controller: users and tests may create others.
func Managed(a *storagev1.VolumeAttachment) bool {
	sum, ok := strings.CutPrefix(a.Name, attachmentPrefix)
	return ok && len(sum) == hex.EncodedLen(sha256.Size) && a.Spec.Source.PersistentVolumeName != nil
}

// inUse reports whether a node may have mounted a volume.
func inUse(n *corev1.Node, a *storagev1.VolumeAttachment) bool {
	return slices.ContainsFunc(n.Status.VolumesInUse, func(v corev1.UniqueVolumeName) bool { return has(a, v) })
}

// reported reports whether a node may mount a volume.
func reported(n *corev1.Node, a *storagev1.VolumeAttachment) bool {
	return slices.ContainsFunc(n.Status.VolumesAttached, func(v corev1.AttachedVolume) bool { return has(a, v.Name) })
}

// Uses reports whether a pod on a node needs its volumes there: not if it has ended, or is being deleted and no
// container runs. Then volumesInUse of the node protects a volume that is still mounted.
func Uses(pod *corev1.Pod) bool {
	switch {
	case pod.Spec.NodeName == "", pod.Status.Phase == corev1.PodSucceeded, pod.Status.Phase == corev1.PodFailed:
		return false
	case pod.DeletionTimestamp == nil:
		return true
	}
	running := func(s corev1.ContainerStatus) bool { return s.State.Running != nil }
	return slices.ContainsFunc(pod.Status.InitContainerStatuses, running) ||
		slices.ContainsFunc(pod.Status.ContainerStatuses, running) ||
		slices.ContainsFunc(pod.Status.EphemeralContainerStatuses, running)
}

// Attachment is a VolumeAttachment of a volume.
type Attachment struct {
	*storagev1.VolumeAttachment

	Handle  string // of the volume; empty if its PersistentVolume is gone
	Deleted bool   // the controller has deleted it; the object may be older
}

func (a Attachment) deleting() bool { return a.Deleted || a.DeletionTimestamp != nil }

// View is what concerns the attachments of one PersistentVolume.
type View struct {
	Now    time.Time
	Volume *corev1.PersistentVolume // nil if there is none any more
	// Required reports that the driver of the volume attaches volumes.
	Required    bool
	Pods        []*corev1.Pod // that have the volume
	Attachments []Attachment  // managed ones
	Nodes       map[string]*corev1.Node
	// Unused holds since when no pod needs an attachment, by name.
	Unused map[string]time.Time
}

// Deletion is a VolumeAttachment to delete.
type Deletion struct {
	Name   string
	UID    string
	Forced string // why it is deleted although the node may have mounted the volume; empty: it has not
}

// Event is an event about a pod that waits for the volume.
type Event struct {
	Pod     *corev1.Pod
	Message string
}

// Decision holds the next writes for a volume.
type Decision struct {
	Create *storagev1.VolumeAttachment
	Delete []Deletion
	Unused map[string]time.Time
	// Waiting says why pods wait for another node.
	Waiting []Event
	// Wake is when the decision changes with time alone; 0: never.
	Wake time.Duration
}

// Decide returns what is next for a volume.
func Decide(v View) Decision {
	out := Decision{Unused: map[string]time.Time{}}
	users := v.users()
	has := map[string]bool{}
	for _, a := range v.Attachments {
		has[a.Spec.NodeName] = true
		node := v.Nodes[a.Spec.NodeName]
		if len(users[a.Spec.NodeName]) > 0 || a.deleting() || node != nil && !managed(node) {
			continue
		}
		since, known := v.Unused[a.Name]
		if !known {
			since = v.Now
		}
		out.Unused[a.Name] = since
		forced, wait := detachable(node, a.VolumeAttachment, v.Now.Sub(since))
		switch {
		case wait > 0:
			if out.Wake == 0 || wait < out.Wake {
				out.Wake = wait
			}
		case wait == 0 && (node == nil || !reported(node, a.VolumeAttachment)):
			out.Delete = append(out.Delete, Deletion{Name: a.Name, UID: string(a.UID), Forced: forced})
		}
	}
	for _, name := range v.order(users) {
		if has[name] {
			continue
		}
		if len(has) > 0 && v.exclusive() {
			out.Waiting = append(out.Waiting, v.waiting(users, name)...)
			continue
		}
		if out.Create == nil {
			out.Create = v.attachment(name)
		}
		has[name] = true
	}
	return out
}

// detachable reports whether a node does not have a volume mounted that no pod needs for some time, or is given up.
// wait is 0 then. It is negative if only a change of the node can help.
func detachable(n *corev1.Node, a *storagev1.VolumeAttachment, unused time.Duration) (
	forced string, wait time.Duration) {
	switch {
	case n != nil && !inUse(n, a):
		return "", 0
	case n != nil && slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool {
		return t.Key == corev1.TaintNodeOutOfService
	}):
		return ForcedByOutOfService, 0
	case n != nil && ready(n):
		return "", -1
	case unused < MaxWaitForUnmount:
		return "", MaxWaitForUnmount - unused
	}
	return ForcedByTimeout, 0
}

// managed reports whether the agent of a node leaves attaching to the controller.
func managed(n *corev1.Node) bool { return n.Annotations[ManagedAnnotation] == "true" }

func ready(n *corev1.Node) bool {
	return slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

// users returns the pods that need the volume, by node.
func (v *View) users() map[string][]*corev1.Pod {
	out := map[string][]*corev1.Pod{}
	if v.Volume == nil || v.Volume.Spec.CSI == nil || !v.Required {
		return out
	}
	for _, pod := range v.Pods {
		n := v.Nodes[pod.Spec.NodeName]
		if n != nil && managed(n) && Uses(pod) {
			out[n.Name] = append(out[n.Name], pod)
		}
	}
	return out
}

// order returns the nodes that need the volume: the node of the oldest pod first.
func (v *View) order(users map[string][]*corev1.Pod) []string {
	oldest := func(name string) time.Time {
		return slices.MinFunc(users[name], func(a, b *corev1.Pod) int {
			return a.CreationTimestamp.Compare(b.CreationTimestamp.Time)
		}).CreationTimestamp.Time
	}
	return slices.SortedFunc(maps.Keys(users), func(a, b string) int {
		return cmp.Or(oldest(a).Compare(oldest(b)), cmp.Compare(a, b))
	})
}

// exclusive reports whether the volume may be attached to one node only. A volume without access modes may be attached
// to several.
func (v *View) exclusive() bool {
	modes := v.Volume.Spec.AccessModes
	return len(modes) > 0 && !slices.Contains(modes, corev1.ReadWriteMany) &&
		!slices.Contains(modes, corev1.ReadOnlyMany)
}

func (v *View) attachment(node string) *storagev1.VolumeAttachment {
	csi := v.Volume.Spec.CSI
	return &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: Name(csi.Driver, csi.VolumeHandle, node)},
		Spec: storagev1.VolumeAttachmentSpec{Attacher: csi.Driver, NodeName: node,
			Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &v.Volume.Name}},
	}
}

// waiting returns an event for each pod on a node that waits until another node has detached the volume. It does not
// name pods of other namespaces.
func (v *View) waiting(users map[string][]*corev1.Pod, node string) (out []Event) {
	for _, pod := range users[node] {
		var names []string
		others := 0
		for name, list := range users {
			for _, p := range list {
				switch {
				case name == node:
				case p.Namespace == pod.Namespace:
					names = append(names, p.Name)
				default:
					others++
				}
			}
		}
		slices.Sort(names)
		why := "Volume is already exclusively attached to one node, waiting on detach before it can be attached to " +
			"another node"
		switch {
		case len(names) > 0 && others > 0:
			why = fmt.Sprintf("Volume is already used by pod(s) %s and %d pod(s) in different namespaces",
				strings.Join(names, ", "), others)
		case len(names) > 0:
			why = "Volume is already used by pod(s) " + strings.Join(names, ", ")
		case others > 0:
			why = fmt.Sprintf("Volume is already used by %d pod(s) in different namespaces", others)
		}
		out = append(out, Event{pod, fmt.Sprintf("Waiting for detach for volume %q %s", v.Volume.Name, why)})
	}
	return out
}

// Reported returns what volumesAttached of a node must hold: the volumes that are attached to it, but for those that
// are about to be detached. needed reports whether a pod on the node needs the volume of an attachment, and since when
// not. Volumes of other kinds than CSI stay. changed reports whether the list differs from that of the node.
func Reported(now time.Time, n *corev1.Node, list []Attachment,
	needed func(*storagev1.VolumeAttachment) (bool, time.Time)) (out []corev1.AttachedVolume, changed bool) {
	names := map[string]bool{}
	for _, a := range list {
		if a.deleting() {
			continue
		}
		if ok, since := needed(a.VolumeAttachment); !ok {
			if _, wait := detachable(n, a.VolumeAttachment, now.Sub(since)); wait == 0 {
				continue
			}
		} else if !a.Status.Attached {
			continue
		}
		names[a.Name] = true
	}
	kept := map[string]bool{}
	for _, v := range n.Status.VolumesAttached {
		driver, handle, ok := split(v.Name)
		if name := Name(driver, handle, n.Name); !ok || names[name] {
			out = append(out, v)
			kept[name] = true
		} else {
			changed = true
		}
	}
	for _, a := range list {
		if names[a.Name] && !kept[a.Name] && a.Status.Attached && a.Handle != "" {
			out = append(out, corev1.AttachedVolume{Name: VolumeName(a.Spec.Attacher, a.Handle)})
			changed = true
		}
	}
	return out, changed
}

// split returns the driver and the handle of a volume of a Node's status.
func split(name corev1.UniqueVolumeName) (driver, handle string, ok bool) {
	rest, ok := strings.CutPrefix(string(name), volumePrefix)
	if !ok {
		return "", "", false
	}
	return strings.Cut(rest, volumeSeparator)
}
