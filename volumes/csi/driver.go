package csi

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/util/version"

	"berth/node/plugins"
)

// nodeClient is a connection to the node service of a driver.
type nodeClient interface {
	csipb.NodeClient
	io.Closer
}

type connection struct {
	csipb.NodeClient
	io.Closer
}

// connect returns a connection to a driver. It connects when it is used.
func connect(endpoint string) (nodeClient, error) {
	conn, err := plugins.Connect(endpoint)
	if err != nil {
		return nil, err
	}
	return connection{csipb.NewNodeClient(conn), conn}, nil
}

// driver is a registered driver.
type driver struct {
	name, endpoint string
	version        *version.Version
	client         nodeClient
	info           nodeInfo
	reported       bool  // the CSINode lists the driver, or must not; guarded by the manager's mu
	refusal        error // why it must not; guarded by the manager's mu

	mu   sync.Mutex
	caps capabilities // nil: not known yet
}

// Register makes a driver available and asks for its node information.
func (m *Manager) Register(ctx context.Context, name, endpoint string, versions []string) error {
	highest, err := highestVersion(versions)
	if err != nil {
		return fmt.Errorf("CSI driver %s at endpoint %s: %w", name, endpoint, err)
	}
	client, err := m.client(name, endpoint)
	if err != nil {
		return fmt.Errorf("connect to CSI driver %s: %w", name, err)
	}
	d := &driver{name: name, endpoint: endpoint, version: highest, client: client}
	m.mu.Lock()
	if other := m.drivers[name]; other != nil && !other.version.LessThan(highest) {
		m.mu.Unlock()
		return errors.Join(fmt.Errorf("another driver with the name %s is already registered with version %s",
			name, other.version), client.Close())
	}
	m.mu.Unlock()
	if d.info, err = m.nodeInfoOf(ctx, d); err != nil {
		return errors.Join(err, client.Close())
	}
	m.mu.Lock()
	if old := m.drivers[name]; old != nil {
		_ = old.client.Close() // calls in progress fail and are repeated
	}
	m.drivers[name] = d
	delete(m.removed, name)
	m.forgetStaged(name)
	m.broadcast()
	m.mu.Unlock()
	signal(m.wake)
	signal(m.sync)
	if err := m.waitForNodeInfo(ctx, d); err != nil {
		m.Deregister(name, endpoint)
		return err
	}
	return nil
}

// Deregister removes a driver. Its volumes stay mounted.
func (m *Manager) Deregister(name, endpoint string) {
	m.mu.Lock()
	d := m.drivers[name]
	if d == nil || d.endpoint != endpoint {
		m.mu.Unlock()
		return
	}
	delete(m.drivers, name)
	m.removed[name] = true
	m.forgetStaged(name)
	m.broadcast()
	m.mu.Unlock()
	_ = d.client.Close() // calls in progress fail and are repeated
	signal(m.sync)
}

// forgetStaged lets the next SetUp stage the volumes of a driver again, because a driver that has
// restarted may have lost them. The caller holds mu.
func (m *Manager) forgetStaged(name string) {
	for key := range m.staged {
		if key.driver == name {
			delete(m.staged, key)
		}
	}
}

// highestVersion returns the highest supported version of a driver. All versions below 2 are
// compatible with 1.0.
func highestVersion(versions []string) (highest *version.Version, err error) {
	for _, text := range versions {
		v, parseErr := version.ParseGeneric(text)
		if parseErr != nil {
			err = parseErr
			continue
		}
		if v.Major() == 1 && (highest == nil || highest.LessThan(v)) {
			highest = v
		}
	}
	if highest == nil {
		return nil, errors.Join(fmt.Errorf("none of the versions specified %q are supported", versions), err)
	}
	return highest, nil
}

