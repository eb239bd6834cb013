package controllers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	storagehelpers "k8s.io/component-helpers/storage/volume"
	"k8s.io/utils/ptr"

	"berth/control/attachments"
)

// nodeKeyPrefix is the prefix of the keys of nodes. Volumes have volumeKeyPrefix.
const nodeKeyPrefix = "node/"

// Indexes of VolumeAttachments: by PersistentVolume and by node.
const (
	attachmentVolumeIndex = "volume"
	attachmentNodeIndex   = "node"
)

// attachDetach attaches the volumes of CSI drivers to the nodes of the pods that use them. It has one worker.
type attachDetach struct {
	Config

	ctrl        *controller
	attachments cache.SharedIndexInformer
	drivers     cache.SharedIndexInformer
	volumes     cache.SharedIndexInformer
	claims      cache.SharedIndexInformer
	nodes       written[*corev1.Node]

	// created holds the VolumeAttachments that the informer does not have yet, by name.
	created map[string]*storagev1.VolumeAttachment
	states  map[string]*attachmentState // by name
	// waiting holds the pods with an event about another node, by volume.
	waiting map[string]map[types.UID]bool
}

// attachmentState is what the controller remembers of a VolumeAttachment.
type attachmentState struct {
	deleted    types.UID   // of the object that the controller has deleted
	unused     time.Time   // since when no pod needs it; zero: a pod needs it
	unreported bool        // this process has created it, and its success has no event yet
	failed     metav1.Time // time of the last error with an event
}

func newAttachDetachController(c Config) ([]*controller, error) {
	core, storage := c.Informers.Core().V1(), c.Informers.Storage().V1()
	a := &attachDetach{
		Config: c, attachments: storage.VolumeAttachments().Informer(), drivers: storage.CSIDrivers().Informer(),
		volumes: core.PersistentVolumes().Informer(), claims: core.PersistentVolumeClaims().Informer(),
		nodes:   written[*corev1.Node]{store: core.Nodes().Informer().GetIndexer()},
		created: map[string]*storagev1.VolumeAttachment{}, states: map[string]*attachmentState{},
		waiting: map[string]map[types.UID]bool{},
	}
	a.ctrl = c.newController(a.sync)
	if err := errors.Join(c.indexPodsByClaim(), c.indexPods()); err != nil {
		return nil, err
	}
	for index, of := range map[string]func(*storagev1.VolumeAttachment) string{
		attachmentVolumeIndex: volumeOfAttachment,
		attachmentNodeIndex:   func(a *storagev1.VolumeAttachment) string { return a.Spec.NodeName },
	} {
		if err := addIndex(a.attachments, index, func(obj any) ([]string, error) {
			if o, ok := obj.(*storagev1.VolumeAttachment); ok && attachments.Managed(o) {
				return []string{of(o)}, nil
			}
			return nil, nil
		}); err != nil {
			return nil, err
		}
	}
	for _, watch := range []struct {
		informer cache.SharedIndexInformer
		keys     func(obj any) []string
	}{
		{a.volumes, a.keysOfVolume},
		{a.claims, a.keysOfClaim},
		{core.Pods().Informer(), a.keysOfPod},
		{core.Nodes().Informer(), a.keysOfNode},
		{a.attachments, a.keysOfAttachment},
		{a.drivers, a.keysOfDriver},
	} {
		if err := a.ctrl.watch(watch.informer, watch.keys); err != nil {
			return nil, err
		}
	}
	return []*controller{a.ctrl}, nil
}

func volumeOfAttachment(a *storagev1.VolumeAttachment) string {
	return ptr.Deref(a.Spec.Source.PersistentVolumeName, "")
}

func (a *attachDetach) keysOfVolume(obj any) []string {
	v, ok := obj.(*corev1.PersistentVolume)
	if !ok {
		return nil
	}
	return keysOfCSIVolume(v)
}

// keysOfCSIVolume returns the key of a volume of a CSI driver. v may be nil.
func keysOfCSIVolume(v *corev1.PersistentVolume) []string {
	if v == nil || v.Spec.CSI == nil {
		return nil
	}
	return []string{volumeKeyPrefix + v.Name}
}

