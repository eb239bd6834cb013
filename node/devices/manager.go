package devices

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/agent/plan"
)

// Options configures a Manager.
type Options struct {
	Dir        string               // socket directory: <root-dir>/device-plugins
	BootID     string               // boot ID of the host: responses of Allocate are valid for one boot
	Checkpoint []byte               // last state passed to SaveCheckpoint by an earlier run; nil: none
	PodKnown   func(types.UID) bool // pods that may still have allocations; nil: all

	Joined bool // the node has joined a server, whose Node may have resources without a plugin

	SaveCheckpoint func(state []byte)          // saves the allocations; must not block
	Flush          func(context.Context) error // returns when the saved state is on disk

	OnChange          func()                                    // resources or unavailable devices may have changed
	OnRegister        func(resource string)                     // a plugin has registered
	OnAllocate        func(resource string, took time.Duration) // a call of Allocate has ended
	PluginGracePeriod time.Duration                             // until the capacity expires; zero: 5 min, as upstream
	RetryInterval     time.Duration                             // interval of connection attempts; zero: 1 s
	Log               *slog.Logger
}

// Manager manages the device plugins of a node and their allocations. It is safe for concurrent
// use.
type Manager struct {
	opt     Options
	changed chan struct{} // signals a change; capacity 1
	wg      sync.WaitGroup

	mu              sync.Mutex
	serving         context.Context // context of Run; nil: not running
	registering     bool            // plugins can register
	registrationErr error           // why they cannot; nil: they can, or Run has not started
	resources       map[corev1.ResourceName]*deviceResource
	allocations     allocations
}

// deviceResource is a resource with its devices.
//
//	(from the checkpoint) ──Register──► connected ──stream ends──► disconnected ──grace period──► expired
//	                                       ▲───────────list─────────────┘
type deviceResource struct {
	name      corev1.ResourceName
	devices   map[string]device // last list
	plugin    *plugin           // last registration; nil: none in this run
	connected bool              // the list is current
	// expired: the plugin has been disconnected for too long. The resource is listed without
	// capacity as long as the agent runs, and is not saved in the checkpoint, unless it has
	// allocations.
	expired    bool
	allocating chan struct{} // token of the running allocation; capacity 1
}

// device is a device as listed by its plugin.
type device struct {
	healthy bool
	numa    string // NUMA nodes, separated by commas; empty: not known
}

// New returns a Manager with the state of the checkpoint. An unreadable checkpoint is logged and
// ignored.
func New(o Options) *Manager {
	o.PluginGracePeriod, o.RetryInterval = cmp.Or(o.PluginGracePeriod, 5*time.Minute),
		cmp.Or(o.RetryInterval, time.Second)
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.SaveCheckpoint == nil {
		o.SaveCheckpoint = func([]byte) {}
	}
	if o.Flush == nil {
		o.Flush = func(context.Context) error { return nil }
	}
	if o.OnChange == nil {
		o.OnChange = func() {}
	}
	if o.OnRegister == nil {
		o.OnRegister = func(string) {}
	}
	if o.OnAllocate == nil {
		o.OnAllocate = func(string, time.Duration) {}
	}
	d := &Manager{
		opt:         o,
		changed:     make(chan struct{}, 1),
		resources:   map[corev1.ResourceName]*deviceResource{},
		allocations: allocations{},
	}
	if err := d.restore(o.Checkpoint); err != nil {
		o.Log.Warn("device checkpoint unreadable; restoring allocations from running containers", "err", err)
	}
	return d
}

// resourceFor returns a resource, creating it if necessary. The caller holds mu.
func (d *Manager) resourceFor(name corev1.ResourceName) *deviceResource {
	r, known := d.resources[name]
	if !known {
		r = &deviceResource{name: name, allocating: make(chan struct{}, 1)}
		r.allocating <- struct{}{}
		d.resources[name] = r
	}
	return r
}

// healthy reports whether a device can be allocated.
func (r *deviceResource) healthy(id string) bool { return r.connected && r.devices[id].healthy }

// healthyIDs returns the healthy devices, sorted.
func (r *deviceResource) healthyIDs() (ids []string) {
	if !r.connected {
		return nil
	}
	for id, dev := range r.devices {
		if dev.healthy {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// notify signals a change. It never blocks.
func (d *Manager) notify() {
	select {
	case d.changed <- struct{}{}:
	default:
	}
}

// Free releases all devices of a pod. It never blocks.
func (d *Manager) Free(pod types.UID) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.allocations.free(pod) {
		d.save()
		d.notify()
	}
}

// RestoreAllocations adds the allocations that are recorded in the live containers of a pod, in case
// the checkpoint was lost.
func (d *Manager) RestoreAllocations(pod types.UID, containers []plan.Container) {
	d.mu.Lock()
	defer d.mu.Unlock()
	changed := false
	for _, c := range containers {
		if c.Live() && d.restoreAllocation(pod, c) {
			changed = true
		}
	}
	if changed {
		d.save()
		d.notify()
	}
}

func (d *Manager) restoreAllocation(pod types.UID, c plan.Container) (changed bool) {
	for name, list := range c.Devices {
		k := allocationKey{pod, c.Name, name}
		if _, known := d.allocations[k]; !known && len(list) > 0 {
			d.resourceFor(name)
			d.allocations[k] = allocation{IDs: slices.Clone(list), Init: c.Kind == plan.Init}
			changed = true
		}
	}
	return changed
}

// RegistrationError returns why no plugin can register. Nil: they can, or Run has not started.
func (d *Manager) RegistrationError() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.registrationErr
}
