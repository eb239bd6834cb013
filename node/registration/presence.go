package registration

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"berth/internal/apiclient"
)

// Options is what New needs.
type Options struct {
	Client                *apiclient.Client
	HeartbeatClient       *apiclient.Client // with a connection of its own
	Name                  string
	Installation          string // differs between machines, and stays over restarts and reboots
	RegisterNode          bool   // false: somebody else makes the Node
	Taints                []corev1.Taint
	ProviderID            string
	StatusUpdateFrequency time.Duration // between looks at Facts; default 10 s
	StatusReportFrequency time.Duration // between reports of what has not changed; default 5 min
	LeaseDuration         time.Duration // how long the lease holds; default 40 s
	Facts                 func(ctx context.Context) Facts
	Log                   *slog.Logger
	Now                   func() time.Time // default time.Now

	// OnNameVerified is called once, when no other machine is alive under the node's name, as
	// far as anybody can tell. May be nil.
	OnNameVerified func()
	// OnNode is told the Node as the server has it. May be nil.
	OnNode func(*corev1.Node)
	// OnLeaseRenewed is told how each renewal of the lease went. May be nil.
	OnLeaseRenewed func(took time.Duration, err error)
	// RecordEvent is told what happens to the node that users want to know. May be nil.
	RecordEvent func(kind, reason, message string)
}

// Registrar keeps the node known to its server.
type Registrar struct {
	opt   Options
	calls chan func()
	nudge chan struct{} // capacity 1

	asked, told atomic.Int64 // calls of Nudge; of them those whose facts the server has

	// Of Run alone.
	has        *corev1.Node // as the server has it; nil: not heard
	gone       *corev1.Node // as the server had it before it was taken away; nil: it was not
	said       *corev1.NodeStatus
	saidAt     time.Time
	events     map[corev1.NodeConditionType]corev1.ConditionStatus // as they were last told by them
	registered bool                                                // the server has the Node
	amended    bool                                                // with what the node itself keeps right of it
	mu         sync.Mutex
	uid        types.UID // of the Node; empty: not known, or there is none
}

const requestBound = 10 * time.Second

// New returns a presence that has asked nothing yet.
func New(o Options) *Registrar {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.OnNameVerified == nil {
		o.OnNameVerified = func() {}
	}
	if o.OnNode == nil {
		o.OnNode = func(*corev1.Node) {}
	}
	if o.OnLeaseRenewed == nil {
		o.OnLeaseRenewed = func(time.Duration, error) {}
	}
	if o.RecordEvent == nil {
		o.RecordEvent = func(string, string, string) {}
	}
	for _, d := range []struct {
		at *time.Duration
		is time.Duration
	}{{&o.StatusUpdateFrequency, 10 * time.Second}, {&o.StatusReportFrequency, 5 * time.Minute}, {&o.LeaseDuration, 40 * time.Second}} {
		if *d.at <= 0 {
			*d.at = d.is
		}
	}
	return &Registrar{opt: o, calls: make(chan func(), 16), nudge: make(chan struct{}, 1), events: map[corev1.NodeConditionType]corev1.ConditionStatus{}}
}

// UID is that of the Node object; empty: it is not known yet, or there is none.
func (p *Registrar) UID() types.UID {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.uid
}

// Trigger has the facts looked at now: something of them has changed.
func (p *Registrar) Trigger() {
	p.asked.Add(1)
	select {
	case p.nudge <- struct{}{}:
	default:
	}
}

// StatusSynced reports whether the server knows what the facts were at the last Nudge.
func (p *Registrar) StatusSynced() bool { return p.told.Load() >= p.asked.Load() }

// Run keeps the node known until ctx ends. It ends before that only when another
// machine has the node's name: the error says which, and the way out.
func (p *Registrar) Run(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stop()
	if err := p.settleName(ctx); err != nil {
		return err
	}
	p.opt.OnNameVerified()
	wg.Go(func() { p.renew(ctx) })
	retry, failing, following := p.retryFirst(), false, false
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case f := <-p.calls:
			f()
		case <-p.nudge:
		case <-timer.C:
		}
		err := p.say(ctx)
		if p.registered && !following { // what is heard from here on knows of it
			following = true
			wg.Go(func() { p.follow(ctx) })
		}
		switch {
		case ctx.Err() != nil:
		case err == nil:
			if failing {
				p.opt.Log.Info("the server takes again what the node says of itself")
			}
			retry, failing = p.retryFirst(), false
			timer.Reset(p.opt.StatusUpdateFrequency)
		default:
			if !failing {
				p.opt.Log.Warn("the server does not take all that the node says of itself; it is told again", "err", err)
			}
			failing = true
			timer.Reset(retry)
			retry = min(2*retry, p.opt.StatusUpdateFrequency)
		}
	}
}

