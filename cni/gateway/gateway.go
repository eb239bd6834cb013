package gateway

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/vishvananda/netns"

	"berth/cni/routes"
)

// Options configures a Gateway.
type Options struct {
	File    string      // stores the known nodes
	Enabled func() bool // false: another component manages the pod network
	Log     *slog.Logger
	// OnProblem is called with each new problem before OnChange. It must not block. May be nil.
	OnProblem func(routes.Problem)
	// OnChange is called with each status in order. It must not block. May be nil.
	OnChange func(Status)
	// NetNS is the network namespace to configure. Zero: that of the process.
	NetNS netns.NsHandle
}

// Status is the state of the routes to the pods of other nodes.
type Status struct {
	Enabled      bool
	Nodes        int // number of other nodes with pod CIDRs
	Reachable    int // how many of them are reachable
	Problems     []routes.Problem
	NodesUnknown string // why the other nodes cannot be listed; empty if they can
	Err          string // why the host could not be configured; empty if it was, apart from Problems
}

// Gateway maintains the routes and the masquerading of a host.
type Gateway struct {
	opt    Options
	kernel kernel
	wake   chan struct{} // capacity 1

	mu           sync.Mutex
	checkpoint   checkpoint
	nodesUnknown string
	saved        string // content of the file
	status       Status
	reported     bool
}

// checkpoint is the content of the file.
type checkpoint struct {
	Own   []netip.Prefix `json:"own"`
	Nodes []routes.Node  `json:"nodes"`
}

const (
	auditInterval = time.Minute            // between syncs without a change notification
	settleDelay   = 100 * time.Millisecond // changes come in bursts
	retryInterval = 2 * time.Second
)

// New reads the file of an earlier run. It does not change the host.
func New(o Options) (*Gateway, error) {
	if o.NetNS == 0 {
		o.NetNS = netns.None()
	}
	g := &Gateway{opt: o, kernel: kernel{o.NetNS}, wake: make(chan struct{}, 1)}
	text, err := readFile(o.File)
	if err != nil {
		return nil, err
	}
	if text != "" {
		if g.checkpoint, err = parse(text); err != nil {
			o.Log.Warn("pod routes file unreadable; waiting for nodes from the API server", "path", o.File, "err", err)
		}
		g.saved = text
	}
	return g, nil
}

// Status returns the current status.
func (g *Gateway) Status() Status {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.status
}

// SetPodCIDRs sets this node's pod CIDRs and syncs the host before it returns.
func (g *Gateway) SetPodCIDRs(ranges []netip.Prefix) error {
	g.mu.Lock()
	g.checkpoint.Own = slices.Clone(ranges)
	g.mu.Unlock()
	return g.Sync()
}

// LacksPodCIDRs reports whether no pod CIDRs of this node are known.
func (g *Gateway) LacksPodCIDRs() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.checkpoint.Own) == 0
}

// SetNodes replaces the other nodes.
func (g *Gateway) SetNodes(nodes []routes.Node) {
	g.updateNodes(func(map[string]routes.Node) map[string]routes.Node {
		out := make(map[string]routes.Node, len(nodes))
		for _, n := range nodes {
			out[n.Name] = n
		}
		return out
	})
}

// SetNodesUnknown records why the other nodes cannot be listed. An empty reason means that they can
// be listed again. The last known nodes stay in effect.
func (g *Gateway) SetNodesUnknown(reason string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.nodesUnknown != reason {
		g.nodesUnknown = reason
		g.Trigger()
	}
}

// SetNode adds or replaces a node.
func (g *Gateway) SetNode(n routes.Node) {
	g.updateNodes(func(all map[string]routes.Node) map[string]routes.Node { all[n.Name] = n; return all })
}

// DeleteNode deletes a node.
func (g *Gateway) DeleteNode(name string) {
	g.updateNodes(func(all map[string]routes.Node) map[string]routes.Node { delete(all, name); return all })
}

// updateNodes changes the other nodes and triggers a sync if the result differs. Nodes without pod
// CIDRs are ignored.
func (g *Gateway) updateNodes(f func(map[string]routes.Node) map[string]routes.Node) {
	g.mu.Lock()
	defer g.mu.Unlock()
	all := make(map[string]routes.Node, len(g.checkpoint.Nodes))
	for _, n := range g.checkpoint.Nodes {
		all[n.Name] = n
	}
	all = f(all)
	maps.DeleteFunc(all, func(_ string, n routes.Node) bool { return len(n.PodCIDRs) == 0 })
	now := slices.SortedFunc(maps.Values(all), func(a, b routes.Node) int { return cmp.Compare(a.Name, b.Name) })
	if slices.EqualFunc(now, g.checkpoint.Nodes, same) {
		return
	}
	g.checkpoint.Nodes = now
	g.Trigger()
}

func same(a, b routes.Node) bool {
	return a.Name == b.Name && a.RegisteredAt.Equal(b.RegisteredAt) && slices.Equal(a.PodCIDRs, b.PodCIDRs) &&
		slices.Equal(a.Addresses, b.Addresses)
}

// Trigger schedules a sync.
func (g *Gateway) Trigger() {
	select {
	case g.wake <- struct{}{}:
	default:
	}
}

