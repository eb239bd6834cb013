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

// Options is what New needs.
type Options struct {
	File    string      // where it is kept what is known of the nodes
	Enabled func() bool // false: the pods' network is somebody else's, and nothing is wanted of this
	Log     *slog.Logger
	// OnChange is told, in order, what has become of it; it must not wait. May be nil.
	OnChange func(Status)
	// NetNS is the namespace to act in; zero: that of the process.
	NetNS netns.NsHandle
}

// Status is how it stands with the ways to other nodes' pods.
type Status struct {
	Enabled      bool
	Nodes        int // others that have pod ranges
	Reachable    int // of them
	Problems     []routes.Problem
	NodesUnknown string // why the other nodes are not known; empty: they are, or were last
	Err          string // why the host could not be changed; empty: it is as it should be, Troubles apart
}

// Gateway keeps the routes and the masquerading of a host.
type Gateway struct {
	opt    Options
	kernel kernel
	wake   chan struct{} // capacity 1

	mu    sync.Mutex
	known known
	blind string
	kept  string // what the file has
	state Status
	told  bool
}

// known is what the file keeps.
type known struct {
	Own   []netip.Prefix `json:"own"`
	Nodes []routes.Node  `json:"nodes"`
}

const (
	audit   = time.Minute            // between looks at a host that tells of no change
	settle  = 100 * time.Millisecond // changes come in bursts
	retryIn = 2 * time.Second
)

// New knows what the last life did. It changes nothing yet.
func New(o Options) (*Gateway, error) {
	if o.NetNS == 0 {
		o.NetNS = netns.None()
	}
	g := &Gateway{opt: o, kernel: kernel{o.NetNS}, wake: make(chan struct{}, 1)}
	text, err := read(o.File)
	if err != nil {
		return nil, err
	}
	if text != "" {
		if g.known, err = parse(text); err != nil {
			o.Log.Warn("what was known of the nodes' pod ranges is lost until the server tells it", "file", o.File, "err", err)
		}
		g.kept = text
	}
	return g, nil
}

// Status is how it stands.
func (g *Gateway) Status() Status {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.state
}

// SetPodCIDRs sets this node's pod ranges, and has the host ready for their pods when it
// returns.
func (g *Gateway) SetPodCIDRs(ranges []netip.Prefix) error {
	g.mu.Lock()
	g.known.Own = slices.Clone(ranges)
	g.mu.Unlock()
	return g.Sync()
}

// LacksPodCIDRs reports whether the node has no pod ranges, as far as is known.
func (g *Gateway) LacksPodCIDRs() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.known.Own) == 0
}

// SetNodes sets the other nodes; Put and Drop change one.
func (g *Gateway) SetNodes(nodes []routes.Node) {
	g.change(func(map[string]routes.Node) map[string]routes.Node {
		out := make(map[string]routes.Node, len(nodes))
		for _, n := range nodes {
			out[n.Name] = n
		}
		return out
	})
}

// SetNodesUnknown says why the other nodes cannot be known; empty: they can again. What was
// known last holds.
func (g *Gateway) SetNodesUnknown(why string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.blind != why {
		g.blind = why
		g.Trigger()
	}
}

// SetNode adds or replaces a node.
func (g *Gateway) SetNode(n routes.Node) {
	g.change(func(all map[string]routes.Node) map[string]routes.Node { all[n.Name] = n; return all })
}

// DeleteNode forgets a node.
func (g *Gateway) DeleteNode(name string) {
	g.change(func(all map[string]routes.Node) map[string]routes.Node { delete(all, name); return all })
}

// change changes the nodes and has the host follow if that matters. A node without
// pod ranges does not.
func (g *Gateway) change(f func(map[string]routes.Node) map[string]routes.Node) {
	g.mu.Lock()
	defer g.mu.Unlock()
	all := make(map[string]routes.Node, len(g.known.Nodes))
	for _, n := range g.known.Nodes {
		all[n.Name] = n
	}
	all = f(all)
	maps.DeleteFunc(all, func(_ string, n routes.Node) bool { return len(n.PodCIDRs) == 0 })
	now := slices.SortedFunc(maps.Values(all), func(a, b routes.Node) int { return cmp.Compare(a.Name, b.Name) })
	if slices.EqualFunc(now, g.known.Nodes, same) {
		return
	}
	g.known.Nodes = now
	g.Trigger()
}

func same(a, b routes.Node) bool {
	return a.Name == b.Name && a.RegisteredAt.Equal(b.RegisteredAt) && slices.Equal(a.PodCIDRs, b.PodCIDRs) && slices.Equal(a.Addresses, b.Addresses)
}

// Trigger has the host looked at soon.
func (g *Gateway) Trigger() {
	select {
	case g.wake <- struct{}{}:
	default:
	}
}

