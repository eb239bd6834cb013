package registration

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"berth/internal/apiclient"
	"berth/podspec"
)

// Options configures a Registrar.
type Options struct {
	Client                *apiclient.Client
	HeartbeatClient       *apiclient.Client // with a separate connection
	Name                  string
	Installation          string // differs between machines and survives restarts and reboots
	RegisterNode          bool   // false: another component creates the Node
	Taints                []corev1.Taint
	ProviderID            string
	StatusUpdateFrequency time.Duration // interval of reading Facts; default 10 s
	StatusReportFrequency time.Duration // interval of reporting an unchanged status; default 5 min
	LeaseDuration         time.Duration // default 40 s
	Facts                 func(ctx context.Context) Facts
	Log                   *slog.Logger
	Now                   func() time.Time // default time.Now

	// OnNameVerified is called once when no other live machine is known to use the node's name. May
	// be nil.
	OnNameVerified func()
	// OnNode is called with the Node as the server has it. May be nil.
	OnNode func(*corev1.Node)
	// OnLeaseRenewed is called after each renewal of the lease. May be nil.
	OnLeaseRenewed func(took time.Duration, err error)
	// RecordEvent records an event of the node. May be nil.
	RecordEvent func(kind, reason, message string)
}

// Registrar keeps the node registered with the API server.
type Registrar struct {
	opt       Options
	callbacks chan func()
	trigger   chan struct{} // capacity 1

	triggered, synced atomic.Int64 // Trigger calls, and how many of them the server's status reflects

	// Owned by Run.
	node         *corev1.Node // as on the server; nil: unknown
	deletedNode  *corev1.Node // last state before it was deleted; nil: it was not
	lastStatus   *corev1.NodeStatus
	lastReported time.Time
	events       map[corev1.NodeConditionType]corev1.ConditionStatus // last reported by events
	registered   bool                                                // the Node exists on the server
	amended      bool                                                // the node's own fields are up to date
	mu           sync.Mutex
	uid          types.UID // UID of the Node; empty: unknown, or there is none
}

const requestTimeout = 10 * time.Second

// New returns a Registrar that has not sent any request.
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
	}{
		{&o.StatusUpdateFrequency, 10 * time.Second},
		{&o.StatusReportFrequency, 5 * time.Minute},
		{&o.LeaseDuration, 40 * time.Second},
	} {
		if *d.at <= 0 {
			*d.at = d.is
		}
	}
	return &Registrar{
		opt:       o,
		callbacks: make(chan func(), 16),
		trigger:   make(chan struct{}, 1),
		events:    map[corev1.NodeConditionType]corev1.ConditionStatus{},
	}
}

// UID returns the UID of the Node object. It is empty if it is unknown or if there is no Node.
func (p *Registrar) UID() types.UID {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.uid
}

// Trigger reports the status soon, because the facts have changed.
func (p *Registrar) Trigger() {
	p.triggered.Add(1)
	select {
	case p.trigger <- struct{}{}:
	default:
	}
}

// StatusSynced reports whether the server has the facts of the last Trigger.
func (p *Registrar) StatusSynced() bool { return p.synced.Load() >= p.triggered.Load() }

// Run keeps the node registered until ctx ends. It returns an error only if another machine uses
// the node's name. The error describes that machine and how to resolve the conflict.
func (p *Registrar) Run(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stop()
	if err := p.verifyName(ctx); err != nil {
		return err
	}
	p.opt.OnNameVerified()
	wg.Go(func() { p.renewLease(ctx) })
	retry, failing, following := p.initialRetry(), false, false
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case f := <-p.callbacks:
			f()
		case <-p.trigger:
		case <-timer.C:
		}
		err := p.syncNode(ctx)
		if p.registered && !following { // the watch now includes the Node
			following = true
			wg.Go(func() { p.watchNode(ctx) })
		}
		switch {
		case ctx.Err() != nil:
		case err == nil:
			if failing {
				p.opt.Log.Info("node status updates succeed again")
			}
			retry, failing = p.initialRetry(), false
			timer.Reset(p.opt.StatusUpdateFrequency)
		default:
			if !failing {
				p.opt.Log.Warn("node status update failed; retrying", "err", err)
			}
			failing = true
			timer.Reset(retry)
			retry = min(2*retry, p.opt.StatusUpdateFrequency)
		}
	}
}

