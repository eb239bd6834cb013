package csi

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/internal/apiclient"
)

// annNodeID is the annotation of a Node with its IDs in the drivers, as JSON.
const annNodeID = "csi.volume.kubernetes.io/nodeid"

// nodeInfo is what a driver reports of the node.
type nodeInfo struct {
	ID         string
	MaxVolumes int64 // zero: no limit
	Topology   map[string]string
}

// mergeNodeIDs returns the annotation with the node IDs of drivers, without those of removed ones.
func mergeNodeIDs(annotation string, drivers map[string]nodeInfo, removed map[string]bool) (string, error) {
	ids := map[string]string{}
	if annotation != "" {
		if err := json.Unmarshal([]byte(annotation), &ids); err != nil {
			return "", fmt.Errorf("failed to parse node's %q annotation value (%q): %w", annNodeID, annotation, err)
		}
	}
	maps.DeleteFunc(ids, func(name, _ string) bool { return removed[name] })
	for name, info := range drivers {
		ids[name] = info.ID
	}
	if len(ids) == 0 {
		return "", nil
	}
	text, err := json.Marshal(ids)
	return string(text), err
}

// topologyCollision returns an error if a driver reports another topology than the labels of the Node.
func topologyCollision(labels map[string]string, info nodeInfo) error {
	for _, key := range slices.Sorted(maps.Keys(info.Topology)) {
		if has, ok := labels[key]; ok && has != info.Topology[key] {
			return fmt.Errorf("detected topology value collision: driver reported %q:%q but existing label is %q:%q",
				key, info.Topology[key], key, has)
		}
	}
	return nil
}

// nodePatch returns the change of the Node's metadata, or nil. Like upstream, labels of topology are
// never removed.
func nodePatch(node nodeState, drivers map[string]nodeInfo, removed map[string]bool) (map[string]any, error) {
	meta := map[string]any{}
	annotation, err := mergeNodeIDs(node.annotation, drivers, removed)
	if err != nil {
		return nil, err
	}
	if annotation != node.annotation {
		var value any = annotation
		if annotation == "" {
			value = nil
		}
		meta["annotations"] = map[string]any{annNodeID: value}
	}
	labels := map[string]string{}
	for _, info := range drivers {
		for key, value := range info.Topology {
			if has, ok := node.labels[key]; !ok || has != value {
				labels[key] = value
			}
		}
	}
	if len(labels) > 0 {
		meta["labels"] = labels
	}
	if len(meta) == 0 {
		return nil, nil
	}
	return map[string]any{"metadata": meta}, nil
}

// csiNodeDrivers returns the drivers of the CSINode: those it has, without removed ones, and with the
// registered ones in their current form. Other drivers keep their entries.
func csiNodeDrivers(
	has []storagev1.CSINodeDriver, drivers map[string]nodeInfo, removed map[string]bool,
) (out []storagev1.CSINodeDriver, changed bool) {
	out = []storagev1.CSINodeDriver{}
	found := map[string]bool{}
	for _, d := range has {
		info, registered := drivers[d.Name]
		switch {
		case registered && !found[d.Name]:
			now := csiNodeDriver(d.Name, info)
			changed = changed || !sameDriver(d, now)
			out = append(out, now)
		case registered, removed[d.Name]:
			changed = true
			continue
		default:
			out = append(out, d)
		}
		found[d.Name] = true
	}
	for _, name := range slices.Sorted(maps.Keys(drivers)) {
		if !found[name] {
			out, changed = append(out, csiNodeDriver(name, drivers[name])), true
		}
	}
	return out, changed
}

func csiNodeDriver(name string, info nodeInfo) storagev1.CSINodeDriver {
	d := storagev1.CSINodeDriver{Name: name, NodeID: info.ID, TopologyKeys: slices.Sorted(maps.Keys(info.Topology))}
	if d.TopologyKeys == nil {
		d.TopologyKeys = []string{}
	}
	if info.MaxVolumes > 0 {
		d.Allocatable = &storagev1.VolumeNodeResources{Count: new(int32(min(info.MaxVolumes, math.MaxInt32)))}
	}
	return d
}

func sameDriver(a, b storagev1.CSINodeDriver) bool {
	count := func(d storagev1.CSINodeDriver) int32 {
		if d.Allocatable == nil || d.Allocatable.Count == nil {
			return -1
		}
		return *d.Allocatable.Count
	}
	x, y := slices.Sorted(slices.Values(a.TopologyKeys)), slices.Sorted(slices.Values(b.TopologyKeys))
	return a.NodeID == b.NodeID && slices.Equal(x, y) && count(a) == count(b)
}

// ownsCSINode reports whether a CSINode belongs to the Node with this UID, instead of an earlier one.
func ownsCSINode(n *storagev1.CSINode, node string, uid types.UID) bool {
	return slices.ContainsFunc(n.OwnerReferences, func(o metav1.OwnerReference) bool {
		return o.Kind == "Node" && o.Name == node && o.UID == uid
	})
}

// syncNodeInfo keeps the Node and the CSINode up to date until ctx ends.
func (m *Manager) syncNodeInfo(ctx context.Context) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	failures := 0
	for {
		select {
		case <-ctx.Done():
			return
		case <-m.sync:
		case <-timer.C:
		}
		err := m.updateNodeInfo(ctx)
		if err == nil || ctx.Err() != nil {
			failures = 0
			continue
		}
		delay := min(m.opt.RetryMin<<min(failures, 16), m.opt.RetryMax)
		if failures++; failures == 1 || delay == m.opt.RetryMax {
			m.opt.Log.Warn("CSINode not updated; retrying", "retryIn", delay, "err", err)
		}
		timer.Reset(delay)
	}
}

