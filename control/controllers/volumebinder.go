package controllers

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/tools/cache"
	storagehelpers "k8s.io/component-helpers/storage/volume"

	"berth/control/volumes"
)

// Prefixes of the keys of the binder: a claim has the key claim/namespace/name, a volume volume/name.
const (
	claimKeyPrefix  = "claim/"
	volumeKeyPrefix = "volume/"
)

// unboundIndex is an index of the claims whose binding is not completed: by class, and by the volume that they name.
const unboundIndex = "unbound"

// maxBindingSteps limits the writes of one sync. A binding takes four.
const maxBindingSteps = 10

// volumeBinder binds PersistentVolumeClaims and PersistentVolumes to each other. It has one worker, because its
// decisions choose from all volumes.
type volumeBinder struct {
	Config

	ctrl           *controller
	claimInformer  cache.SharedIndexInformer
	volumeInformer cache.SharedIndexInformer
	classInformer  cache.SharedIndexInformer
	claims         written[*corev1.PersistentVolumeClaim]
	volumes        written[*corev1.PersistentVolume]
}

func newVolumeBinder(c Config) ([]*controller, error) {
	core := c.Informers.Core().V1()
	b := &volumeBinder{
		Config: c, claimInformer: core.PersistentVolumeClaims().Informer(),
		volumeInformer: core.PersistentVolumes().Informer(),
		classInformer:  c.Informers.Storage().V1().StorageClasses().Informer(),
	}
	b.claims = written[*corev1.PersistentVolumeClaim]{store: b.claimInformer.GetIndexer()}
	b.volumes = written[*corev1.PersistentVolume]{store: b.volumeInformer.GetIndexer()}
	b.ctrl = c.newController(b.sync)
	if err := c.indexPodsByClaim(); err != nil {
		return nil, err
	}
	if err := addIndex(b.claimInformer, unboundIndex, unboundKeys); err != nil {
		return nil, err
	}
	for _, watch := range []struct {
		informer cache.SharedIndexInformer
		keys     func(obj any) []string
	}{
		{b.claimInformer, keysOfClaim},
		{b.volumeInformer, b.keysOfVolume},
		{b.classInformer, b.keysOfClass},
		{core.Pods().Informer(), b.keysOfPod},
	} {
		if err := b.ctrl.watch(watch.informer, watch.keys); err != nil {
			return nil, err
		}
	}
	volumeCollector.follow(b.claimInformer.GetIndexer(), b.volumeInformer.GetIndexer())
	return []*controller{b.ctrl}, nil
}

// unboundKeys returns the keys of a claim in unboundIndex.
func unboundKeys(obj any) ([]string, error) {
	claim, ok := obj.(*corev1.PersistentVolumeClaim)
	if !ok || metav1.HasAnnotation(claim.ObjectMeta, storagehelpers.AnnBindCompleted) {
		return nil, nil
	}
	out := []string{"class/" + storagehelpers.GetPersistentVolumeClaimClass(claim)}
	if !storagehelpers.PersistentVolumeClaimHasClass(claim) {
		out = append(out, "default")
	}
	if claim.Spec.VolumeName != "" {
		out = append(out, volumeKeyPrefix+claim.Spec.VolumeName)
	}
	return out, nil
}

// unbound returns the keys of the unbound claims with one of the keys in unboundIndex.
func (b *volumeBinder) unbound(keys ...string) (out []string) {
	for _, key := range keys {
		list, err := b.claimInformer.GetIndexer().IndexKeys(unboundIndex, key)
		if err != nil {
			continue // the index exists
		}
		for _, claim := range list {
			out = append(out, claimKeyPrefix+claim)
		}
	}
	return out
}

func claimKey(namespace, name string) string { return claimKeyPrefix + namespace + "/" + name }

func keysOfClaim(obj any) (out []string) {
	claim, ok := obj.(*corev1.PersistentVolumeClaim)
	if !ok {
		return nil
	}
	if out = append(out, claimKey(claim.Namespace, claim.Name)); claim.Spec.VolumeName != "" {
		out = append(out, volumeKeyPrefix+claim.Spec.VolumeName)
	}
	return out
}

// keysOfVolume returns the keys of a volume, of its claim and, if it can be bound, of the claims that may get it.
func (b *volumeBinder) keysOfVolume(obj any) []string {
	v, ok := obj.(*corev1.PersistentVolume)
	if !ok {
		return nil
	}
	out := []string{volumeKeyPrefix + v.Name}
	if ref := v.Spec.ClaimRef; ref != nil {
		return append(append(out, claimKey(ref.Namespace, ref.Name)), b.unbound(volumeKeyPrefix+v.Name)...)
	}
	if v.Status.Phase == corev1.VolumeAvailable {
		return append(out, b.unbound("class/"+v.Spec.StorageClassName, volumeKeyPrefix+v.Name)...)
	}
	return append(out, b.unbound(volumeKeyPrefix+v.Name)...)
}

func (b *volumeBinder) keysOfClass(obj any) []string {
	class, ok := obj.(*storagev1.StorageClass)
	if !ok {
		return nil
	}
	return b.unbound("class/"+class.Name, "default")
}

// keysOfPod returns the unbound claims of a pod without a node: their events name the pods that wait.
func (b *volumeBinder) keysOfPod(obj any) (out []string) {
	pod, ok := obj.(*corev1.Pod)
	if !ok || pod.Spec.NodeName != "" {
		return nil
	}
	for _, key := range podClaimKeys(pod) {
		claim, found := b.claims.get(key)
		if found && !metav1.HasAnnotation(claim.ObjectMeta, storagehelpers.AnnBindCompleted) {
			out = append(out, claimKeyPrefix+key)
		}
	}
	return out
}