// Run keeps the host in sync until ctx ends.
func (g *Gateway) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		changes, stop := g.kernel.subscribe()
		g.syncUntilUnsubscribed(ctx, changes)
		stop()
	}
	return nil
}

// syncUntilUnsubscribed syncs until ctx ends, or until the next interval after the subscription was
// lost, so that the caller subscribes again.
func (g *Gateway) syncUntilUnsubscribed(ctx context.Context, changes <-chan struct{}) {
	unsubscribed := false
	for {
		wait := auditInterval
		if g.Sync() != nil {
			wait = retryInterval
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-g.wake:
		case _, more := <-changes:
			if !more {
				changes, unsubscribed = nil, true
			}
		case <-timer.C:
			if unsubscribed {
				return
			}
		}
		timer.Stop()
		if pause(ctx); ctx.Err() != nil {
			return
		}
	}
}

// pause waits for the end of a burst of changes.
func pause(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-time.After(settleDelay):
	}
}

// Sync configures the host now.
func (g *Gateway) Sync() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	on := g.opt.Enabled()
	now, err := g.sync(on)
	if err != nil {
		now.Err = err.Error()
	}
	if g.reported && equal(now, g.status) {
		return err
	}
	g.logChanges(now)
	g.status, g.reported = now, true
	if g.opt.OnChange != nil {
		g.opt.OnChange(now)
	}
	return err
}

// logChanges logs the differences to the previous status.
func (g *Gateway) logChanges(now Status) {
	for _, t := range now.Problems {
		if !slices.Contains(g.status.Problems, t) {
			g.opt.Log.Warn("node pods unreachable", "node", t.Node, "reason", t.Message)
			if g.opt.OnProblem != nil {
				g.opt.OnProblem(t)
			}
		}
	}
	if now.NodesUnknown != "" && now.NodesUnknown != g.status.NodesUnknown {
		g.opt.Log.Warn("nodes unknown; pod routes not updated", "reason", now.NodesUnknown)
	}
	switch {
	case now.Err != "" && now.Err != g.status.Err:
		g.opt.Log.Error("pod routes update failed; retrying", "err", now.Err)
	case now.Enabled && (!g.status.Enabled || now.Reachable != g.status.Reachable || now.Nodes != g.status.Nodes):
		g.opt.Log.Info("pod routes updated", "nodes", now.Nodes, "reachable", now.Reachable)
	case !now.Enabled && (g.status.Enabled || !g.reported && g.saved != ""):
		g.opt.Log.Info("pod routes and rules removed: pod network not managed by berth")
	}
}

func equal(a, b Status) bool {
	return a.Enabled == b.Enabled && a.Nodes == b.Nodes && a.Reachable == b.Reachable &&
		a.NodesUnknown == b.NodesUnknown &&
		a.Err == b.Err &&
		slices.Equal(a.Problems, b.Problems)
}

func (g *Gateway) sync(on bool) (Status, error) {
	st := Status{Enabled: on, NodesUnknown: g.nodesUnknown}
	if !on && g.saved == "" { // nothing was ever configured
		return st, nil
	}
	in, damaged, err := g.kernel.observe()
	if err != nil {
		return st, err
	}
	in.Enabled = on && len(g.checkpoint.Own) > 0
	if in.Enabled {
		in.PodCIDRs, in.Nodes = g.checkpoint.Own, g.checkpoint.Nodes
		st.Nodes = len(in.Nodes)
	}
	p := routes.Decide(in)
	st.Reachable, st.Problems = p.Reachable, p.Problems
	if err := g.save(on); err != nil {
		return st, err
	}
	var errs []error
	if p.MasqueradeChanged || damaged {
		errs = append(errs, g.kernel.masquerade(p.Masquerade))
	}
	change := func(r routes.Route, err error) {
		if !isRouteError(err) || !p.MarkRejected(r, err.Error()) {
			errs = append(errs, err)
		}
	}
	for _, r := range p.Remove {
		change(r, g.kernel.remove(r))
	}
	for _, r := range p.Add {
		change(r, g.kernel.add(r))
	}
	st.Reachable, st.Problems = p.Reachable, p.Problems // without rejected routes
	if err := errors.Join(errs...); err != nil {
		return st, errors.New(strings.ReplaceAll(err.Error(), "\n", "; "))
	}
	if !on {
		return st, g.deleteFile()
	}
	return st, nil
}

// save writes the checkpoint before it takes effect.
func (g *Gateway) save(on bool) error {
	if !on {
		return nil
	}
	text, err := g.checkpoint.text()
	if err != nil || text == g.saved {
		return err
	}
	if err := writeFile(g.opt.File, text); err != nil {
		return fmt.Errorf("save pod routes: %w", err)
	}
	g.saved = text
	return nil
}

func (g *Gateway) deleteFile() error {
	if err := removeFile(g.opt.File); err != nil {
		return err
	}
	g.saved = ""
	return nil
}

// Remove deletes everything that a Gateway with this file has configured. It does nothing if the
// file does not exist.
func Remove(file string, log *slog.Logger) error {
	g, err := New(Options{File: file, Log: log, Enabled: func() bool { return false }})
	if err != nil || g.saved == "" {
		return err
	}
	return g.Sync()
}
