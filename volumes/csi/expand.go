package csi

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"berth/internal/apiclient"
	"berth/podspec"
)

// The reasons of upstream's events about expansions.
const (
	eventExpanded     = "FileSystemResizeSuccessful"
	eventReadOnly     = "FileSystemResizeFailed"
	eventExpandFailed = "VolumeResizeFailed"
)

// claimReadTimeout limits how long a claim is read while its volume is mounted, which does not require the server.
const claimReadTimeout = 3 * time.Second

// expandAtMount expands a volume that has been published, before its pod starts. The caller holds the lock of the
// volume. A claim that cannot be read is read again by Run.
func (m *Manager) expandAtMount(ctx context.Context, d *driver, r request, caps capabilities) error {
	if r.claim == "" || !caps.has(csipb.NodeServiceCapability_RPC_EXPAND_VOLUME) {
		return nil
	}
	read, cancel := context.WithTimeout(ctx, claimReadTimeout)
	defer cancel()
	m.waiting(r.podVolume(), fmt.Sprintf("waiting for the PersistentVolumeClaim %s", r.claim))
	claim, err := m.claimOf(read, r.pod.Namespace, r.claim)
	if err != nil || claim.Spec.VolumeName != r.specName {
		m.opt.Log.Debug("expansion not checked", "pod", r.pod.Namespace+"/"+r.pod.Name, "volumeName", r.specName,
			"err", err)
		return ctx.Err()
	}
	m.mu.Lock()
	m.expansionOf(r.key).inUse = false // the driver may have waited for the last pod
	m.mu.Unlock()
	err = m.expandVolume(ctx, d, r, caps, claim, nil)
	if status.Code(err) == codes.FailedPrecondition {
		return nil
	}
	return err
}

// expandVolume expands a published volume, if that is due. The caller holds the lock of the volume. pv is nil while
// the volume is mounted: it is read if it is needed.
func (m *Manager) expandVolume(
	ctx context.Context, d *driver, r request, caps capabilities, claim *corev1.PersistentVolumeClaim,
	pv *corev1.PersistentVolume,
) error {
	mounting := pv == nil
	m.mu.Lock()
	e := m.expansionOf(r.key)
	if e.size.IsZero() {
		e.size = claim.Status.Capacity[corev1.ResourceStorage]
	}
	size := e.size
	m.mu.Unlock()
	if !mayExpand(claim, size) {
		return nil
	}
	if mounting {
		pv = &corev1.PersistentVolume{}
		if err := m.opt.Client.Get(ctx, apiclient.PersistentVolumes, "", r.specName, pv); err != nil {
			return fmt.Errorf("get PersistentVolume %s: %w", r.specName, err)
		}
	}
	capacity := pv.Spec.Capacity[corev1.ResourceStorage]
	step := decideExpand(expandInputs{claim: claim, capacity: capacity, node: size, mounting: mounting})
	switch {
	case step == expandNothing:
		return nil
	case r.readOnly:
		if mounting {
			m.opt.OnEvent(r.pod, claim, corev1.EventTypeWarning, eventReadOnly, fmt.Sprintf(
				"%s failed for volume %q requested read-only file system", opExpand, r.specName))
		}
		return nil
	case step == expandClaim:
		if err := m.updateClaim(ctx, claim, expansionStarted); err != nil {
			return err
		}
	}
	if err := m.callExpand(ctx, d, r, caps, capacity, mounting); err != nil {
		return m.reportExpandError(ctx, r, claim, step, err)
	}
	m.mu.Lock()
	m.expansions[r.key] = &expansion{size: capacity, busy: e.busy}
	m.mu.Unlock()
	m.opt.OnEvent(r.pod, claim, corev1.EventTypeNormal, eventExpanded,
		fmt.Sprintf("%s succeeded for volume %q %s", opExpand, r.specName, m.opt.NodeName))
	if step == expandNode {
		return nil
	}
	return m.updateClaim(ctx, claim, func(c *corev1.PersistentVolumeClaim) map[string]any {
		return expansionFinished(c, capacity)
	})
}

// expansionOf returns the state of the expansion of a volume. The caller holds mu.
func (m *Manager) expansionOf(key volumeKey) *expansion {
	e := m.expansions[key]
	if e == nil {
		e = &expansion{}
		m.expansions[key] = e
	}
	return e
}