// initialRetry is the delay after the first failure. It doubles up to StatusUpdateFrequency.
func (p *Registrar) initialRetry() time.Duration {
	return min(time.Second, p.opt.StatusUpdateFrequency)
}

func (p *Registrar) enqueue(ctx context.Context, f func()) {
	select {
	case p.callbacks <- f:
	case <-ctx.Done():
	}
}

// watchNode watches the node's own object.
func (p *Registrar) watchNode(ctx context.Context) {
	handle := func(n *corev1.Node) { p.enqueue(ctx, func() { p.handleNode(n) }) }
	// Accept older versions after a list, because the server's store may have been restored.
	reset := func(n *corev1.Node) { p.enqueue(ctx, func() { p.node = nil; p.handleNode(n) }) }
	p.opt.Client.Watch(ctx, apiclient.WatchOptions{
		Resource: apiclient.Nodes, FieldSelector: apiclient.ByName(p.opt.Name),
		OnReplace: func(list []runtime.Object) {
			if len(list) == 0 {
				handle(nil)
				return
			}
			if n, ok := list[0].(*corev1.Node); ok { // no other objects are watched
				reset(n)
			}
		},
		OnUpdate: func(o runtime.Object) {
			if n, ok := o.(*corev1.Node); ok {
				handle(n)
			}
		},
		OnDelete: func(runtime.Object) { handle(nil) },
	})
}

// handleNode updates the Node as on the server. Nil: it does not exist.
func (p *Registrar) handleNode(n *corev1.Node) {
	if n != nil && p.node != nil && older(n, p.node) {
		return // an event older than the last own write
	}
	if n == nil && p.node != nil {
		p.deletedNode = p.node
	}
	p.node = n
	p.mu.Lock()
	p.uid = ""
	if n != nil {
		p.uid = n.UID
	}
	p.mu.Unlock()
	if n == nil {
		if p.registered {
			p.opt.Log.Warn("node object deleted; registering again")
		}
		p.registered, p.lastStatus = false, nil
		return
	}
	p.opt.OnNode(n)
	if p.lastStatus != nil && !conditionsMatch(p.lastStatus, &n.Status) {
		p.lastStatus = nil // overwritten by another client: report it again
	}
}

// older reports whether a is an earlier version than b of the same object.
func older(a, b *corev1.Node) bool {
	if a.UID != b.UID {
		return false
	}
	order, err := resourceversion.CompareResourceVersion(a.ResourceVersion, b.ResourceVersion)
	return err == nil && order < 0
}

// syncNode registers the node if necessary and reports its status when due. If the server rejects a
// change of the Node, the status is still reported.
func (p *Registrar) syncNode(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	triggered := p.triggered.Load()
	f := p.opt.Facts(ctx)
	var refused error
	switch {
	case !p.registered:
		if refused = p.register(ctx, f); !p.registered {
			return refused
		}
	case !p.amended:
		refused = p.amend(ctx, p.node, f)
	}
	if err := p.reportStatus(ctx, f); err != nil {
		return errors.Join(refused, err)
	}
	p.synced.Store(triggered)
	return refused
}

// reportStatus reports the node status when due.
func (p *Registrar) reportStatus(ctx context.Context, f Facts) error {
	var has *corev1.NodeStatus
	if p.node != nil {
		has = &p.node.Status
	}
	now := p.status(f, has)
	if p.lastStatus != nil && sameStatus(p.lastStatus, &now) &&
		p.opt.Now().Sub(p.lastReported) < p.opt.StatusReportFrequency {
		return nil
	}
	patch, err := statusPatch(&now)
	if err != nil {
		return err
	}
	out := &corev1.Node{}
	err = p.opt.Client.Patch(ctx, apiclient.Nodes, "", p.opt.Name, types.StrategicMergePatchType, patch, out, "status")
	if apierrors.IsNotFound(err) {
		p.registered = false
	}
	if err != nil {
		return fmt.Errorf("update node status: %w", err)
	}
	p.recordConditionEvents(&now)
	p.lastStatus, p.lastReported, p.node = &now, p.opt.Now(), out
	return nil
}

