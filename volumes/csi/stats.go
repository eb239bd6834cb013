package csi

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/encoding/protowire"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Stats is the usage of a volume that its driver has reported.
type Stats struct {
	At                             time.Time
	Capacity, Available, Used      uint64 // bytes
	Inodes, InodesFree, InodesUsed uint64

	Condition *Condition // nil: the driver does not report it
}

// Condition is the health of a volume.
type Condition struct {
	Abnormal bool
	Message  string
}

// measurement is the last usage of a volume.
type measurement struct {
	stats Stats
	known bool
	at    time.Time // of the last attempt
	busy  bool
}

// Stats returns the last usage of a volume of a pod, and measures it again if that is too old. It does
// not wait for the driver. ok is false if the usage is not known yet or not supported.
func (m *Manager) Stats(uid types.UID, specName string) (s Stats, ok bool) {
	v := podVolume{uid, specName}
	m.mu.Lock()
	defer m.mu.Unlock()
	last := m.stats[v]
	if m.running != nil && m.running.Err() == nil && !last.busy && time.Since(last.at) > m.opt.StatsAge {
		last.busy, last.at = true, time.Now()
		m.stats[v] = last
		ctx := m.running
		m.wg.Go(func() { m.measure(ctx, v) })
	}
	return last.stats, last.known
}

// measure calls NodeGetVolumeStats.
func (m *Manager) measure(ctx context.Context, v podVolume) {
	s, condition, err := m.volumeStats(ctx, v)
	m.reportCondition(v, condition)
	if err != nil {
		m.opt.Log.Debug("volume statistics not available", "podUID", string(v.uid), "volumeName", v.specName,
			"err", err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if last, wanted := m.stats[v]; wanted {
		last.busy, last.known = false, err == nil && s != nil
		if last.known {
			last.stats = *s
		}
		m.stats[v] = last
	}
}

// volumeStats returns the usage and the health of a volume. Nil: the driver does not report it.
func (m *Manager) volumeStats(ctx context.Context, v podVolume) (*Stats, *Condition, error) {
	path := filepath.Join(m.podVolumeDir(v.uid, v.specName), publishName)
	data, exists, err := readData(filepath.Dir(path))
	if err == nil && !exists {
		path = m.blockTarget(v.uid, v.specName)
		data, exists, err = m.blockPublished(v.uid, v.specName)
	}
	if err != nil || !exists {
		return nil, nil, err
	}
	d, err := m.registered(data.Driver)
	if err != nil {
		return nil, nil, err
	}
	caps, err := m.capabilitiesOf(ctx, d, podVolume{})
	if err != nil || !caps.has(csipb.NodeServiceCapability_RPC_GET_VOLUME_STATS) {
		return nil, nil, err
	}
	var out *csipb.NodeGetVolumeStatsResponse
	err = m.call(ctx, d, podVolume{}, "NodeGetVolumeStats", func(ctx context.Context) (err error) {
		out, err = d.client.NodeGetVolumeStats(ctx, &csipb.NodeGetVolumeStatsRequest{
			VolumeId: data.Handle, VolumePath: path,
		})
		return err
	})
	if err != nil {
		return nil, nil, err
	}
	s, condition := statsOf(out, time.Now()), conditionOf(out, caps)
	if s != nil {
		s.Condition = condition
	}
	return s, condition, nil
}

// conditionOf returns the health of a volume in the response of a driver. Nil: the driver does not report it.
func conditionOf(r *csipb.NodeGetVolumeStatsResponse, caps capabilities) *Condition {
	if !caps.has(volumeCondition) {
		return nil
	}
	text, ok := unknownField(r.ProtoReflect().GetUnknown(), conditionField, protowire.BytesType)
	if !ok {
		return nil
	}
	condition, _ := protowire.ConsumeBytes(text)
	out := &Condition{}
	if value, ok := unknownField(condition, 1, protowire.VarintType); ok {
		abnormal, _ := protowire.ConsumeVarint(value)
		out.Abnormal = protowire.DecodeBool(abnormal)
	}
	if value, ok := unknownField(condition, 2, protowire.BytesType); ok {
		message, _ := protowire.ConsumeBytes(value)
		out.Message = strings.ToValidUTF8(string(message), "")
	}
	return out
}

// The capability and the field of a response with the health of a volume. Version 1.13 of the specification has removed
// them, and drivers of earlier versions have them.
const (
	volumeCondition = csipb.NodeServiceCapability_RPC_Type(4)
	conditionField  = protowire.Number(2)
)

// unknownField returns the encoded value of a field of a message.
func unknownField(message []byte, number protowire.Number, kind protowire.Type) (value []byte, ok bool) {
	for len(message) > 0 {
		n, t, tag := protowire.ConsumeTag(message)
		if tag < 0 {
			return nil, false
		}
		size := protowire.ConsumeFieldValue(n, t, message[tag:])
		if size < 0 {
			return nil, false
		}
		if n == number && t == kind {
			return message[tag : tag+size], true
		}
		message = message[tag+size:]
	}
	return nil, false
}

// reportCondition records an event if a volume of a running pod is abnormal.
func (m *Manager) reportCondition(v podVolume, c *Condition) {
	if c == nil || !c.Abnormal || m.opt.RunningPods == nil {
		return
	}
	for _, pod := range m.opt.RunningPods() {
		if pod.UID == v.uid {
			m.opt.OnEvent(pod, nil, corev1.EventTypeWarning, "VolumeConditionAbnormal",
				fmt.Sprintf("Volume %s: %s", m.opt.VolumeName(pod, v.specName), c.Message))
		}
	}
}

// checkConditions measures the volumes of drivers that report their health.
func (m *Manager) checkConditions(ctx context.Context) {
	published, err := m.publishedVolumes()
	if err != nil {
		m.opt.Log.Warn("CSI volumes on the host cannot be read", "err", err)
	}
	for dir, data := range published {
		d, err := m.registered(data.Driver)
		if err == nil && m.hasCapability(ctx, d, volumeCondition) {
			_, _ = m.Stats(podOf(dir), filepath.Base(dir)) // measured if that is due
		}
	}
}

// statsOf converts the response of a driver. Nil: it has no usage.
func statsOf(r *csipb.NodeGetVolumeStatsResponse, now time.Time) *Stats {
	s := &Stats{At: now}
	found := false
	amount := func(n int64) uint64 { return uint64(max(n, 0)) }
	for _, u := range r.GetUsage() {
		switch u.GetUnit() {
		case csipb.VolumeUsage_BYTES:
			found = true
			s.Capacity, s.Available, s.Used = amount(u.GetTotal()), amount(u.GetAvailable()), amount(u.GetUsed())
		case csipb.VolumeUsage_INODES:
			found = true
			s.Inodes, s.InodesFree, s.InodesUsed = amount(u.GetTotal()), amount(u.GetAvailable()), amount(u.GetUsed())
		case csipb.VolumeUsage_UNKNOWN:
		}
	}
	if !found {
		return nil
	}
	return s
}