// retryFirst is how long after a failure the status is told again; after more of
// them twice as long each, up to Every.
func (p *Registrar) retryFirst() time.Duration { return min(time.Second, p.opt.StatusUpdateFrequency) }

func (p *Registrar) do(ctx context.Context, f func()) {
	select {
	case p.calls <- f:
	case <-ctx.Done():
	}
}

// follow hears of the node's own object.
func (p *Registrar) follow(ctx context.Context) {
	heard := func(n *corev1.Node) { p.do(ctx, func() { p.heard(n) }) }
	anew := func(n *corev1.Node) { p.do(ctx, func() { p.has = nil; p.heard(n) }) } // of a store that was brought back, too
	p.opt.Client.Watch(ctx, apiclient.WatchOptions{
		Resource: apiclient.Nodes, FieldSelector: apiclient.ByName(p.opt.Name),
		OnReplace: func(list []runtime.Object) {
			if len(list) == 0 {
				heard(nil)
				return
			}
			if n, ok := list[0].(*corev1.Node); ok { // nothing else is followed
				anew(n)
			}
		},
		OnUpdate: func(o runtime.Object) {
			if n, ok := o.(*corev1.Node); ok {
				heard(n)
			}
		},
		OnDelete: func(runtime.Object) { heard(nil) },
	})
}

// heard takes in the node as the server has it; nil: it is not there.
func (p *Registrar) heard(n *corev1.Node) {
	if n != nil && p.has != nil && older(n, p.has) {
		return // what was on its way while the node's own words were written
	}
	if n == nil && p.has != nil {
		p.gone = p.has
	}
	p.has = n
	p.mu.Lock()
	p.uid = ""
	if n != nil {
		p.uid = n.UID
	}
	p.mu.Unlock()
	if n == nil {
		if p.registered {
			p.opt.Log.Warn("the Node is not on the server any more: it is registered again")
		}
		p.registered, p.said = false, nil
		return
	}
	p.opt.OnNode(n)
	if p.said != nil && !agrees(p.said, &n.Status) {
		p.said = nil // others have written over it: it is said again
	}
}

// older tells whether a is of an earlier version than b of the same object.
func older(a, b *corev1.Node) bool {
	if a.UID != b.UID {
		return false
	}
	order, err := resourceversion.CompareResourceVersion(a.ResourceVersion, b.ResourceVersion)
	return err == nil && order < 0
}

// say registers the node if it is not, and tells its status if that is due. That
// the server does not let it change its Node keeps nothing else back.
func (p *Registrar) say(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, requestBound)
	defer cancel()
	asked := p.asked.Load()
	f := p.opt.Facts(ctx)
	var refused error
	switch {
	case !p.registered:
		if refused = p.register(ctx, f); !p.registered {
			return refused
		}
	case !p.amended:
		refused = p.amend(ctx, p.has, f)
	}
	if err := p.report(ctx, f); err != nil {
		return errors.Join(refused, err)
	}
	p.told.Store(asked)
	return refused
}

// report tells the node's status if that is due.
func (p *Registrar) report(ctx context.Context, f Facts) error {
	var has *corev1.NodeStatus
	if p.has != nil {
		has = &p.has.Status
	}
	now := p.status(f, has)
	if p.said != nil && sameStatus(p.said, &now) && p.opt.Now().Sub(p.saidAt) < p.opt.StatusReportFrequency {
		return nil
	}
	patch, err := patchOf(&now)
	if err != nil {
		return err
	}
	out := &corev1.Node{}
	err = p.opt.Client.Patch(ctx, apiclient.Nodes, "", p.opt.Name, types.StrategicMergePatchType, patch, out, "status")
	if apierrors.IsNotFound(err) {
		p.registered = false
	}
	if err != nil {
		return fmt.Errorf("node status: %w", err)
	}
	p.tellChange(&now)
	p.said, p.saidAt, p.has = &now, p.opt.Now(), out
	return nil
}

