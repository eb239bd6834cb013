package csi

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"k8s.io/apimachinery/pkg/types"
)

// TearDown unpublishes a volume of a pod and removes its directory. It is based on what exists on the
// host and may be repeated. Run unstages the volume if no other pod uses it.
func (m *Manager) TearDown(ctx context.Context, uid types.UID, specName string) error {
	v := podVolume{uid, specName}
	defer m.finished(v)
	if d, is, err := m.blockPublished(uid, specName); err != nil {
		return err
	} else if is {
		if err := m.tearDownBlock(ctx, v, d); err != nil {
			return err
		}
	}
	dir := m.podVolumeDir(uid, specName)
	d, exists, readErr := readData(dir)
	if readErr == nil && exists {
		if err := m.own(d.key()); err != nil { // an adopted pod may be the last one that uses it
			return err
		}
		if err := m.unpublish(ctx, v, d, filepath.Join(dir, publishName)); err != nil {
			return err
		}
	}
	target := filepath.Join(dir, publishName)
	mounted, err := m.opt.mounted(target)
	switch {
	case err != nil:
		return err
	case mounted && readErr != nil:
		return readErr
	case mounted && exists:
		return fmt.Errorf("%s is still mounted", target)
	case mounted:
		return fmt.Errorf("%s is mounted, and its driver is not known: no %s", target, dataName)
	}
	if err := removeData(dir, publishName); err != nil {
		return err
	}
	m.opt.fault("publish data removed")
	m.mu.Lock()
	delete(m.wanted, v)
	delete(m.missing, v)
	delete(m.stats, v)
	m.mu.Unlock()
	signal(m.wake)
	return nil
}

// unpublish calls NodeUnpublishVolume.
func (m *Manager) unpublish(ctx context.Context, v podVolume, data volumeData, target string) error {
	d, err := m.driverFor(ctx, data.Driver, v)
	if err != nil {
		return prefixed("Unmounter.TearDownAt failed to get CSI client: %w", err)
	}
	unlock, err := m.lock(ctx, data.key())
	if err != nil {
		return err
	}
	defer unlock()
	err = m.call(ctx, d, v, "NodeUnpublishVolume", func(ctx context.Context) error {
		_, err := d.client.NodeUnpublishVolume(ctx,
			&csipb.NodeUnpublishVolumeRequest{VolumeId: data.Handle, TargetPath: target})
		return err
	})
	if isGone(err) {
		if mounted, mountErr := m.opt.mounted(target); mountErr == nil && !mounted {
			return nil
		}
	}
	if err != nil {
		return prefixed("Unmounter.TearDownAt failed: %w", err)
	}
	return nil
}

// unused returns the staged volumes that no pod uses, by their directory.
func unused(staged, published map[string]volumeData, wanted map[podVolume]want) map[string]volumeData {
	used := map[volumeKey]bool{}
	for _, d := range published {
		used[d.key()] = true
	}
	for _, w := range wanted {
		used[w.key] = true
	}
	out := map[string]volumeData{}
	for dir, d := range staged {
		if !used[d.key()] {
			out[dir] = d
		}
	}
	return out
}

// unstaging is a volume that Run unstages.
type unstaging struct {
	busy     bool
	failures int
	retryAt  time.Time
}

// unstageUnused unstages volumes that no pod uses, until ctx ends. Each has a goroutine of its own and
// is repeated with back-off.
func (m *Manager) unstageUnused(ctx context.Context) {
	states := map[string]*unstaging{} // by directory
	results := make(chan unstaged)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-m.wake:
			for _, s := range states { // a driver may have registered
				s.retryAt = time.Time{}
			}
		case <-timer.C:
		case r := <-results:
			s := states[r.dir]
			s.busy = false
			if r.err == nil {
				delete(states, r.dir)
				break
			}
			delay := min(m.opt.RetryMin<<min(s.failures, 16), m.opt.RetryMax)
			s.failures++
			s.retryAt = time.Now().Add(delay)
			m.opt.Log.Warn("volume cannot be unstaged; retrying", "driver", r.data.Driver,
				"volumeHandle", r.data.Handle, "retryIn", delay, "err", r.err)
		}
		timer.Reset(m.startUnstaging(ctx, states, results))
	}
}

// unstaged is the result of unstaging a volume.
type unstaged struct {
	dir  string
	data volumeData
	err  error
}

