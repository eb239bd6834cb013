package devices

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"path/filepath"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"berth/node/plugins"
)

// plugin is one registration of a device plugin.
type plugin struct {
	resource          corev1.ResourceName
	endpoint          string // file name of its socket
	client            pluginapi.DevicePluginClient
	conn              *grpc.ClientConn
	currentOptions    atomic.Pointer[pluginapi.DevicePluginOptions] // response of GetDevicePluginOptions
	registeredOptions *pluginapi.DevicePluginOptions                // options of the registration
	cancel            context.CancelFunc
}

// options returns the options of the plugin.
func (p *plugin) options() *pluginapi.DevicePluginOptions {
	if o := p.currentOptions.Load(); o != nil {
		return o
	}
	return p.registeredOptions
}

// connect starts to follow a registered plugin and replaces an earlier one of the same resource. It
// returns false if the agent is shutting down.
func (d *Manager) connect(q *pluginapi.RegisterRequest) bool {
	p := &plugin{
		resource:          corev1.ResourceName(q.GetResourceName()),
		endpoint:          q.GetEndpoint(),
		registeredOptions: q.GetOptions(),
	}
	conn, err := grpc.NewClient(
		"passthrough:///"+p.endpoint,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithAuthority("localhost"), // servers may reject a path as authority
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return d.dial(ctx, p.endpoint)
		}),
		grpc.WithConnectParams(
			grpc.ConnectParams{
				Backoff: backoff.Config{BaseDelay: d.opt.RetryInterval, Multiplier: 1,
					MaxDelay: d.opt.RetryInterval},
				MinConnectTimeout: connectTimeout,
			},
		),
	)
	if err != nil { // invalid options
		d.opt.Log.Error("device plugin connection failed", "resourceName", p.resource, "err", err)
		return false
	}
	p.conn, p.client = conn, pluginapi.NewDevicePluginClient(conn)
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.serving == nil || d.serving.Err() != nil {
		_ = conn.Close() // unused
		return false
	}
	ctx, cancel := context.WithCancel(d.serving)
	p.cancel = cancel
	r := d.resourceFor(p.resource)
	if r.plugin != nil {
		r.plugin.cancel()
	}
	r.plugin, r.expired = p, false
	d.save()
	d.wg.Go(func() {
		defer func() { _ = conn.Close() }() // no more requests
		d.watchPlugin(ctx, p)
	})
	d.opt.Log.Info("device plugin registered", "resourceName", string(p.resource), "endpoint", p.endpoint)
	return true
}

// connectTimeout limits one connection attempt.
const connectTimeout = 10 * time.Second

// dial connects to a plugin's socket.
func (d *Manager) dial(ctx context.Context, endpoint string) (net.Conn, error) {
	if filepath.IsAbs(endpoint) { // found by the plugin watcher
		return plugins.Dial(ctx, endpoint)
	}
	if path := filepath.Join(d.opt.Dir, endpoint); len(path) <= maxSocketPath {
		return new(net.Dialer).DialContext(ctx, "unix", path)
	}
	at, err := openDir(d.opt.Dir)
	if err != nil {
		return nil, err
	}
	defer at.Close()
	return new(net.Dialer).DialContext(ctx, "unix", at.socket(endpoint))
}

// watchPlugin follows the device list of a plugin until another registration replaces it. A plugin
// whose socket was gone may return without registering again. After the grace period its resource
// expires.
func (d *Manager) watchPlugin(ctx context.Context, p *plugin) {
	disconnectedAt := time.Now() // a plugin that never responds expires, too
	for {
		err := d.listAndWatch(ctx, p)
		if ctx.Err() != nil {
			return
		}
		if d.disconnected(p, err) {
			disconnectedAt = time.Now()
		}
		if time.Since(disconnectedAt) >= d.opt.PluginGracePeriod {
			d.expire(p)
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(min(d.opt.RetryInterval, d.opt.PluginGracePeriod)):
		}
	}
}

// listAndWatch handles a plugin's device lists until the stream ends or the plugin cannot be
// reached.
func (d *Manager) listAndWatch(ctx context.Context, p *plugin) error {
	call, cancel := context.WithTimeout(ctx, connectTimeout)
	options, err := p.client.GetDevicePluginOptions(call, &pluginapi.Empty{})
	cancel()
	switch {
	case err == nil:
		p.currentOptions.Store(options)
	case status.Code(err) != codes.Unimplemented:
		return fmt.Errorf("get device plugin options: %w", err)
	}
	stream, err := p.client.ListAndWatch(ctx, &pluginapi.Empty{})
	if err != nil {
		return fmt.Errorf("list and watch devices: %w", err)
	}
	for {
		list, err := stream.Recv()
		if err != nil {
			return fmt.Errorf("receive devices: %w", err)
		}
		d.setDevices(p, list.GetDevices())
	}
}

// setDevices replaces the device list of a plugin.
func (d *Manager) setDevices(p *plugin, list []*pluginapi.Device) {
	now := make(map[string]device, len(list))
	for _, x := range list {
		if x.GetID() != "" {
			now[x.GetID()] = device{x.GetHealth() == pluginapi.Healthy, numaNodes(x.GetTopology())}
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	r := d.resources[p.resource]
	if r.plugin != p || r.connected && maps.Equal(r.devices, now) {
		return
	}
	r.devices, r.connected = now, true
	d.opt.Log.Info("device list updated", "resourceName", string(p.resource), "listed", len(now),
		"healthy", len(r.healthyIDs()))
	d.notify()
}

// disconnected marks the devices of a plugin as unhealthy. It reports whether the plugin was
// connected.
func (d *Manager) disconnected(p *plugin, err error) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	r := d.resources[p.resource]
	if r.plugin != p || !r.connected {
		return false
	}
	r.connected = false
	d.opt.Log.Warn("device plugin disconnected", "resourceName", string(p.resource), "err", errors.Unwrap(err))
	d.notify()
	return true
}

// expire removes the capacity of a plugin that did not return.
func (d *Manager) expire(p *plugin) {
	d.mu.Lock()
	defer d.mu.Unlock()
	r := d.resources[p.resource]
	if r.plugin != p {
		return
	}
	r.devices, r.plugin, r.expired = nil, nil, true
	d.opt.Log.Warn("device plugin expired", "resourceName", string(p.resource), "gracePeriod", d.opt.PluginGracePeriod)
	d.save()
	d.notify()
}