func (a *attachDetach) keysOfClaim(obj any) []string {
	claim, ok := obj.(*corev1.PersistentVolumeClaim)
	if !ok {
		return nil
	}
	return keysOfCSIVolume(a.volume(claim.Spec.VolumeName))
}

func (a *attachDetach) keysOfPod(obj any) (out []string) {
	pod, ok := obj.(*corev1.Pod)
	if !ok || pod.Spec.NodeName == "" {
		return nil
	}
	for _, key := range podClaimKeys(pod) {
		if claim, found, err := a.claims.GetIndexer().GetByKey(key); err == nil && found {
			out = append(out, a.keysOfClaim(claim)...)
		}
	}
	return out
}

// keysOfNode returns the keys of a node, of the volumes that are attached to it, and of those of its pods: they wait
// for a node that is registered late or has no attachments.ManagedAnnotation yet.
func (a *attachDetach) keysOfNode(obj any) (out []string) {
	n, ok := obj.(*corev1.Node)
	if !ok {
		return nil
	}
	list := a.list(attachmentNodeIndex, n.Name)
	if len(list) > 0 || len(n.Status.VolumesAttached) > 0 {
		out = append(out, nodeKeyPrefix+n.Name)
	}
	for _, o := range list {
		out = append(out, volumeKeyPrefix+volumeOfAttachment(o))
	}
	for _, pod := range a.podsByIndex(nodeIndex, n.Name) {
		out = append(out, a.keysOfPod(pod)...)
	}
	return out
}

func (a *attachDetach) keysOfAttachment(obj any) []string {
	o, ok := obj.(*storagev1.VolumeAttachment)
	if !ok || !attachments.Managed(o) {
		return nil
	}
	return []string{volumeKeyPrefix + volumeOfAttachment(o), nodeKeyPrefix + o.Spec.NodeName}
}

func (a *attachDetach) keysOfDriver(obj any) (out []string) {
	d, ok := obj.(*storagev1.CSIDriver)
	if !ok {
		return nil
	}
	for _, o := range a.volumes.GetStore().List() {
		if v, ok := o.(*corev1.PersistentVolume); ok && v.Spec.CSI != nil && v.Spec.CSI.Driver == d.Name {
			out = append(out, volumeKeyPrefix+v.Name)
		}
	}
	return out
}

func (a *attachDetach) volume(name string) *corev1.PersistentVolume {
	obj, _, err := a.volumes.GetStore().GetByKey(name)
	if v, ok := obj.(*corev1.PersistentVolume); ok && err == nil {
		return v
	}
	return nil
}

// list returns the VolumeAttachments of the informer.
func (a *attachDetach) list(index, key string) (out []*storagev1.VolumeAttachment) {
	all, err := a.attachments.GetIndexer().ByIndex(index, key)
	if err != nil {
		return nil // the index exists
	}
	for _, obj := range all {
		if o, ok := obj.(*storagev1.VolumeAttachment); ok {
			out = append(out, o)
		}
	}
	return out
}

// current returns the VolumeAttachments of a volume or a node: those of the informer and those that were created after
// its state.
func (a *attachDetach) current(ctx context.Context, index, key string) (out []attachments.Attachment, err error) {
	for _, o := range a.list(index, key) {
		s := a.states[o.Name]
		out = append(out, attachments.Attachment{VolumeAttachment: o, Handle: a.handle(o),
			Deleted: s != nil && s.deleted != "" && s.deleted == o.UID})
	}
	for name, o := range a.created {
		if index == attachmentVolumeIndex && volumeOfAttachment(o) != key ||
			index == attachmentNodeIndex && o.Spec.NodeName != key {
			continue
		}
		if _, found, err := a.attachments.GetIndexer().GetByKey(name); err == nil && found {
			delete(a.created, name)
			continue
		}
		now, err := a.Client.StorageV1().VolumeAttachments().Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			delete(a.created, name)
			continue
		} else if err != nil {
			return nil, fmt.Errorf("get volume attachment %s: %w", name, err)
		}
		out = append(out, attachments.Attachment{VolumeAttachment: now, Handle: a.handle(now)})
	}
	return out, nil
}

// state returns the state of a VolumeAttachment, which is created if there is none.
func (a *attachDetach) state(name string) *attachmentState {
	s := a.states[name]
	if s == nil {
		s = &attachmentState{}
		a.states[name] = s
	}
	return s
}