// updateTimeout limits one update of the Node and the CSINode.
const updateTimeout = 30 * time.Second

// updateNodeInfo brings the Node and the CSINode up to date.
func (m *Manager) updateNodeInfo(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, updateTimeout)
	defer cancel()
	m.mu.Lock()
	node, removed, registered := m.node, maps.Clone(m.removed), maps.Clone(m.drivers)
	m.mu.Unlock()
	if !node.known {
		return nil // SetNode repeats it
	}
	infos, refused := map[string]nodeInfo{}, map[string]error{}
	for name, d := range registered {
		if err := topologyCollision(node.labels, d.info); err != nil {
			refused[name] = err
		} else {
			infos[name] = d.info
		}
	}
	err := m.updateNode(ctx, node, infos, removed)
	if err == nil {
		err = m.updateCSINode(ctx, node, infos, removed)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for name, d := range registered {
		if refusal := refused[name]; refusal != nil || err == nil {
			d.reported, d.refusal = true, refusal
		}
	}
	if err == nil {
		for name := range removed {
			if m.drivers[name] == nil {
				delete(m.removed, name)
			}
		}
	}
	m.broadcast()
	return err
}

func (m *Manager) updateNode(
	ctx context.Context, node nodeState, drivers map[string]nodeInfo, removed map[string]bool,
) error {
	patch, err := nodePatch(node, drivers, removed)
	if err != nil || patch == nil {
		return err
	}
	text, err := json.Marshal(patch)
	if err != nil {
		return err
	}
	err = m.opt.Client.Patch(ctx, apiclient.Nodes, "", m.opt.NodeName, types.MergePatchType, text, nil)
	if err != nil {
		return fmt.Errorf("update Node with CSI driver node info: %w", err)
	}
	return nil
}

func (m *Manager) updateCSINode(
	ctx context.Context, node nodeState, drivers map[string]nodeInfo, removed map[string]bool,
) error {
	var has storagev1.CSINode
	err := m.opt.Client.Get(ctx, apiclient.CSINodes, "", m.opt.NodeName, &has)
	if err == nil && !ownsCSINode(&has, m.opt.NodeName, node.uid) {
		uid := has.UID
		err = m.opt.Client.Delete(ctx, apiclient.CSINodes, "", m.opt.NodeName,
			metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}})
		if err == nil || apierrors.IsNotFound(err) {
			err = m.createCSINode(ctx, node, drivers)
		}
		return err
	}
	switch {
	case apierrors.IsNotFound(err):
		return m.createCSINode(ctx, node, drivers)
	case err != nil:
		return fmt.Errorf("get CSINode: %w", err)
	}
	list, changed := csiNodeDrivers(has.Spec.Drivers, drivers, removed)
	if !changed {
		return nil
	}
	err = m.patchCSINode(ctx, has.ResourceVersion, list)
	if !apierrors.IsInvalid(err) {
		return err
	}
	// The entry of a driver is immutable but for its limit: remove it and add it again.
	kept := slices.DeleteFunc(slices.Clone(has.Spec.Drivers), func(d storagev1.CSINodeDriver) bool {
		_, registered := drivers[d.Name]
		return registered || removed[d.Name]
	})
	if err := m.patchCSINode(ctx, has.ResourceVersion, kept); err != nil {
		return err
	}
	return m.patchCSINode(ctx, "", list)
}

func (m *Manager) patchCSINode(ctx context.Context, resourceVersion string, list []storagev1.CSINodeDriver) error {
	meta := map[string]any{}
	if resourceVersion != "" {
		meta["resourceVersion"] = resourceVersion
	}
	text, err := json.Marshal(map[string]any{"metadata": meta, "spec": map[string]any{"drivers": list}})
	if err != nil {
		return err
	}
	err = m.opt.Client.Patch(ctx, apiclient.CSINodes, "", m.opt.NodeName, types.MergePatchType, text, nil)
	if err != nil {
		return fmt.Errorf("update CSINode: %w", err)
	}
	return nil
}

func (m *Manager) createCSINode(ctx context.Context, node nodeState, drivers map[string]nodeInfo) error {
	n := &storagev1.CSINode{}
	n.Name = m.opt.NodeName
	n.OwnerReferences = []metav1.OwnerReference{
		{APIVersion: "v1", Kind: "Node", Name: m.opt.NodeName, UID: node.uid},
	}
	n.Spec.Drivers, _ = csiNodeDrivers(nil, drivers, nil)
	if err := m.opt.Client.Create(ctx, apiclient.CSINodes, "", n, nil); err != nil {
		return fmt.Errorf("create CSINode: %w", err)
	}
	return nil
}

// reportTimeout limits how long the registration of a driver waits for the CSINode. The update
// continues after it.
const reportTimeout = 10 * time.Second

// waitForNodeInfo waits until the CSINode lists a driver, which its users expect after its
// registration. It returns an error if the driver cannot be used on this node.
func (m *Manager) waitForNodeInfo(ctx context.Context, d *driver) error {
	if m.opt.Client == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, reportTimeout)
	defer cancel()
	var refusal error
	m.waitFor(ctx, func() bool {
		refusal = d.refusal
		return d.reported || m.drivers[d.name] != d
	})
	return refusal
}