// startUnstaging reads the volumes on the host and starts to unstage those that are due. It returns
// when to repeat this.
func (m *Manager) startUnstaging(
	ctx context.Context, states map[string]*unstaging, results chan<- unstaged,
) (wait time.Duration) {
	due, err := m.scan()
	if err != nil { // without all uses, nothing is unstaged
		m.opt.Log.Warn("CSI volumes on the host cannot be read; retrying", "err", err)
		return m.opt.RetryMax
	}
	maps.DeleteFunc(states, func(dir string, s *unstaging) bool {
		_, is := due[dir]
		return !is && !s.busy
	})
	wait = time.Hour
	now := time.Now()
	for _, dir := range slices.Sorted(maps.Keys(due)) {
		s := states[dir]
		if s == nil {
			s = &unstaging{}
			states[dir] = s
		}
		switch {
		case s.busy:
			continue
		case now.Before(s.retryAt):
			wait = min(wait, s.retryAt.Sub(now))
			continue
		}
		s.busy = true
		data := due[dir]
		m.wg.Go(func() {
			err := m.unstage(ctx, dir, data)
			select {
			case results <- unstaged{dir, data, err}:
			case <-ctx.Done():
			}
		})
	}
	return wait
}

// scan reads the volumes on the host. It returns the staged ones with the mark of berth that no pod uses.
func (m *Manager) scan() (map[string]volumeData, error) {
	m.mu.Lock()
	wanted := maps.Clone(m.wanted)
	m.mu.Unlock()
	published, err := m.publishedVolumes()
	staged, stagedErr := m.stagedVolumes()
	if err := errors.Join(err, stagedErr); err != nil {
		return nil, err
	}
	onHost := map[volumeKey]bool{}
	for _, d := range published {
		if d.LifecycleMode != "Ephemeral" {
			onHost[d.key()] = true
		}
	}
	for _, d := range staged {
		onHost[d.key()] = true
	}
	m.mu.Lock()
	changed := !m.scanned || !maps.Equal(m.onHost, onHost)
	m.onHost, m.scanned = onHost, true
	m.mu.Unlock()
	if changed {
		m.opt.OnChange()
	}
	out := unused(staged, published, wanted)
	maps.DeleteFunc(out, func(dir string, _ volumeData) bool { return !owned(dir) })
	return out, nil
}

// unstage unstages a volume, unless a pod has started to use it.
func (m *Manager) unstage(ctx context.Context, dir string, data volumeData) error {
	d, err := m.registered(data.Driver)
	if err != nil {
		return err
	}
	unlock, err := m.lock(ctx, data.key())
	if err != nil {
		return err
	}
	defer unlock()
	due, err := m.scan()
	if _, is := due[dir]; err != nil || !is {
		return err
	}
	caps, err := m.capabilitiesOf(ctx, d, podVolume{})
	if err != nil {
		return err
	}
	m.mu.Lock()
	delete(m.staged, data.key())
	delete(m.expansions, data.key())
	m.mu.Unlock()
	target, remove := filepath.Join(dir, stagingName), func() error { return removeData(dir, stagingName) }
	if m.isBlock(dir) {
		specName := filepath.Base(dir)
		target, remove = m.blockStaging(specName), func() error { return m.removeBlock(specName) }
	}
	if caps.stages() {
		err = m.call(ctx, d, podVolume{}, "NodeUnstageVolume", func(ctx context.Context) error {
			_, err := d.client.NodeUnstageVolume(ctx,
				&csipb.NodeUnstageVolumeRequest{VolumeId: data.Handle, StagingTargetPath: target})
			return err
		})
	}
	mounted, mountErr := m.opt.mounted(target)
	switch {
	case mountErr != nil:
		return errors.Join(err, mountErr)
	case err != nil && (mounted || !isGone(err)):
		return err
	case mounted:
		return fmt.Errorf("%s is still mounted", target)
	}
	if err := remove(); err != nil {
		return err
	}
	m.opt.fault("staging data removed")
	m.opt.Log.Info("volume unstaged", "driver", data.Driver, "volumeHandle", data.Handle)
	_, err = m.scan()
	return err
}

// registered returns a registered driver.
func (m *Manager) registered(name string) (*driver, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if d := m.drivers[name]; d != nil {
		return d, nil
	}
	return nil, fmt.Errorf("driver name %s not found in the list of registered CSI drivers", name)
}