// nodeInfoOf calls NodeGetInfo.
func (m *Manager) nodeInfoOf(ctx context.Context, d *driver) (nodeInfo, error) {
	var out *csipb.NodeGetInfoResponse
	err := m.call(ctx, d, podVolume{}, "NodeGetInfo", func(ctx context.Context) (err error) {
		out, err = d.client.NodeGetInfo(ctx, &csipb.NodeGetInfoRequest{}, grpc.WaitForReady(true))
		return err
	})
	if err != nil {
		return nodeInfo{}, err
	}
	if out.GetNodeId() == "" {
		return nodeInfo{}, fmt.Errorf("NodeGetInfo of CSI driver %s returned no node ID", d.name)
	}
	return nodeInfo{
		ID: out.GetNodeId(), MaxVolumes: out.GetMaxVolumesPerNode(),
		Topology: out.GetAccessibleTopology().GetSegments(),
	}, nil
}

// capabilitiesOf returns the capabilities of a driver, which are read once per registration.
func (m *Manager) capabilitiesOf(ctx context.Context, d *driver, v podVolume) (capabilities, error) {
	d.mu.Lock()
	caps := d.caps
	d.mu.Unlock()
	if caps != nil {
		return caps, nil
	}
	var out *csipb.NodeGetCapabilitiesResponse
	err := m.call(ctx, d, v, "NodeGetCapabilities", func(ctx context.Context) (err error) {
		out, err = d.client.NodeGetCapabilities(ctx, &csipb.NodeGetCapabilitiesRequest{})
		return err
	})
	if err != nil {
		return nil, err
	}
	caps = capabilities{}
	for _, c := range out.GetCapabilities() {
		caps[c.GetRpc().GetType()] = true
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.caps = caps
	return caps, nil
}

// call runs one call of a driver with a deadline.
func (m *Manager) call(
	ctx context.Context, d *driver, v podVolume, method string, f func(context.Context) error,
) error {
	if v != (podVolume{}) {
		m.waiting(v, fmt.Sprintf("waiting for %s of CSI driver %s", method, d.name))
	}
	ctx, cancel := context.WithTimeout(ctx, m.opt.CallTimeout)
	defer cancel()
	m.opt.fault("before " + method)
	start := time.Now()
	err := f(ctx)
	m.opt.OnCall(d.name, "/csi.v1.Node/"+method, time.Since(start), err)
	m.opt.fault("after " + method)
	return err
}

// driverFor returns a registered driver. It waits for the registration, but the first time only
// shortly, so that users get an event soon.
func (m *Manager) driverFor(ctx context.Context, name string, v podVolume) (*driver, error) {
	m.mu.Lock()
	patience := min(m.opt.DriverTimeout, time.Second)
	if m.missing[v] {
		patience = m.opt.DriverTimeout
	}
	m.calls[v] = progress{fmt.Sprintf("waiting for CSI driver %s to register", name), time.Now()}
	m.mu.Unlock()
	wait, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var d *driver
	registered := m.waitFor(wait, func() bool {
		d = m.drivers[name]
		return d != nil
	})
	m.mu.Lock()
	defer m.mu.Unlock()
	if registered {
		delete(m.missing, v)
		return d, nil
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	m.missing[v] = true
	return nil, fmt.Errorf("driver name %s not found in the list of registered CSI drivers", name)
}

// isFinal reports whether a failed call has certainly ended without effect.
func isFinal(err error) bool {
	s, ok := status.FromError(err)
	if !ok {
		return true
	}
	switch s.Code() {
	case codes.Canceled, codes.DeadlineExceeded, codes.Unavailable, codes.ResourceExhausted, codes.Aborted:
		return false
	}
	return true
}

// isGone reports whether the driver does not know the volume.
func isGone(err error) bool { return status.Code(err) == codes.NotFound }

// prefixed adds the prefix of the kubelet's errors of this plugin.
func prefixed(format string, args ...any) error {
	return fmt.Errorf(strings.ReplaceAll(pluginName, "%", "%%")+": "+format, args...)
}