func (b *volumeBinder) sync(ctx context.Context, key string) (time.Duration, error) {
	if name, ok := strings.CutPrefix(key, volumeKeyPrefix); ok {
		return 0, b.syncVolume(ctx, name)
	}
	return 0, b.syncClaim(ctx, strings.TrimPrefix(key, claimKeyPrefix))
}

func (b *volumeBinder) syncClaim(ctx context.Context, key string) error {
	for range maxBindingSteps {
		claim, found := b.claims.get(key)
		if !found {
			return nil
		}
		step, err := volumes.NextForClaim(claim, b)
		if err != nil {
			return fmt.Errorf("claim %s: %w", key, err)
		}
		if done, err := b.execute(ctx, step); done || err != nil {
			return err
		}
	}
	return fmt.Errorf("claim %s: binding did not end after %d writes", key, maxBindingSteps)
}

func (b *volumeBinder) syncVolume(ctx context.Context, name string) error {
	for range maxBindingSteps {
		v, found := b.volumes.get(name)
		if !found {
			return nil
		}
		claim, err := b.claimOf(ctx, v)
		if err != nil {
			return err
		}
		step, syncClaim := volumes.NextForVolume(v, claim)
		if syncClaim && step.Write == nil {
			b.ctrl.queue.Add(claimKey(claim.Namespace, claim.Name))
		}
		if done, err := b.execute(ctx, step); done || err != nil {
			return err
		}
	}
	return fmt.Errorf("volume %s: binding did not end after %d writes", name, maxBindingSteps)
}

// claimOf returns the claim of the claimRef of a volume, or nil. That there is none is confirmed by the API server:
// otherwise a late watch would release the volume.
func (b *volumeBinder) claimOf(ctx context.Context, v *corev1.PersistentVolume) (*corev1.PersistentVolumeClaim, error) {
	ref := v.Spec.ClaimRef
	if ref == nil {
		return nil, nil
	}
	is := func(claim *corev1.PersistentVolumeClaim) bool { return ref.UID == "" || claim.UID == ref.UID }
	claim, found := b.claims.get(ref.Namespace + "/" + ref.Name)
	if found && is(claim) {
		return claim, nil
	}
	if ref.UID == "" || v.Status.Phase == corev1.VolumeReleased || v.Status.Phase == corev1.VolumeFailed {
		return nil, nil
	}
	claim, err := b.Client.CoreV1().PersistentVolumeClaims(ref.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("get claim %s/%s: %w", ref.Namespace, ref.Name, err)
	case !is(claim):
		return nil, nil
	}
	return claim, nil
}

// execute performs a step. It reports true if there is nothing else to do.
func (b *volumeBinder) execute(ctx context.Context, step volumes.Step) (done bool, err error) {
	if step.Write != nil {
		err := b.write(ctx, step.Write)
		if step.Class {
			measureRetroactiveClass(err)
		}
		if err != nil {
			return false, err
		}
	}
	for _, e := range step.Events {
		b.Events.Event(e.Object, e.Type, e.Reason, e.Message)
	}
	return step.Write == nil, nil
}

func (b *volumeBinder) write(ctx context.Context, w *volumes.Write) error {
	core := b.Client.CoreV1()
	if v := w.Volume; v != nil {
		update := core.PersistentVolumes().Update
		if w.Status {
			update = core.PersistentVolumes().UpdateStatus
		}
		out, err := update(ctx, v, metav1.UpdateOptions{})
		if err != nil {
			return fmt.Errorf("update volume %s: %w", v.Name, err)
		}
		b.volumes.add(out)
		b.Log.Info("volume updated", "volumeName", v.Name, "phase", out.Status.Phase)
		return nil
	}
	client := core.PersistentVolumeClaims(w.Claim.Namespace)
	update := client.Update
	if w.Status {
		update = client.UpdateStatus
	}
	out, err := update(ctx, w.Claim, metav1.UpdateOptions{})
	if err != nil {
		return fmt.Errorf("update claim %s/%s: %w", w.Claim.Namespace, w.Claim.Name, err)
	}
	b.claims.add(out)
	b.Log.Info("claim updated", "claim", out.Namespace+"/"+out.Name, "phase", out.Status.Phase, "volumeName",
		out.Spec.VolumeName)
	return nil
}

// Volume implements volumes.View.
func (b *volumeBinder) Volume(name string) *corev1.PersistentVolume {
	v, _ := b.volumes.get(name)
	return v
}

// Volumes implements volumes.View.
func (b *volumeBinder) Volumes() []*corev1.PersistentVolume { return b.volumes.list() }

// Class implements volumes.View.
func (b *volumeBinder) Class(name string) *storagev1.StorageClass {
	class, err := b.Informers.Storage().V1().StorageClasses().Lister().Get(name)
	if err != nil {
		return nil
	}
	return class
}

// Classes implements volumes.View.
func (b *volumeBinder) Classes() []*storagev1.StorageClass {
	out, err := b.Informers.Storage().V1().StorageClasses().Lister().List(labels.Everything())
	if err != nil {
		return nil // the lister reads from memory and does not fail
	}
	return out
}

// WaitingPods implements volumes.View.
func (b *volumeBinder) WaitingPods(claim *corev1.PersistentVolumeClaim) (out []string) {
	for _, pod := range b.podsByIndex(claimIndex, claim.Namespace+"/"+claim.Name) {
		if pod.Spec.NodeName == "" && !podTerminated(pod) {
			out = append(out, pod.Name)
		}
	}
	slices.Sort(out)
	return out
}