// Run keeps the host as it should be until ctx ends.
func (g *Gateway) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		heard, stop := g.kernel.listen()
		g.follow(ctx, heard)
		stop()
	}
	return nil
}

// follow ends with ctx; or when the kernel is not heard any more, at the next look,
// so that it is listened to again.
func (g *Gateway) follow(ctx context.Context, heard <-chan struct{}) {
	deaf := false
	for {
		wait := audit
		if g.Sync() != nil {
			wait = retryIn
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-g.wake:
		case _, more := <-heard:
			if !more {
				heard, deaf = nil, true
			}
		case <-timer.C:
			if deaf {
				return
			}
		}
		timer.Stop()
		if pause(ctx); ctx.Err() != nil {
			return
		}
	}
}

// pause lets a burst pass.
func pause(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-time.After(settle):
	}
}

// Sync makes the host what it should be, now.
func (g *Gateway) Sync() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	on := g.opt.Enabled()
	now, err := g.sync(on)
	if err != nil {
		now.Err = err.Error()
	}
	if g.told && equal(now, g.state) {
		return err
	}
	g.tell(now)
	g.state, g.told = now, true
	if g.opt.OnChange != nil {
		g.opt.OnChange(now)
	}
	return err
}

// tell logs what is new.
func (g *Gateway) tell(now Status) {
	for _, t := range now.Problems {
		if !slices.Contains(g.state.Problems, t) {
			g.opt.Log.Warn("pods of a node are not reached", "node", t.Node, "why", t.Message)
		}
	}
	if now.NodesUnknown != "" && now.NodesUnknown != g.state.NodesUnknown {
		g.opt.Log.Warn("the other nodes, and so the ways to their pods, are not known", "why", now.NodesUnknown)
	}
	switch {
	case now.Err != "" && now.Err != g.state.Err:
		g.opt.Log.Error("the ways to other nodes' pods could not be made; it is tried again", "err", now.Err)
	case now.Enabled && (!g.state.Enabled || now.Reachable != g.state.Reachable || now.Nodes != g.state.Nodes):
		g.opt.Log.Info("pods of other nodes are reached by routes", "nodes", now.Nodes, "reached", now.Reachable)
	case !now.Enabled && (g.state.Enabled || !g.told && g.kept != ""):
		g.opt.Log.Info("the pods' network is not berth's: its routes and rules are taken away")
	}
}

func equal(a, b Status) bool {
	return a.Enabled == b.Enabled && a.Nodes == b.Nodes && a.Reachable == b.Reachable && a.NodesUnknown == b.NodesUnknown && a.Err == b.Err && slices.Equal(a.Problems, b.Problems)
}

func (g *Gateway) sync(on bool) (Status, error) {
	st := Status{Enabled: on, NodesUnknown: g.blind}
	if !on && g.kept == "" { // there never was anything
		return st, nil
	}
	in, broken, err := g.kernel.look()
	if err != nil {
		return st, err
	}
	in.Enabled = on && len(g.known.Own) > 0
	if in.Enabled {
		in.PodCIDRs, in.Nodes = g.known.Own, g.known.Nodes
		st.Nodes = len(in.Nodes)
	}
	p := routes.Decide(in)
	st.Reachable, st.Problems = p.Reachable, p.Problems
	if err := g.keep(on); err != nil {
		return st, err
	}
	var errs []error
	if p.MasqueradeChanged || broken {
		errs = append(errs, g.kernel.masquerade(p.Masquerade))
	}
	change := func(r routes.Route, err error) {
		if !refused(err) || !p.MarkRejected(r, err.Error()) {
			errs = append(errs, err)
		}
	}
	for _, r := range p.Remove {
		change(r, g.kernel.remove(r))
	}
	for _, r := range p.Add {
		change(r, g.kernel.add(r))
	}
	st.Reachable, st.Problems = p.Reachable, p.Problems // less what was refused
	if err := errors.Join(errs...); err != nil {
		return st, errors.New(strings.ReplaceAll(err.Error(), "\n", "; "))
	}
	if !on {
		return st, g.forget()
	}
	return st, nil
}

// keep writes what is known before it is acted on.
func (g *Gateway) keep(on bool) error {
	if !on {
		return nil
	}
	text, err := g.known.text()
	if err != nil || text == g.kept {
		return err
	}
	if err := write(g.opt.File, text); err != nil {
		return fmt.Errorf("keep the nodes' pod ranges: %w", err)
	}
	g.kept = text
	return nil
}

func (g *Gateway) forget() error {
	if err := removeFile(g.opt.File); err != nil {
		return err
	}
	g.kept = ""
	return nil
}

// Remove takes away what a gateway that kept the file has made, whatever it knew.
// Without the file nothing is looked at.
func Remove(file string, log *slog.Logger) error {
	g, err := New(Options{File: file, Log: log, Enabled: func() bool { return false }})
	if err != nil || g.kept == "" {
		return err
	}
	return g.Sync()
}