// removeStates removes the states of VolumeAttachments that do not exist any more.
func (a *attachDetach) removeStates() {
	maps.DeleteFunc(a.states, func(name string, _ *attachmentState) bool {
		_, found, err := a.attachments.GetIndexer().GetByKey(name)
		return err == nil && !found && a.created[name] == nil
	})
}

func (a *attachDetach) handle(o *storagev1.VolumeAttachment) string {
	if v := a.volume(volumeOfAttachment(o)); v != nil && v.Spec.CSI != nil {
		return v.Spec.CSI.VolumeHandle
	}
	return ""
}

// required reports whether a driver attaches volumes. One without a CSIDriver does.
func (a *attachDetach) required(driver string) bool {
	obj, _, err := a.drivers.GetStore().GetByKey(driver)
	d, ok := obj.(*storagev1.CSIDriver)
	return err != nil || !ok || ptr.Deref(d.Spec.AttachRequired, true)
}

// pods returns the pods whose claim is bound to a volume.
func (a *attachDetach) pods(v *corev1.PersistentVolume) []*corev1.Pod {
	ref := v.Spec.ClaimRef
	if ref == nil {
		return nil
	}
	key := ref.Namespace + "/" + ref.Name
	obj, _, err := a.claims.GetIndexer().GetByKey(key)
	claim, ok := obj.(*corev1.PersistentVolumeClaim)
	if err != nil || !ok || claim.UID != ref.UID || claim.Spec.VolumeName != v.Name ||
		!metav1.HasAnnotation(claim.ObjectMeta, storagehelpers.AnnBindCompleted) {
		return nil
	}
	return a.podsByIndex(claimIndex, key)
}

func (a *attachDetach) sync(ctx context.Context, key string) (time.Duration, error) {
	if name, ok := strings.CutPrefix(key, nodeKeyPrefix); ok {
		return 0, a.syncNode(ctx, name)
	}
	return a.syncVolume(ctx, strings.TrimPrefix(key, volumeKeyPrefix))
}

// view returns what concerns the attachments of a volume.
func (a *attachDetach) view(ctx context.Context, name string) (attachments.View, error) {
	list, err := a.current(ctx, attachmentVolumeIndex, name)
	v := attachments.View{Now: time.Now(), Volume: a.volume(name), Attachments: list, Nodes: map[string]*corev1.Node{},
		Unused: map[string]time.Time{}}
	for _, o := range list {
		if s := a.states[o.Name]; s != nil && !s.unused.IsZero() {
			v.Unused[o.Name] = s.unused
		}
	}
	if v.Volume != nil && v.Volume.Spec.CSI != nil {
		v.Required, v.Pods = a.required(v.Volume.Spec.CSI.Driver), a.pods(v.Volume)
	}
	add := func(name string) {
		if n, found := a.nodes.get(name); found {
			v.Nodes[name] = n
		}
	}
	for _, pod := range v.Pods {
		add(pod.Spec.NodeName)
	}
	for _, o := range list {
		add(o.Spec.NodeName)
	}
	return v, err
}

func (a *attachDetach) syncVolume(ctx context.Context, name string) (time.Duration, error) {
	defer a.removeStates()
	v, err := a.view(ctx, name)
	if err != nil {
		return 0, err
	}
	d := attachments.Decide(v)
	for _, o := range v.Attachments {
		since, unused := d.Unused[o.Name]
		if a.state(o.Name).unused = since; unused {
			a.ctrl.queue.Add(nodeKeyPrefix + o.Spec.NodeName) // it may not mount the volume any more
		}
	}
	a.report(v, d)
	for _, del := range d.Delete {
		if err := a.detach(ctx, name, del); err != nil {
			return d.Wake, err
		}
	}
	if d.Create == nil {
		return d.Wake, nil
	}
	out, err := a.Client.StorageV1().VolumeAttachments().Create(ctx, d.Create, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return d.Wake, nil // the informer will have it
	}
	if err != nil {
		for _, pod := range v.Pods {
			if pod.Spec.NodeName == d.Create.Spec.NodeName {
				a.Events.Eventf(pod, corev1.EventTypeWarning, "FailedAttachVolume",
					"AttachVolume.Attach failed for volume %q : %v", name, err)
			}
		}
		return d.Wake, fmt.Errorf("create volume attachment for volume %s: %w", name, err)
	}
	a.created[out.Name] = out
	a.states[out.Name] = &attachmentState{unreported: true}
	a.Log.Info("volume attachment created", "volumeName", name, "node", out.Spec.NodeName)
	a.ctrl.queue.Add(volumeKeyPrefix + name) // for the next node
	return d.Wake, nil
}

