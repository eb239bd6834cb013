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

// Options are what Devices are made of.
type Options struct {
	Dir        string               // of the sockets: <root-dir>/device-plugins
	BootID     string               // of this boot of the host: what Allocate has set up ends with it
	Checkpoint []byte               // what Note was last given in an earlier life; nil: nothing
	PodKnown   func(types.UID) bool // pods that may still hold what is kept; nil: all

	Joined bool // to a server, whose Node may have resources that no plugin knows of

	SaveCheckpoint func(state []byte)          // keeps the ledger; never waits
	Flush          func(context.Context) error // returns when what was noted is on disk

	OnChange          func()                                    // what is offered, or what starts wait for, may be otherwise now
	OnRegister        func(resource string)                     // a plugin has registered
	OnAllocate        func(resource string, took time.Duration) // a call of Allocate has ended
	PluginGracePeriod time.Duration                             // from a plugin's end to its capacity's end; zero: 5 min, as upstream
	RetryInterval     time.Duration                             // between two tries to reach a plugin; zero: 1 s
	Log               *slog.Logger
}

// Manager are the device plugins of a node and what they have given. Its
// methods are safe for concurrent use.
type Manager struct {
	opt  Options
	bell chan struct{} // something has changed; capacity 1
	wg   sync.WaitGroup

	mu        sync.Mutex
	serving   context.Context // of Run; nil: it does not run
	up        bool            // plugins can register
	down      error           // why they cannot; nil: they can, or were not asked to yet
	resources map[corev1.ResourceName]*sort
	held      ledger
}

// sort is one kind of device.
//
//	(known from an earlier life) ──Register──► listed ──stream ends──► gone ──Grace──► forgotten
//	                                              ▲──────────list────────┘
type sort struct {
	name    corev1.ResourceName
	devices map[string]device // as last listed
	plugin  *plugin           // the newest that registered; nil: none in this life
	live    bool              // its list is current
	// forgotten: its plugin has been away for too long. The node lists it with
	// nothing for as long as the agent runs, and the next life knows it no more,
	// unless somebody holds some of it.
	forgotten bool
	turn      chan struct{} // holds one token: who has it allocates
}

// device is one as its plugin lists it.
type device struct{ healthy bool }

// New returns the devices of a node with what is kept of an earlier life. What
// of it cannot be read is dropped, and told.
func New(o Options) *Manager {
	o.PluginGracePeriod, o.RetryInterval = cmp.Or(o.PluginGracePeriod, 5*time.Minute), cmp.Or(o.RetryInterval, time.Second)
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
	d := &Manager{opt: o, bell: make(chan struct{}, 1), resources: map[corev1.ResourceName]*sort{}, held: ledger{}}
	if err := d.restore(o.Checkpoint); err != nil {
		o.Log.Warn("who holds which device is not known from the store: it is learnt from the runtime", "err", err)
	}
	return d
}

// sortOf returns the resource of that name, made if need be. The caller holds mu.
func (d *Manager) sortOf(name corev1.ResourceName) *sort {
	r, known := d.resources[name]
	if !known {
		r = &sort{name: name, turn: make(chan struct{}, 1)}
		r.turn <- struct{}{}
		d.resources[name] = r
	}
	return r
}

// healthy reports whether a device is there to be given.
func (r *sort) healthy(id string) bool { return r.live && r.devices[id].healthy }

// healthyOnes are those, in order.
func (r *sort) healthyOnes() (ids []string) {
	if !r.live {
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

// ring says that something has changed. It never waits.
func (d *Manager) ring() {
	select {
	case d.bell <- struct{}{}:
	default:
	}
}

// Free takes back all that a pod holds. It never waits.
func (d *Manager) Free(pod types.UID) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.held.free(pod) {
		d.note()
		d.ring()
	}
}

// RestoreAllocation says what a container of this node was given, as the container itself
// tells. It matters where the store has lost it.
func (d *Manager) RestoreAllocation(pod types.UID, container string, kind plan.ContainerKind, ids map[corev1.ResourceName][]string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	changed := false
	for name, list := range ids {
		k := slot{pod, container, name}
		if _, known := d.held[k]; !known && len(list) > 0 {
			d.sortOf(name)
			d.held[k] = holding{IDs: slices.Clone(list), Init: kind == plan.Init}
			changed = true
		}
	}
	if changed {
		d.note()
		d.ring()
	}
}

// RegistrationError says why no plugin can register; nil: they can, or Run has not begun.
func (d *Manager) RegistrationError() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.down
}
