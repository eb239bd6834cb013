package csi

import (
	"context"
	"path/filepath"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"k8s.io/apimachinery/pkg/types"
)

// statsAge is the age of statistics at which they are measured again.
const statsAge = time.Minute

// Stats is the usage of a volume that its driver has reported.
type Stats struct {
	At                             time.Time
	Capacity, Available, Used      uint64 // bytes
	Inodes, InodesFree, InodesUsed uint64
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
	if m.running != nil && m.running.Err() == nil && !last.busy && time.Since(last.at) > statsAge {
		last.busy, last.at = true, time.Now()
		m.stats[v] = last
		ctx := m.running
		m.wg.Go(func() { m.measure(ctx, v) })
	}
	return last.stats, last.known
}

// measure calls NodeGetVolumeStats.
func (m *Manager) measure(ctx context.Context, v podVolume) {
	s, err := m.volumeStats(ctx, v)
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

// volumeStats returns the usage of a volume, or nil if the driver does not report it.
func (m *Manager) volumeStats(ctx context.Context, v podVolume) (*Stats, error) {
	dir := m.podVolumeDir(v.uid, v.specName)
	data, exists, err := readData(dir)
	if err != nil || !exists {
		return nil, err
	}
	d, err := m.registered(data.Driver)
	if err != nil {
		return nil, err
	}
	caps, err := m.capabilitiesOf(ctx, d, podVolume{})
	if err != nil || !caps.has(csipb.NodeServiceCapability_RPC_GET_VOLUME_STATS) {
		return nil, err
	}
	var out *csipb.NodeGetVolumeStatsResponse
	err = m.call(ctx, d, podVolume{}, "NodeGetVolumeStats", func(ctx context.Context) (err error) {
		out, err = d.client.NodeGetVolumeStats(ctx, &csipb.NodeGetVolumeStatsRequest{
			VolumeId: data.Handle, VolumePath: filepath.Join(dir, publishName),
		})
		return err
	})
	if err != nil {
		return nil, err
	}
	return statsOf(out, time.Now()), nil
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
