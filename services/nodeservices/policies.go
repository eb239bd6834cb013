package nodeservices

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/agent/plan"
	"berth/nodeapi"
	"berth/services/enablement"
	"berth/services/policy"
)

// Keys of what is remembered about network policies.
const (
	// keyPolicy is set while the agent enforces network policies.
	keyPolicy = Prefix + "network-policy"
	// keySource has the source of addresses that an earlier process has found.
	keySource = Prefix + "network-policy-source"
)

// Sources of the addresses that policies select.
const (
	fromAddresses = "addresses" // berth-control publishes them
	fromPods      = "pods"      // the node reads the pods and namespaces of the cluster
)

const (
	// installTimeout limits how long the containers of a pod wait for its rules. Packets of a pod without
	// rules are dropped while there are policies, so a start after it is safe.
	installTimeout = 10 * time.Second
	// decisionTimeout limits how long the API server is waited for if an earlier process knew the source,
	// or if nothing is known and the setting is auto.
	decisionTimeout = 2 * time.Second
	decisionRetry   = 2 * time.Second
)

// PolicyOptions configures Policies. All fields are required, unless the setting is off.
type PolicyOptions struct {
	// Setting is enablement.Auto, On or Off. Auto is on if the server publishes addresses.
	Setting string
	// Publishes reports whether the server publishes the addresses that policies select.
	Publishes func(ctx context.Context) (bool, error)
	Store     *policy.Store
	// Restored are the values of the local store with policy.CheckpointPrefix, and PutAll stores some.
	Restored map[string][]byte
	PutAll   func(values map[string][]byte)
	// Stored are the values of the local store with Prefix. Put stores a value; nil deletes it.
	Stored map[string][]byte
	Put    func(key string, value []byte)
	// Needed is called once if policies are needed, with whether addresses are read instead of pods.
	Needed func(addresses bool)
	// LoadBridgeFilter loads the kernel module that makes bridged packets pass the rules.
	LoadBridgeFilter func() error
	// OnProblem is called with a pod whose rules are not in place in time.
	OnProblem func(pod *corev1.Pod, message string)
	Log       *slog.Logger
}

// Policies enforces NetworkPolicies on the pods of the node. It is safe for concurrent use.
type Policies struct {
	opt        PolicyOptions
	enforcer   *policy.Enforcer
	remembered string        // source that an earlier process has found; empty: none
	start      time.Time     // of the wait for the decision
	decided    chan struct{} // closed when on and current are known
	current    string        // source that counts for this process
	on         atomic.Bool

	mu   sync.Mutex
	pods map[types.UID][]netip.Addr // addresses of the pods of the node
}

// NewPolicies returns Policies. It changes nothing.
func NewPolicies(o PolicyOptions) *Policies {
	p := &Policies{
		opt: o, pods: map[types.UID][]netip.Addr{}, decided: make(chan struct{}), start: time.Now(),
		remembered: string(o.Stored[keySource]),
	}
	if p.remembered == "" && o.Setting == enablement.On && o.Stored[keyPolicy] != nil {
		p.remembered = fromPods // by a version that knew no other source
	}
	if o.Setting != enablement.Off {
		p.enforcer = policy.New(policy.Options{Store: o.Store, LoadBridgeFilter: o.LoadBridgeFilter, Log: o.Log})
	}
	return p
}

// Enforcer returns the Enforcer, or nil if policies are turned off.
func (p *Policies) Enforcer() *policy.Enforcer { return p.enforcer }

// Run enforces policies until ctx ends. The rules stay. If policies are not enforced, it removes the rules
// and the stored input of an earlier configuration, and returns.
func (p *Policies) Run(ctx context.Context) error {
	source, err := p.source(ctx)
	if err != nil {
		return nil
	}
	p.current = source
	if !enabled(p.opt.Setting, source) {
		close(p.decided)
		p.remove()
		return nil
	}
	if source == fromAddresses {
		p.opt.Store.UseGroups()
	}
	checkpoint := &policy.Checkpoint{Store: p.opt.Store, Put: p.opt.PutAll}
	if err := checkpoint.Restore(p.opt.Restored); err != nil {
		p.opt.Log.Warn("stored network policies are unreadable, pods wait for the API server", "err", err)
	}
	p.opt.Put(keyPolicy, []byte(enablement.On)) // before the first rule
	p.on.Store(true)
	close(p.decided)
	p.opt.Needed(source == fromAddresses)
	var writing sync.WaitGroup
	defer writing.Wait()
	writing.Go(func() { checkpoint.Run(ctx) })
	return p.enforcer.Run(ctx)
}

// enabled reports whether policies are enforced with a setting and the source that the server offers.
func enabled(setting, source string) bool {
	return setting == enablement.On || setting == enablement.Auto && source == fromAddresses
}

// source returns the source of addresses. Without an answer of the API server, that of an earlier process
// counts. The error is that of ctx.
func (p *Policies) source(ctx context.Context) (string, error) {
	if p.opt.Setting == enablement.Off {
		return "", nil
	}
	for {
		source, err := p.ask(ctx)
		switch {
		case err == nil:
			if source != p.remembered {
				p.opt.Put(keySource, []byte(source))
			}
			p.opt.Log.Info("source of network policy addresses decided", "source", source)
			return source, nil
		case p.remembered != "" && time.Since(p.start) >= decisionTimeout:
			p.opt.Log.Info("API server not reachable, using the last known source of network policy addresses",
				"source", p.remembered)
			return p.remembered, nil
		}
		p.opt.Log.Debug("resources of the API server could not be read", "err", err)
		select {
		case <-ctx.Done():
			return "", ctx.Err()
		case <-time.After(decisionRetry):
		}
	}
}