// callExpand calls NodeExpandVolume.
func (m *Manager) callExpand(
	ctx context.Context, d *driver, r request, caps capabilities, capacity resource.Quantity, mounting bool,
) error {
	in := inputs{caps: caps}
	var err error
	if in.secrets, err = m.secrets(ctx, r.expandSecret); err != nil {
		return fmt.Errorf("fetching NodeExpandSecretRef %s/%s failed: %w", r.expandSecret.Namespace,
			r.expandSecret.Name, err)
	}
	v, staging := podVolume{}, ""
	if mounting {
		v = r.podVolume()
	}
	if caps.stages() {
		staging = m.stagingTarget(r)
	}
	return m.call(ctx, d, v, "NodeExpandVolume", func(ctx context.Context) error {
		_, err := d.client.NodeExpandVolume(ctx, r.expand(in, staging, m.publishTarget(r), capacity.Value()))
		return err
	})
}

// reportExpandError records a failed expansion in the status of the claim, if the error is final, and returns it.
func (m *Manager) reportExpandError(
	ctx context.Context, r request, claim *corev1.PersistentVolumeClaim, step expandStep, err error,
) error {
	now := time.Now()
	m.mu.Lock()
	m.expansionOf(r.key).failed(err, m.opt.ExpandInterval, now)
	m.mu.Unlock()
	if _, called := status.FromError(err); !called || !isFinal(err) || step != expandClaim {
		return err
	}
	updateErr := m.updateClaim(ctx, claim, func(c *corev1.PersistentVolumeClaim) map[string]any {
		return expansionFailed(c, err, isInfeasible(err), now)
	})
	if updateErr != nil {
		m.opt.Log.Warn("claim not updated after a failed expansion", "claim", claim.Namespace+"/"+claim.Name,
			"err", updateErr)
	}
	return err
}

func (m *Manager) claimOf(ctx context.Context, namespace, name string) (*corev1.PersistentVolumeClaim, error) {
	var c corev1.PersistentVolumeClaim
	if err := m.opt.Client.Get(ctx, apiclient.PersistentVolumeClaims, namespace, name, &c); err != nil {
		return nil, fmt.Errorf("get PersistentVolumeClaim %s/%s: %w", namespace, name, err)
	}
	return &c, nil
}

// claimConflicts limits how often an update of a claim is repeated because another one has changed it.
const claimConflicts = 5

// updateClaim changes the status of a claim. change returns the fields to be changed, or nil.
func (m *Manager) updateClaim(
	ctx context.Context, claim *corev1.PersistentVolumeClaim,
	change func(*corev1.PersistentVolumeClaim) map[string]any,
) error {
	for attempt := 1; ; attempt++ {
		fields := change(claim)
		if fields == nil {
			return nil
		}
		patch, err := json.Marshal(map[string]any{
			"metadata": map[string]any{"uid": claim.UID, "resourceVersion": claim.ResourceVersion}, "status": fields,
		})
		if err != nil {
			return err
		}
		var now corev1.PersistentVolumeClaim
		err = m.opt.Client.Patch(ctx, apiclient.PersistentVolumeClaims, claim.Namespace, claim.Name,
			types.MergePatchType, patch, &now, "status")
		if err == nil {
			*claim = now
			return nil
		}
		if !apierrors.IsConflict(err) || attempt == claimConflicts {
			return fmt.Errorf("update the status of PersistentVolumeClaim %s/%s: %w", claim.Namespace, claim.Name, err)
		}
		current, getErr := m.claimOf(ctx, claim.Namespace, claim.Name)
		switch {
		case getErr != nil:
			return getErr
		case current.UID != claim.UID:
			return err // another claim
		}
		*claim = *current
	}
}

// startExpansions reads the claims of running pods, each once, and starts to expand their volumes if that is due. Nodes
// cannot watch claims.
func (m *Manager) startExpansions(ctx context.Context) {
	published, err := m.publishedVolumes()
	if err != nil {
		m.opt.Log.Warn("CSI volumes on the host cannot be read", "err", err)
	}
	pods := map[types.UID]bool{} // with volumes of drivers that can expand them
	for dir, data := range published {
		d, err := m.registered(data.Driver)
		if err == nil && m.hasCapability(ctx, d, csipb.NodeServiceCapability_RPC_EXPAND_VOLUME) {
			pods[podOf(dir)] = true
		}
	}
	read := map[types.NamespacedName]bool{}
	for _, pod := range m.opt.RunningPods() {
		for i := range pod.Spec.Volumes {
			vol := &pod.Spec.Volumes[i]
			name := types.NamespacedName{Namespace: pod.Namespace, Name: podspec.ClaimName(pod, vol)}
			readOnly := vol.PersistentVolumeClaim != nil && vol.PersistentVolumeClaim.ReadOnly
			if pods[pod.UID] && name.Name != "" && !readOnly && !read[name] {
				read[name] = m.startExpansion(ctx, pod, vol, published)
			}
		}
	}
}

