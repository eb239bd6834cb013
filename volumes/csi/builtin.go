package csi

import (
	"context"
	"fmt"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
)

// BuiltIn is a driver that is part of the agent, and has no socket.
type BuiltIn struct {
	Client  csipb.NodeClient
	Version string // of the CSI specification
	Enabled bool   // register it when Run starts: an earlier run has
}

// builtInEndpoint is the endpoint of built-in drivers. No socket has it, because it is not absolute.
const builtInEndpoint = "built-in"

// inProcess is a driver without a connection.
type inProcess struct{ csipb.NodeClient }

func (inProcess) Close() error { return nil }

// client returns the connection to a driver.
func (m *Manager) client(name, endpoint string) (nodeClient, error) {
	if endpoint != builtInEndpoint {
		return m.opt.connect(endpoint)
	}
	b, ok := m.opt.BuiltIn[name]
	if !ok {
		return nil, fmt.Errorf("no built-in driver has the name %s", name)
	}
	return inProcess{b.Client}, nil
}

// Enable registers a built-in driver while Run runs. It does nothing if the driver is registered or being registered.
func (m *Manager) Enable(name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	ctx := m.running
	if ctx == nil || ctx.Err() != nil || m.enabled[name] {
		return
	}
	m.enabled[name] = true
	m.wg.Go(func() { m.registerBuiltIn(ctx, name) })
}

// registerBuiltIn registers a built-in driver and retries until it succeeds.
func (m *Manager) registerBuiltIn(ctx context.Context, name string) {
	for failures := 0; ; failures++ {
		err := m.Register(ctx, name, builtInEndpoint, []string{m.opt.BuiltIn[name].Version})
		if err == nil {
			m.opt.Log.Info("built-in CSI driver registered", "driver", name)
			return
		}
		if ctx.Err() != nil {
			return
		}
		delay := min(m.opt.RetryMin<<min(failures, 16), m.opt.RetryMax)
		m.opt.Log.Warn("built-in CSI driver not registered; retrying", "driver", name, "retryIn", delay, "err", err)
		select {
		case <-time.After(delay):
		case <-ctx.Done():
			return
		}
	}
}
