package csi

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"berth/agent/plan"
	"berth/internal/apiclient"
)

// nodeState is the Node on the API server.
type nodeState struct {
	known      bool
	uid        types.UID
	inUse      []corev1.UniqueVolumeName
	attached   []corev1.UniqueVolumeName
	annotation string // with the IDs of the node in the drivers
	labels     map[string]string
}

// SetNode passes the Node as the server has it.
func (m *Manager) SetNode(n *corev1.Node) {
	s := nodeState{known: true, uid: n.UID, inUse: n.Status.VolumesInUse, annotation: n.Annotations[annNodeID],
		labels: n.Labels}
	for _, a := range n.Status.VolumesAttached {
		s.attached = append(s.attached, a.Name)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if s.uid != m.node.uid || s.annotation != m.node.annotation || !maps.Equal(s.labels, m.node.labels) {
		signal(m.sync)
	}
	if s.uid != m.node.uid || !slices.Equal(s.inUse, m.node.inUse) || !slices.Equal(s.attached, m.node.attached) {
		defer m.broadcast()
	}
	m.node = s
}

// VolumesInUse returns the volumes for the status of the Node: those that a controller must not detach,
// because they are or will be mounted.
func (m *Manager) VolumesInUse() (out []corev1.UniqueVolumeName) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.scanned { // not known yet: as before the restart
		return slices.Clone(m.node.inUse)
	}
	use := map[corev1.UniqueVolumeName]bool{}
	for _, w := range m.wanted {
		if w.attach {
			use[w.key.uniqueName()] = true
		}
	}
	for key := range m.onHost {
		name := key.uniqueName()
		if s, known := m.specs[key.driver]; known && requiresAttach(s.spec) ||
			!known && slices.Contains(m.node.inUse, name) {
			use[name] = true
		}
	}
	return slices.Sorted(maps.Keys(use))
}

// attachInputs is what decides whether a volume is attached.
type attachInputs struct {
	inUse, attached bool // according to the status of the Node
	attachment      *storagev1.VolumeAttachment
	err             error // of reading the attachment
}

// attachDecision is the next step of waiting for an attachment.
type attachDecision struct {
	done    bool
	context map[string]string // of a volume that is attached
	wait    string            // what is missing
	err     error             // the attachment has failed
	refused bool              // err is the error of the driver's controller
}

// decideAttach decides whether a volume is attached. Like upstream, a volume is mounted only after the
// Node lists it in volumesInUse, which protects it from being detached, and in volumesAttached.
func decideAttach(in attachInputs) attachDecision {
	switch a := in.attachment; {
	case !in.inUse:
		return attachDecision{wait: "the Node to list the volume as in use"}
	case a != nil && !a.DeletionTimestamp.IsZero():
		return attachDecision{err: errors.New("volume attachment is being deleted")}
	case a != nil && !a.Status.Attached && a.Status.AttachError != nil:
		return attachDecision{err: errors.New(a.Status.AttachError.Message), refused: true}
	case !in.attached:
		return attachDecision{wait: "the volume to be attached to the node"}
	case in.err != nil && !apierrors.IsNotFound(in.err):
		return attachDecision{err: in.err}
	case a == nil:
		return attachDecision{wait: "the volume to have a VolumeAttachment"}
	case !a.Status.Attached:
		return attachDecision{wait: "the VolumeAttachment to be attached"}
	default:
		return attachDecision{done: true, context: a.Status.AttachmentMetadata}
	}
}

// attachPollInterval is the interval of reading a VolumeAttachment, which nodes cannot watch.
const attachPollInterval = 2 * time.Second

// waitForAttachment waits until a volume is attached to the node.
func (m *Manager) waitForAttachment(ctx context.Context, r request) (map[string]string, error) {
	deadline, cancel := context.WithTimeout(ctx, m.opt.AttachTimeout)
	defer cancel()
	name := attachmentName(r.key, m.opt.NodeName)
	for {
		in, changed := m.attachInputs(ctx, r, name)
		d := decideAttach(in)
		switch {
		case d.done:
			return d.context, nil
		case d.refused:
			return nil, &plan.Error{Reason: "FailedAttachVolume", Operation: "AttachVolume.Attach", Object: r.specName,
				Err: d.err}
		case d.err != nil:
			return nil, r.failed(opAttach, d.err)
		}
		m.waiting(r.podVolume(), fmt.Sprintf("waiting for %s by the controller of CSI driver %s (VolumeAttachment %s)",
			d.wait, r.key.driver, name))
		select {
		case <-changed:
		case <-time.After(attachPollInterval):
		case <-deadline.Done():
			if err := ctx.Err(); err != nil {
				return nil, r.failed(opAttach, err)
			}
			return nil, r.failed(opAttach, fmt.Errorf("timed out waiting for %s (VolumeAttachment %s)", d.wait, name))
		}
	}
}

// attachInputs reads whether a volume is attached. changed is closed when the Node has changed since.
func (m *Manager) attachInputs(ctx context.Context, r request, name string) (in attachInputs, changed <-chan struct{}) {
	m.mu.Lock()
	in.inUse = slices.Contains(m.node.inUse, r.key.uniqueName())
	in.attached = slices.Contains(m.node.attached, r.key.uniqueName())
	changed = m.changed
	m.mu.Unlock()
	if !in.inUse {
		return in, changed
	}
	var a storagev1.VolumeAttachment
	if in.err = m.opt.Client.Get(ctx, apiclient.VolumeAttachments, "", name, &a); in.err == nil {
		in.attachment = &a
	}
	return in, changed
}