// ask returns the source that the API server offers.
func (p *Policies) ask(ctx context.Context) (source string, err error) {
	ctx, cancel := context.WithTimeout(ctx, decisionTimeout)
	defer cancel()
	published, err := p.opt.Publishes(ctx)
	if published {
		return fromAddresses, err
	}
	return fromPods, err
}

// remove removes the rules and the stored input of an earlier configuration.
func (p *Policies) remove() {
	if len(p.opt.Restored) > 0 {
		gone := make(map[string][]byte, len(p.opt.Restored))
		for key := range p.opt.Restored {
			gone[key] = nil
		}
		p.opt.PutAll(gone)
	}
	if p.opt.Stored[keyPolicy] == nil {
		return
	}
	if err := removePolicies(p.opt.Log)(); err != nil {
		p.opt.Log.Error("rules of network policies could not be removed", "err", err)
		return
	}
	p.opt.Put(keyPolicy, nil)
}

// PodIPsChanged installs the rules of a pod of the node before its containers start, or removes them when
// it has no addresses any more.
func (p *Policies) PodIPsChanged(pod *corev1.Pod, ips []string) {
	if p.isOff() {
		return
	}
	if len(ips) == 0 {
		p.mu.Lock()
		delete(p.pods, pod.UID)
		p.mu.Unlock()
		p.opt.Store.DeleteLocalPod(pod.UID)
		return
	}
	p.setPod(pod, ips)
	ctx, cancel := context.WithTimeout(context.Background(), installTimeout)
	defer cancel()
	if late := !p.waitDecided(ctx); late || !p.on.Load() {
		if late && enabled(p.opt.Setting, p.remembered) {
			p.opt.OnProblem(pod, "the rules of network policies are not installed: the API server is not reachable")
		}
		return
	}
	if err := p.enforcer.WaitInstalled(ctx, pod.UID); err != nil && !errors.Is(err, policy.ErrUnknownPod) {
		p.opt.OnProblem(pod, "the rules of network policies are not installed: "+p.problem(err))
	}
}

// isOff reports whether policies are known not to be enforced.
func (p *Policies) isOff() bool {
	if p.enforcer == nil {
		return true
	}
	select {
	case <-p.decided:
		return !p.on.Load()
	default:
		return false
	}
}

// waitDecided waits until it is known whether policies are enforced. It returns false if that takes too
// long.
func (p *Policies) waitDecided(ctx context.Context) bool {
	if p.opt.Setting == enablement.Auto && p.remembered == "" {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, p.start.Add(decisionTimeout))
		defer cancel()
	}
	select {
	case <-p.decided:
		return true
	default:
	}
	select {
	case <-p.decided:
		return true
	case <-ctx.Done():
		return false
	}
}

// problem returns why rules are not installed.
func (p *Policies) problem(err error) string {
	switch s := p.enforcer.Status(); {
	case s.Err != "":
		return s.Err
	case !errors.Is(err, context.DeadlineExceeded):
		return err.Error()
	case !s.Synced:
		return "the API server has not sent the policies yet"
	}
	return "the kernel has not accepted them in time"
}

// PodAdopted installs the rules of a pod that is running.
func (p *Policies) PodAdopted(pod *corev1.Pod, sandboxes []plan.Sandbox) {
	for _, s := range sandboxes {
		if !p.isOff() && s.Ready && len(s.IPs) > 0 {
			p.setPod(pod, s.IPs)
		}
	}
}

// PodUpdated applies changed labels of a pod of the node.
func (p *Policies) PodUpdated(pod *corev1.Pod, _ bool) {
	if p.isOff() {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if addresses, known := p.pods[pod.UID]; known {
		p.opt.Store.SetLocalPod(pod, addresses)
	}
}

func (p *Policies) setPod(pod *corev1.Pod, ips []string) {
	var addresses []netip.Addr
	for _, text := range ips {
		if a, err := netip.ParseAddr(text); err == nil {
			addresses = append(addresses, a.Unmap())
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pods[pod.UID] = addresses
	p.opt.Store.SetLocalPod(pod, addresses)
}

// Explain returns which policies isolate a pod of the node, or nil if policies are not enforced on it.
func (p *Policies) Explain(uid types.UID) *nodeapi.PodNetworkPolicies {
	if !p.on.Load() {
		return nil
	}
	x, known, err := p.enforcer.Explain(uid)
	if !known || !x.Enforced {
		return nil
	}
	out := &nodeapi.PodNetworkPolicies{
		Installed: x.Installed, Ingress: explained(&x.Ingress), Egress: explained(&x.Egress),
	}
	if err != nil {
		out.Error = err.Error()
	}
	return out
}

func explained(x *policy.DirectionExplanation) nodeapi.PolicyDirection {
	out := nodeapi.PolicyDirection{Isolated: x.Isolated, DroppedPackets: x.DroppedPackets}
	for _, p := range x.Policies {
		out.Policies = append(out.Policies, nodeapi.PodPolicy{
			Name: p.Name, AllowedConnections: p.AllowedConnections, Allows: p.Allows,
		})
	}
	return out
}