// recordConditionEvents records events for changed conditions.
func (p *Registrar) recordConditionEvents(now *corev1.NodeStatus) {
	for _, c := range now.Conditions {
		was := cmp.Or(p.events[c.Type], corev1.ConditionUnknown)
		if was == c.Status {
			continue
		}
		p.events[c.Type] = c.Status
		switch {
		case c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue:
			p.opt.RecordEvent(corev1.EventTypeNormal, "NodeReady", fmt.Sprintf("Node %s status is now: NodeReady",
				p.opt.Name))
		case c.Type == corev1.NodeReady && was != corev1.ConditionUnknown:
			p.opt.RecordEvent(
				corev1.EventTypeNormal,
				"NodeNotReady",
				fmt.Sprintf("Node %s status is now: NodeNotReady", p.opt.Name),
			)
		case c.Type != corev1.NodeReady:
			reason := map[string]string{
				"KubeletHasSufficientMemory":   "NodeHasSufficientMemory",
				"KubeletHasInsufficientMemory": "NodeHasInsufficientMemory",
				"KubeletHasNoDiskPressure":     "NodeHasNoDiskPressure",
				"KubeletHasDiskPressure":       "NodeHasDiskPressure",
				"KubeletHasSufficientPID":      "NodeHasSufficientPID",
				"KubeletHasInsufficientPID":    "NodeHasInsufficientPID",
			}[c.Reason]
			if reason != "" { // other conditions have no event
				p.opt.RecordEvent(corev1.EventTypeNormal, reason, fmt.Sprintf("Node %s status is now: %s", p.opt.Name,
					reason))
			}
		}
	}
}

// register creates the Node, or recreates a deleted one, or uses the existing one. Taints are set
// only on a new Node, because removing one later was intended.
//
// The server may reject the creation of an existing Node for another reason than that it exists,
// for example because its store is full or because of a webhook. Whatever the error is, register
// therefore looks for the Node: pods cannot start before it is known.
func (p *Registrar) register(ctx context.Context, f Facts) error {
	var refused error
	if p.opt.RegisterNode {
		out := &corev1.Node{}
		refused = p.create(ctx, f, out)
		if refused == nil {
			p.opt.Log.Info("node registered", "node", p.opt.Name)
			p.registered, p.amended = true, true
			p.handleNode(out)
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

// create creates the Node, with the state of a deleted one if the server permits it.
func (p *Registrar) create(ctx context.Context, f Facts, out *corev1.Node) error {
	last := cmp.Or(p.node, p.deletedNode)
	err := p.opt.Client.Create(ctx, apiclient.Nodes, "", p.newNode(f, last), out)
	if last != nil && apierrors.IsForbidden(err) {
		err = p.opt.Client.Create(ctx, apiclient.Nodes, "", p.newNode(f, nil), out)
	}
	return err
}

// amend updates the fields of an existing Node that the node owns: its labels, the installation
// annotation and the provider ID. If the server rejects this, the Node is used unchanged.
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
				p.handleNode(has)
			}
			return fmt.Errorf("register node %s: apply patch %s: %w", p.opt.Name, text, err)
		}
		has = out
	}
	p.amended = true
	p.handleNode(has)
	return nil
}

// amendment returns the patch of a Node. Empty: no change.
func (p *Registrar) amendment(has *corev1.Node, f Facts) map[string]any {
	labels := map[string]any{} // nil removes a label
	for key := range has.Labels {
		if _, set := f.Labels[key]; !set && strings.HasPrefix(key, podspec.FeatureLabelPrefix) {
			labels[key] = nil // the previous version did not support the feature
		}
	}
	for key, value := range f.Labels {
		if was, there := has.Labels[key]; was != value &&
			(!there || ownsLabel(key) || p.opt.RegisterNode) {
			labels[key] = value
		}
	}
	meta := map[string]any{}
	if len(labels) > 0 {
		meta["labels"] = labels
	}
	annotations := p.annotations()
	maps.DeleteFunc(annotations, func(key, value string) bool { return has.Annotations[key] == value })
	if len(annotations) > 0 {
		meta["annotations"] = annotations
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

// statusPatch replaces the node's own status fields. Conditions of other components are kept.
func statusPatch(st *corev1.NodeStatus) ([]byte, error) {
	status, err := apiclient.JSONMap(st)
	if err != nil {
		return nil, err
	}
	list, _ := status["addresses"].([]any)
	status["addresses"] = append(list, map[string]any{"$patch": "replace"})
	for _, field := range []string{"images", "runtimeHandlers", "features", "declaredFeatures", "volumesInUse"} {
		if _, set := status[field]; !set {
			status[field] = nil
		}
	}
	return json.Marshal(map[string]any{"status": status})
}