// tellChange makes events of conditions that have changed.
func (p *Registrar) tellChange(now *corev1.NodeStatus) {
	for _, c := range now.Conditions {
		was := cmp.Or(p.events[c.Type], corev1.ConditionUnknown)
		if was == c.Status {
			continue
		}
		p.events[c.Type] = c.Status
		switch {
		case c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue:
			p.opt.RecordEvent(corev1.EventTypeNormal, "NodeReady", fmt.Sprintf("Node %s status is now: NodeReady", p.opt.Name))
		case c.Type == corev1.NodeReady && was != corev1.ConditionUnknown:
			p.opt.RecordEvent(corev1.EventTypeNormal, "NodeNotReady", fmt.Sprintf("Node %s status is now: NodeNotReady", p.opt.Name))
		case c.Type != corev1.NodeReady:
			reason := map[string]string{"KubeletHasSufficientMemory": "NodeHasSufficientMemory", "KubeletHasInsufficientMemory": "NodeHasInsufficientMemory",
				"KubeletHasNoDiskPressure": "NodeHasNoDiskPressure", "KubeletHasDiskPressure": "NodeHasDiskPressure",
				"KubeletHasSufficientPID": "NodeHasSufficientPID", "KubeletHasInsufficientPID": "NodeHasInsufficientPID"}[c.Reason]
			if reason != "" { // of other conditions there is no event
				p.opt.RecordEvent(corev1.EventTypeNormal, reason, fmt.Sprintf("Node %s status is now: %s", p.opt.Name, reason))
			}
		}
	}
}

// register makes the Node, as it was if it was taken away, or takes the one that is
// there. Taints are for a new one only: who took one away meant it.
//
// A server may refuse to make what it has before it says that it has it: one whose
// store is full, one that asks others first. So whatever it answers, the Node is
// looked for: pods wait until it is heard.
func (p *Registrar) register(ctx context.Context, f Facts) error {
	var refused error
	if p.opt.RegisterNode {
		out := &corev1.Node{}
		refused = p.create(ctx, f, out)
		if refused == nil {
			p.opt.Log.Info("the node is registered", "node", p.opt.Name)
			p.registered, p.amended = true, true
			p.heard(out)
			return nil
		}
	}
	has := &corev1.Node{}
	if err := p.opt.Client.Get(ctx, apiclient.Nodes, "", p.opt.Name, has); err != nil {
		if refused != nil && !apierrors.IsAlreadyExists(refused) {
			err = refused
		}
		return fmt.Errorf("register node %s: %w", p.opt.Name, err)
	}
	p.registered, p.amended = true, false
	return p.amend(ctx, has, f)
}

// create makes the Node, as it was if the server lets the node say all of that.
func (p *Registrar) create(ctx context.Context, f Facts, out *corev1.Node) error {
	last := cmp.Or(p.has, p.gone)
	err := p.opt.Client.Create(ctx, apiclient.Nodes, "", p.object(f, last), out)
	if last != nil && apierrors.IsForbidden(err) {
		err = p.opt.Client.Create(ctx, apiclient.Nodes, "", p.object(f, nil), out)
	}
	return err
}

// amend brings a Node that was there up to what the node itself keeps right: its
// labels, the installation, the provider's ID. A Node that may not be changed is
// heard as it is.
func (p *Registrar) amend(ctx context.Context, has *corev1.Node, f Facts) error {
	if patch := p.amendment(has, f); len(patch) > 0 {
		text, err := json.Marshal(patch)
		if err != nil {
			return err
		}
		out := &corev1.Node{}
		err = p.opt.Client.Patch(ctx, apiclient.Nodes, "", p.opt.Name, types.StrategicMergePatchType, text, out)
		if err != nil {
			p.registered = !apierrors.IsNotFound(err)
			if p.registered {
				p.heard(has)
			}
			return fmt.Errorf("register node %s: change it by %s: %w", p.opt.Name, text, err)
		}
		has = out
	}
	p.amended = true
	p.heard(has)
	return nil
}

// amendment is what is to be changed of a Node; empty: nothing.
func (p *Registrar) amendment(has *corev1.Node, f Facts) map[string]any {
	labels := map[string]string{}
	for key, value := range f.Labels {
		if was, there := has.Labels[key]; was != value && (!there || slices.Contains(owned, key) || p.opt.RegisterNode) {
			labels[key] = value
		}
	}
	meta := map[string]any{}
	if len(labels) > 0 {
		meta["labels"] = labels
	}
	if has.Annotations[InstallationAnnotation] != p.opt.Installation {
		meta["annotations"] = map[string]string{InstallationAnnotation: p.opt.Installation}
	}
	patch := map[string]any{}
	if len(meta) > 0 {
		patch["metadata"] = meta
	}
	if has.Spec.ProviderID == "" && p.opt.ProviderID != "" {
		patch["spec"] = map[string]any{"providerID": p.opt.ProviderID}
	}
	return patch
}

// patchOf replaces what the node says of itself; conditions of others stay.
func patchOf(st *corev1.NodeStatus) ([]byte, error) {
	status, err := apiclient.JSONMap(st)
	if err != nil {
		return nil, err
	}
	list, _ := status["addresses"].([]any)
	status["addresses"] = append(list, map[string]any{"$patch": "replace"})
	for _, field := range []string{"images", "runtimeHandlers", "features"} {
		if _, set := status[field]; !set {
			status[field] = nil
		}
	}
	return json.Marshal(map[string]any{"status": status})
}
