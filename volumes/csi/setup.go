package csi

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"

	"berth/agent/plan"
)

// The operations of upstream's events.
const (
	opAttach      = "MountVolume.WaitForAttach"
	opMountDevice = "MountVolume.MountDevice"
	opSetUp       = "MountVolume.SetUp"
	opExpand      = "MountVolume.NodeExpandVolume"
)

// SetUp stages and publishes a volume of a pod. pv is the PersistentVolume that the claim of the volume
// is bound to, nil for an inline volume. SetUp may be repeated, and does nothing that a crash at any
// point prevents TearDown from reverting. It reports whether the pod's fsGroup is to be applied to
// the files. Errors are *plan.Error with the operation of upstream's event.
func (m *Manager) SetUp(
	ctx context.Context, pod *corev1.Pod, vol *corev1.Volume, pv *corev1.PersistentVolume,
) (applyFSGroup bool, err error) {
	r, err := newRequest(pod, vol, pv)
	if err != nil {
		return false, r.failed(opSetUp, err)
	}
	if m.opt.Client == nil {
		return false, r.failed(opSetUp, errors.New("CSI volumes require an API server"))
	}
	defer m.finished(r.podVolume())
	m.waiting(r.podVolume(), fmt.Sprintf("waiting for the CSIDriver object %s", r.key.driver))
	in := inputs{}
	if in.spec, err = m.driverSpec(ctx, r.key.driver); err != nil {
		return false, r.failed(opSetUp, err)
	}
	if err := r.checkLifecycle(in.spec); err != nil {
		return false, r.failed(opSetUp, prefixed("mounter.SetupAt failed to check volume lifecycle mode: %w", err))
	}
	attach := r.attachRequired(in.spec)
	m.want(r, attach)
	if attach {
		if in.publishContext, err = m.waitForAttachment(ctx, r); err != nil {
			return false, err
		}
	}
	d, err := m.driverFor(ctx, r.key.driver, r.podVolume())
	if err != nil {
		return false, r.failed(opSetUp, prefixed("mounter.SetUpAt failed to get CSI client: %w", err))
	}
	if in.caps, err = m.capabilitiesOf(ctx, d, r.podVolume()); err != nil {
		return false, r.failed(opSetUp, err)
	}
	m.waiting(r.podVolume(), fmt.Sprintf("waiting for another call for the volume of CSI driver %s", d.name))
	unlock, err := m.lock(ctx, r.key)
	if err != nil {
		return false, r.failed(opSetUp, err)
	}
	defer unlock()
	if err := m.checkOnePod(r); err != nil {
		return false, r.failed(opSetUp, err)
	}
	staging := ""
	if !r.inline && in.caps.stages() {
		staging = m.stagingTarget(r)
		if err := m.stageVolume(ctx, d, r, in, staging); err != nil {
			return false, r.failed(opMountDevice, err)
		}
	}
	if err := m.publishVolume(ctx, d, r, in, staging); err != nil {
		return false, r.failed(opSetUp, err)
	}
	if err := m.expandAtMount(ctx, d, r, in.caps); err != nil {
		return false, r.failed(opExpand, err)
	}
	return r.appliesFSGroup(in.spec, in.caps), nil
}

func (r request) podVolume() podVolume { return podVolume{r.pod.UID, r.specName} }

// failed returns an error with the operation of upstream's event.
func (r request) failed(operation string, err error) error {
	kind := plan.Other
	switch {
	case errors.Is(err, context.Canceled):
		kind = plan.Canceled
	case errors.Is(err, context.DeadlineExceeded):
		kind = plan.Timeout
	}
	return &plan.Error{Kind: kind, Reason: "FailedMount", Operation: operation, Object: r.specName, Err: err}
}

// want records that a pod uses a volume.
func (m *Manager) want(r request, attach bool) {
	m.mu.Lock()
	_, known := m.wanted[r.podVolume()]
	m.wanted[r.podVolume()] = want{r.key, attach}
	m.mu.Unlock()
	if !known && attach {
		m.opt.OnChange()
	}
}

// checkOnePod returns an error if the volume may be used by one pod only and another one uses it. The
// caller holds the lock of the volume.
func (m *Manager) checkOnePod(r request) error {
	if !r.onePod() {
		return nil
	}
	published, err := m.publishedVolumes()
	if err != nil {
		return err
	}
	own := m.publishedDir(r)
	for dir, d := range published {
		if d.key() == r.key && dir != own {
			return errors.New("volume uses the ReadWriteOncePod access mode and is already in use by another pod")
		}
	}
	return nil
}