// hasCapability reports whether a driver has a capability. It does not wait for the driver: if its capabilities are not
// known yet, they are by a later call.
func (m *Manager) hasCapability(ctx context.Context, d *driver, t csipb.NodeServiceCapability_RPC_Type) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.caps == nil {
		m.wg.Go(func() { _, _ = m.capabilitiesOf(ctx, d, podVolume{}) })
	}
	return d.caps.has(t)
}

// podOf returns the pod of a directory of publishedVolumes:
// <root>/pods/<uid>/<volumes or volumeDevices>/kubernetes.io~csi/<volume>.
func podOf(dir string) types.UID {
	return types.UID(filepath.Base(filepath.Dir(filepath.Dir(filepath.Dir(dir)))))
}

// startExpansion reads the claim of a pod and starts to expand its volume, if that is due. It returns false if the
// volume is not published for the pod, but may be for another one.
func (m *Manager) startExpansion(
	ctx context.Context, pod *corev1.Pod, vol *corev1.Volume, published map[string]volumeData,
) bool {
	readCtx, cancel := context.WithTimeout(ctx, claimReadTimeout)
	defer cancel()
	claim, err := m.claimOf(readCtx, pod.Namespace, podspec.ClaimName(pod, vol))
	if err != nil {
		m.opt.Log.Debug("expansion not checked", "pod", pod.Namespace+"/"+pod.Name, "volumeName", vol.Name, "err", err)
		return true
	}
	data, is := published[m.podVolumeDir(pod.UID, claim.Spec.VolumeName)]
	path := m.Path(pod, claim.Spec.VolumeName)
	if !is {
		data, is = published[m.podDevice(pod.UID, claim.Spec.VolumeName)]
		path = m.DevicePath(pod.UID, claim.Spec.VolumeName)
	}
	if !is || !m.Mounted(path) {
		return false
	}
	d, err := m.registered(data.Driver)
	if err != nil {
		return true
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	e := m.expansionOf(data.key())
	if e.size.IsZero() {
		e.size = claim.Status.Capacity[corev1.ResourceStorage]
	}
	if !mayExpand(claim, e.size) || !e.due(time.Now()) {
		return true
	}
	e.busy = true
	m.wg.Go(func() {
		err := m.expandPublished(ctx, d, pod, vol, claim, path)
		m.mu.Lock()
		m.expansionOf(data.key()).busy = false
		m.mu.Unlock()
		if err == nil || ctx.Err() != nil {
			return
		}
		m.opt.Log.Warn("volume not expanded; retrying", "pod", pod.Namespace+"/"+pod.Name, "podUID", string(pod.UID),
			"driver", data.Driver, "volumeName", claim.Spec.VolumeName, "err", err)
		m.opt.OnEvent(pod, claim, corev1.EventTypeWarning, eventExpandFailed,
			fmt.Sprintf("NodeExpandVolume.NodeExpandVolume failed for volume %q : %s", claim.Spec.VolumeName, err))
	})
	return true
}

// expandPublished expands a volume that is published for a running pod.
func (m *Manager) expandPublished(
	ctx context.Context, d *driver, pod *corev1.Pod, vol *corev1.Volume, claim *corev1.PersistentVolumeClaim,
	path string,
) error {
	var pv corev1.PersistentVolume
	if err := m.opt.Client.Get(ctx, apiclient.PersistentVolumes, "", claim.Spec.VolumeName, &pv); err != nil {
		return fmt.Errorf("get PersistentVolume %s: %w", claim.Spec.VolumeName, err)
	}
	r, err := newRequest(pod, vol, &pv)
	if err != nil {
		return err
	}
	caps, err := m.capabilitiesOf(ctx, d, podVolume{})
	if err != nil {
		return err
	}
	unlock, err := m.lock(ctx, r.key)
	if err != nil {
		return err
	}
	defer unlock()
	if !m.Mounted(path) {
		return nil // unpublished meanwhile
	}
	return m.expandVolume(ctx, d, r, caps, claim, &pv)
}
