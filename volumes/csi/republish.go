package csi

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/internal/apiclient"
	"berth/podspec"
)

// republished is a volume that is published again periodically.
type republished struct {
	pod  *corev1.Pod
	data volumeData
	dir  string
}

// republish publishes the volumes of running pods again, if their drivers request it, until ctx ends. Such a
// driver updates the content of a volume, for example with a new token. A call that is still in progress is
// not repeated.
func (m *Manager) republish(ctx context.Context) {
	busy := map[string]bool{} // by directory
	results := make(chan string)
	tick := time.NewTicker(m.opt.RepublishInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case dir := <-results:
			delete(busy, dir)
			continue
		case <-tick.C:
		}
		for _, r := range m.toRepublish() {
			if busy[r.dir] {
				continue
			}
			busy[r.dir] = true
			m.wg.Go(func() {
				if err := m.republishVolume(ctx, r); err != nil && ctx.Err() == nil {
					m.opt.Log.Warn("volume not published again; retrying", "pod", r.pod.Namespace+"/"+r.pod.Name,
						"podUID", string(r.pod.UID), "driver", r.data.Driver, "volumeName", r.data.SpecName, "err", err)
				}
				select {
				case results <- r.dir:
				case <-ctx.Done():
				}
			})
		}
	}
}

// toRepublish returns the volumes of running pods whose drivers request to be called again.
func (m *Manager) toRepublish() (out []republished) {
	drivers := map[string]bool{}
	m.mu.Lock()
	for name, c := range m.specs {
		if c.spec != nil && c.spec.RequiresRepublish != nil && *c.spec.RequiresRepublish {
			drivers[name] = true
		}
	}
	m.mu.Unlock()
	if len(drivers) == 0 {
		return nil
	}
	published, err := m.publishedVolumes()
	if err != nil {
		m.opt.Log.Warn("CSI volumes on the host cannot be read", "err", err)
	}
	pods := map[types.UID]*corev1.Pod{}
	for _, pod := range m.opt.RunningPods() {
		pods[pod.UID] = pod
	}
	for dir, data := range published {
		if pod := pods[podOf(dir)]; pod != nil && drivers[data.Driver] && m.Mounted(filepath.Join(dir, publishName)) {
			out = append(out, republished{pod, data, dir})
		}
	}
	return out
}

// republishVolume calls NodePublishVolume for a volume that is published.
func (m *Manager) republishVolume(ctx context.Context, v republished) error {
	vol, pv, err := m.sourceOf(ctx, v)
	if err != nil {
		return err
	}
	r, err := newRequest(v.pod, vol, pv)
	if err != nil {
		return err
	}
	in := inputs{}
	if in.spec, err = m.driverSpec(ctx, r.key.driver); err != nil {
		return err
	}
	if r.attachRequired(in.spec) {
		var a storagev1.VolumeAttachment
		name := attachmentName(r.key, m.opt.NodeName)
		if err := m.opt.Client.Get(ctx, apiclient.VolumeAttachments, "", name, &a); err != nil {
			return err
		}
		in.publishContext = a.Status.AttachmentMetadata
	}
	d, err := m.registered(r.key.driver)
	if err != nil {
		return err
	}
	if in.caps, err = m.capabilitiesOf(ctx, d, podVolume{}); err != nil {
		return err
	}
	if in.secrets, err = m.secrets(ctx, r.publishSecret); err != nil {
		return err
	}
	if in.tokens, err = m.tokens(ctx, r.pod, in.spec); err != nil {
		return err
	}
	staging := ""
	if !r.inline && in.caps.stages() {
		staging = filepath.Join(m.stagedDir(r.key), stagingName)
	}
	unlock, err := m.lock(ctx, r.key)
	if err != nil {
		return err
	}
	defer unlock()
	if _, exists, err := readData(v.dir); err != nil || !exists {
		return err // unpublished meanwhile
	}
	return m.call(ctx, d, podVolume{}, "NodePublishVolume", func(ctx context.Context) error {
		_, err := d.client.NodePublishVolume(ctx, r.publish(in, staging, filepath.Join(v.dir, publishName)))
		return err
	})
}

// sourceOf returns the volume of a pod, and its PersistentVolume unless it is an inline volume.
func (m *Manager) sourceOf(ctx context.Context, v republished) (*corev1.Volume, *corev1.PersistentVolume, error) {
	var pv *corev1.PersistentVolume
	claim := ""
	if v.data.LifecycleMode != string(storagev1.VolumeLifecycleEphemeral) {
		pv = &corev1.PersistentVolume{}
		if err := m.opt.Client.Get(ctx, apiclient.PersistentVolumes, "", v.data.SpecName, pv); err != nil {
			return nil, nil, err
		}
		if pv.Spec.ClaimRef != nil {
			claim = pv.Spec.ClaimRef.Name
		}
	}
	for i := range v.pod.Spec.Volumes {
		vol := &v.pod.Spec.Volumes[i]
		if pv == nil && vol.CSI != nil && vol.Name == v.data.SpecName ||
			pv != nil && claim != "" && podspec.ClaimName(v.pod, vol) == claim {
			return vol, pv, nil
		}
	}
	return nil, nil, fmt.Errorf("the pod has no volume %s", v.data.SpecName)
}