func (a *attachDetach) detach(ctx context.Context, volume string, del attachments.Deletion) error {
	uid := types.UID(del.UID)
	err := a.Client.StorageV1().VolumeAttachments().Delete(ctx, del.Name, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &uid}})
	if ignoreNotFound(err) != nil && !apierrors.IsConflict(err) {
		return fmt.Errorf("delete volume attachment %s: %w", del.Name, err)
	}
	a.states[del.Name] = &attachmentState{deleted: uid}
	if del.Forced != "" {
		forcedDetaches.WithLabelValues(del.Forced).Inc()
		a.Log.Warn("volume attachment deleted although the node may use the volume", "volumeName", volume,
			"volumeAttachment", del.Name, "reason", del.Forced)
		return nil
	}
	a.Log.Info("volume attachment deleted", "volumeName", volume, "volumeAttachment", del.Name)
	return nil
}

// report records events about attachments that have succeeded or failed, and about pods that wait for another node.
func (a *attachDetach) report(v attachments.View, d attachments.Decision) {
	for _, o := range v.Attachments {
		name, s := volumeOfAttachment(o.VolumeAttachment), a.state(o.Name)
		message, reason, kind := "", "", corev1.EventTypeNormal
		switch e := o.Status.AttachError; {
		case o.Status.Attached && s.unreported:
			reason = "SuccessfulAttachVolume"
			message = fmt.Sprintf("AttachVolume.Attach succeeded for volume %q ", name)
			s.unreported = false
		case !o.Status.Attached && e != nil && s.failed != e.Time:
			reason, kind = "FailedAttachVolume", corev1.EventTypeWarning
			message = fmt.Sprintf("AttachVolume.Attach failed for volume %q : %s", name, e.Message)
			s.failed = e.Time
		}
		for _, pod := range v.Pods {
			if reason != "" && pod.Spec.NodeName == o.Spec.NodeName && attachments.Uses(pod) {
				a.Events.Event(pod, kind, reason, message)
			}
		}
	}
	if v.Volume == nil {
		return // its pods wait for another reason
	}
	reported, now := a.waiting[v.Volume.Name], map[types.UID]bool{}
	for _, e := range d.Waiting {
		now[e.Pod.UID] = true
		if !reported[e.Pod.UID] {
			a.Events.Event(e.Pod, corev1.EventTypeWarning, "FailedAttachVolume", e.Message)
		}
	}
	if a.waiting[v.Volume.Name] = now; len(now) == 0 {
		delete(a.waiting, v.Volume.Name)
	}
}

// syncNode writes volumesAttached of a node. The resource version makes the write fail if the agent has started to use a
// volume in the meantime.
func (a *attachDetach) syncNode(ctx context.Context, name string) error {
	n, found := a.nodes.get(name)
	if !found {
		return nil
	}
	list, err := a.current(ctx, attachmentNodeIndex, name)
	if err != nil {
		return err
	}
	now := time.Now()
	attached, changed := attachments.Reported(now, n, list, func(o *storagev1.VolumeAttachment) (bool, time.Time) {
		s := a.states[o.Name]
		if s == nil || s.unused.IsZero() {
			return true, time.Time{} // also before the first sync of the volume
		}
		return false, s.unused
	})
	if !changed {
		return nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"resourceVersion": n.ResourceVersion},
		"status": map[string]any{"volumesAttached": attached}})
	if err != nil {
		return fmt.Errorf("node %s: %w", name, err)
	}
	out, err := a.Client.CoreV1().Nodes().Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
	if ignoreNotFound(err) != nil {
		return fmt.Errorf("update volumesAttached of node %s: %w", name, err)
	}
	if err != nil {
		return nil // the node is deleted
	}
	a.nodes.add(out)
	for _, o := range list {
		a.ctrl.queue.Add(volumeKeyPrefix + volumeOfAttachment(o.VolumeAttachment))
	}
	return nil
}
