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
)

// plugin is one registration of a device plugin, until the next of its resource.
type plugin struct {
	resource corev1.ResourceName
	endpoint string // name of its socket
	client   pluginapi.DevicePluginClient
	conn     *grpc.ClientConn
	asked    atomic.Pointer[pluginapi.DevicePluginOptions] // as the plugin says
	told     *pluginapi.DevicePluginOptions                // as it said when it registered
	cancel   context.CancelFunc
}

// options are what the plugin wants to be called for.
func (p *plugin) options() *pluginapi.DevicePluginOptions {
	if o := p.asked.Load(); o != nil {
		return o
	}
	return p.told
}

// begin follows a plugin that has registered, in place of an older one of its
// resource. False: the agent is leaving.
func (d *Manager) begin(q *pluginapi.RegisterRequest) bool {
	p := &plugin{resource: corev1.ResourceName(q.GetResourceName()), endpoint: q.GetEndpoint(), told: q.GetOptions()}
	conn, err := grpc.NewClient("passthrough:///"+p.endpoint,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithAuthority("localhost"), // servers may refuse one that is no name of a host
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return d.dial(ctx, p.endpoint) }),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.Config{BaseDelay: d.opt.RetryInterval, Multiplier: 1, MaxDelay: d.opt.RetryInterval}, MinConnectTimeout: reachBound}))
	if err != nil { // only options can be wrong
		d.opt.Log.Error("a device plugin cannot be reached", "resource", p.resource, "err", err)
		return false
	}
	p.conn, p.client = conn, pluginapi.NewDevicePluginClient(conn)
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.serving == nil || d.serving.Err() != nil {
		_ = conn.Close() // nothing was sent
		return false
	}
	ctx, cancel := context.WithCancel(d.serving)
	p.cancel = cancel
	r := d.sortOf(p.resource)
	if r.plugin != nil {
		r.plugin.cancel()
	}
	r.plugin, r.forgotten = p, false
	d.note()
	d.wg.Go(func() {
		defer func() { _ = conn.Close() }() // nothing is sent any more
		d.follow(ctx, p)
	})
	d.opt.Log.Info("a device plugin has registered", "resource", string(p.resource), "endpoint", p.endpoint)
	return true
}

// reachBound is how long one try to reach a plugin may take.
const reachBound = 10 * time.Second

// dial reaches a plugin's socket.
func (d *Manager) dial(ctx context.Context, endpoint string) (net.Conn, error) {
	if path := filepath.Join(d.opt.Dir, endpoint); len(path) <= longestSocket {
		return new(net.Dialer).DialContext(ctx, "unix", path)
	}
	at, err := openDir(d.opt.Dir)
	if err != nil {
		return nil, err
	}
	defer at.Close()
	return new(net.Dialer).DialContext(ctx, "unix", at.socket(endpoint))
}

// follow keeps the list of a plugin until another takes its place. One whose
// socket is gone may come back to it without registering; when it has been away
// for the grace it is given up.
func (d *Manager) follow(ctx context.Context, p *plugin) {
	left := time.Now() // a plugin that never answers is given up too
	for {
		err := d.watch(ctx, p)
		if ctx.Err() != nil {
			return
		}
		if d.away(p, err) {
			left = time.Now()
		}
		if time.Since(left) >= d.opt.PluginGracePeriod {
			d.forget(p)
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(min(d.opt.RetryInterval, d.opt.PluginGracePeriod)):
		}
	}
}

// watch takes in a plugin's lists until it ends or cannot be reached.
func (d *Manager) watch(ctx context.Context, p *plugin) error {
	call, cancel := context.WithTimeout(ctx, reachBound)
	options, err := p.client.GetDevicePluginOptions(call, &pluginapi.Empty{})
	cancel()
	switch {
	case err == nil:
		p.asked.Store(options)
	case status.Code(err) != codes.Unimplemented:
		return fmt.Errorf("ask for the options: %w", err)
	}
	stream, err := p.client.ListAndWatch(ctx, &pluginapi.Empty{})
	if err != nil {
		return fmt.Errorf("ask for the devices: %w", err)
	}
	for {
		list, err := stream.Recv()
		if err != nil {
			return fmt.Errorf("follow the devices: %w", err)
		}
		d.listed(p, list.GetDevices())
	}
}

// listed takes in a plugin's list: it replaces the one before.
func (d *Manager) listed(p *plugin, list []*pluginapi.Device) {
	now := make(map[string]device, len(list))
	for _, x := range list {
		if x.GetID() != "" {
			now[x.GetID()] = device{healthy: x.GetHealth() == pluginapi.Healthy}
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	r := d.resources[p.resource]
	if r.plugin != p || r.live && maps.Equal(r.devices, now) {
		return
	}
	r.devices, r.live = now, true
	d.opt.Log.Info("devices", "resource", string(p.resource), "listed", len(now), "healthy", len(r.healthyOnes()))
	d.ring()
}

// away notes that a plugin has ended: none of its devices is healthy. It reports
// whether it was there before.
func (d *Manager) away(p *plugin, err error) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	r := d.resources[p.resource]
	if r.plugin != p || !r.live {
		return false
	}
	r.live = false
	d.opt.Log.Warn("a device plugin has gone", "resource", string(p.resource), "err", errors.Unwrap(err))
	d.ring()
	return true
}

// forget takes the capacity away that a plugin had left.
func (d *Manager) forget(p *plugin) {
	d.mu.Lock()
	defer d.mu.Unlock()
	r := d.resources[p.resource]
	if r.plugin != p {
		return
	}
	r.devices, r.plugin, r.forgotten = nil, nil, true
	d.opt.Log.Warn("a device plugin has not come back", "resource", string(p.resource), "since", d.opt.PluginGracePeriod)
	d.note()
	d.ring()
}