// stageVolume stages a volume, unless this process has already staged it. The caller holds the lock of
// the volume.
func (m *Manager) stageVolume(ctx context.Context, d *driver, r request, in inputs, target string) error {
	m.mu.Lock()
	staged := m.staged[r.key]
	m.mu.Unlock()
	if staged {
		return nil
	}
	secrets, err := m.secrets(ctx, r.stageSecret)
	if err != nil {
		return fmt.Errorf("fetching NodeStageSecretRef %s/%s failed: %w", r.stageSecret.Namespace,
			r.stageSecret.Name, err)
	}
	in.secrets = secrets
	if err := m.prepareStaging(r); err != nil {
		return err
	}
	m.opt.fault("staging data written")
	if err := os.MkdirAll(target, 0o750); err != nil {
		return err
	}
	m.setOnHost(r.key)
	err = m.call(ctx, d, r.podVolume(), "NodeStageVolume", func(ctx context.Context) error {
		_, err := d.client.NodeStageVolume(ctx, r.stage(in, target))
		return err
	})
	if err != nil {
		if isFinal(err) {
			m.discardStaging(r)
		}
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.drivers[d.name] == d {
		m.staged[r.key] = true
	}
	return nil
}

// stagingTarget is the staging target of a volume.
func (m *Manager) stagingTarget(r request) string {
	if r.block {
		return m.blockStaging(r.specName)
	}
	return filepath.Join(m.stagedDir(r.key), stagingName)
}

// publishTarget is the publish target of a volume.
func (m *Manager) publishTarget(r request) string {
	if r.block {
		return m.blockTarget(r.pod.UID, r.specName)
	}
	return filepath.Join(m.podVolumeDir(r.pod.UID, r.specName), publishName)
}

// publishedDir is the directory of a volume in publishedVolumes.
func (m *Manager) publishedDir(r request) string {
	if r.block {
		return m.podDevice(r.pod.UID, r.specName)
	}
	return m.podVolumeDir(r.pod.UID, r.specName)
}

// prepareStaging records that a volume may be staged, and creates its directory.
func (m *Manager) prepareStaging(r request) error {
	if r.block {
		return m.prepareBlock(r)
	}
	dir := m.stagedDir(r.key)
	if err := mark(dir); err != nil {
		return err
	}
	return writeData(dir, volumeData{Driver: r.key.driver, Handle: r.key.handle})
}

// discardStaging removes the directory of a volume that the driver has not staged, unless a pod uses it.
// On errors it stays and is unstaged later.
func (m *Manager) discardStaging(r request) {
	published, err := m.publishedVolumes()
	if err != nil {
		return
	}
	for _, d := range published {
		if d.key() == r.key {
			return
		}
	}
	if mounted, err := m.opt.mounted(m.stagingTarget(r)); err != nil || mounted {
		return
	}
	if r.block {
		_ = m.removeBlock(r.specName)
		return
	}
	_ = removeData(m.stagedDir(r.key), stagingName)
}

// publishVolume publishes a volume for a pod. The caller holds the lock of the volume.
func (m *Manager) publishVolume(ctx context.Context, d *driver, r request, in inputs, staging string) error {
	var err error
	if in.secrets, err = m.secrets(ctx, r.publishSecret); err != nil {
		return fmt.Errorf("fetching NodePublishSecretRef %s/%s failed: %w", r.publishSecret.Namespace,
			r.publishSecret.Name, err)
	}
	if in.tokens, err = m.tokens(ctx, r.pod, in.spec); err != nil {
		// Spelled as upstream.
		return prefixed("mounter.SetUpAt failed to get service accoount token attributes: %w", err)
	}
	if r.block {
		err = m.prepareDevice(r)
	} else {
		err = writeData(m.podVolumeDir(r.pod.UID, r.specName), r.data(m.opt.NodeName))
	}
	if err != nil {
		return err
	}
	m.opt.fault("publish data written")
	m.setOnHost(r.key)
	err = m.call(ctx, d, r.podVolume(), "NodePublishVolume", func(ctx context.Context) error {
		_, err := d.client.NodePublishVolume(ctx, r.publish(in, staging, m.publishTarget(r)))
		return err
	})
	if err != nil || !r.block {
		return err
	}
	return m.mapDevice(r)
}

// setOnHost records that a volume may be staged or published.
func (m *Manager) setOnHost(key volumeKey) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.onHost[key] = true
}

// Path returns the path on the host where the volume of a pod is mounted.
func (m *Manager) Path(pod *corev1.Pod, specName string) string {
	return filepath.Join(m.podVolumeDir(pod.UID, specName), publishName)
}

// Mounted reports whether path is a mount point. A mount table that cannot be read has none.
func (m *Manager) Mounted(path string) bool {
	mounted, err := m.opt.mounted(path)
	return err == nil && mounted
}
