package leaks

import (
	"cmp"
	"context"
	"path/filepath"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"berth/agent"
	"berth/agent/plan"
	"berth/agent/status"
	"berth/cni"
	"berth/cni/networks"
	"berth/cri"
)

// Finder implements agent.LeakFinder.
type Finder struct {
	Runtime    *cri.Client
	Network    *cni.Network
	Networks   *networks.Networks       // additional networks of pods
	OwnsCgroup func(cgroup string) bool // a task in the cgroup that the runtime does not know is berth's own
	OwnsPod    func(uid types.UID) bool // likewise for any other object of the pod
	// ForeignPods returns the pods on the host that other programs created.
	ForeignPods func(ctx context.Context) ([]types.UID, error)
	LogDir      string
	Pods        func() []*status.Snapshot // the pods known to the agent
}

// Find returns the leaks. With deep it also searches where each result requires a scan. Objects that
// do not show their owner are among the leaks only if no other program has pods on this host.
func (s *Finder) Find(ctx context.Context, deep bool) ([]agent.Leak, error) {
	found, err := s.find(ctx, deep)
	if err != nil {
		return nil, err
	}
	return own(found, func() (bool, error) { return s.shared(ctx) })
}

// own returns the leaks that can only be berth's own: all of them, or on a host with pods of other
// programs those with a mark. shared is called only if it matters.
func own(found []agent.Leak, shared func() (bool, error)) ([]agent.Leak, error) {
	unmarked := func(l agent.Leak) bool { return l.Ownership != agent.Marked }
	if !slices.ContainsFunc(found, unmarked) {
		return found, nil
	}
	is, err := shared()
	switch {
	case err != nil:
		return nil, err
	case is:
		return slices.DeleteFunc(found, unmarked), nil
	}
	return found, nil
}

// shared reports whether other programs have pods on this host, in the runtime, below the root
// directory or below kubepods.
func (s *Finder) shared(ctx context.Context) (bool, error) {
	sandboxes, err := s.Runtime.ForeignSandboxes(ctx)
	if err != nil || len(sandboxes) > 0 {
		return true, err
	}
	pods, err := s.ForeignPods(ctx)
	return len(pods) > 0, err
}

func (s *Finder) find(ctx context.Context, deep bool) ([]agent.Leak, error) {
	client, network := s.Runtime, s.Network
	facts, ok, err := client.Layout(ctx)
	if err != nil || !ok {
		return nil, err // another runtime uses other paths
	}
	known := s.known()
	tasks, err := client.LeakedTasks(ctx, cri.LeakSearch{
		Known:      func(id string) bool { return known[id] },
		OwnsCgroup: s.OwnsCgroup, OwnsPod: s.OwnsPod, LogDir: s.LogDir, ScanProcesses: deep,
	})
	if err != nil {
		return nil, err
	}
	var out []agent.Leak
	for _, t := range tasks {
		out = append(out, agent.Leak{
			Kind: "shim", Name: t.ID, Ownership: proof(t.Owned, false),
			Remove: func(ctx context.Context) error { return client.DeleteLeakedTask(ctx, t) },
		})
	}
	if deep {
		for _, path := range client.StaleSockets() {
			out = append(out, agent.Leak{
				Kind: "socket", Name: path, Ownership: agent.Unreferenced,
				Remove: func(context.Context) error { return client.RemoveStaleSocket(path) },
			})
		}
		leases, err := client.LeakedLeases(ctx)
		if err != nil {
			return nil, err
		}
		for _, id := range leases {
			out = append(out, agent.Leak{
				Kind: "lease", Name: id, Ownership: agent.Unreferenced,
				Remove: func(ctx context.Context) error { return client.DeleteLeakedLease(ctx, id) },
			})
		}
	}
	attached, err := s.attached(ctx, known)
	if err != nil {
		return nil, err
	}
	out = append(out, attached...)
	leaks, err := network.Leaks(ctx, cni.LeakQuery{
		Known: func(id string) bool { return known[id] }, PinKnown: s.pins(ctx),
		FilterUnknown: client.UnknownIDs, AnnotationPrefix: berthMark,
		OwnsPod: func(uid string) bool { return s.OwnsPod(types.UID(uid)) }, NetNSDir: facts.NetNSDir,
		ExclusiveNetNSDir: facts.PrivateNetNSDir, Deep: deep,
	})
	if err != nil {
		return nil, err
	}
	for _, l := range leaks {
		out = append(out, agent.Leak{
			Kind: string(l.Kind), Name: cmp.Or(l.ID, l.NetNS, l.Chain),
			Ownership: proof(l.OwnedByBerth, l.Kind == cni.PinnedNetNS && !facts.PrivateNetNSDir),
			Remove:    func(ctx context.Context) error { return network.Release(ctx, l) },
		})
	}
	return out, nil
}

// attached returns networks that berth has attached to sandboxes that no longer exist.
func (s *Finder) attached(ctx context.Context, known map[string]bool) (out []agent.Leak, err error) {
	nets := s.Networks
	ids, err := s.Runtime.UnknownIDs(ctx, nets.Orphaned(func(id string) bool { return known[id] }))
	for _, id := range ids {
		out = append(out, agent.Leak{
			Kind: "network", Name: id, Ownership: agent.Marked,
			Remove: func(ctx context.Context) error { return nets.Detach(ctx, id) },
		})
	}
	return out, err
}

// berthMark is the prefix of berth's pod annotations.
const berthMark = "berth.dev/"

func proof(marked, shared bool) agent.Ownership {
	switch {
	case marked:
		return agent.Marked
	case shared:
		return agent.UnreferencedShared
	default:
		return agent.Unreferenced
	}
}

// known returns the IDs of the sandboxes and containers known to the agent.
func (s *Finder) known() map[string]bool {
	ids := map[string]bool{}
	for _, snap := range s.Pods() {
		for _, sb := range snap.Observed.Sandboxes {
			ids[sb.ID] = true
		}
		for _, k := range snap.Observed.Containers {
			ids[k.ID] = true
		}
	}
	return ids
}

// pins returns a function that reports whether a pinned network namespace belongs, or may belong,
// to an existing sandbox. The runtime is queried only on the first call, and only for new
// sandboxes.
func (s *Finder) pins(ctx context.Context) func(path string) bool {
	names := sync.OnceValues(func() (map[string]bool, error) {
		names := map[string]bool{}
		for _, snap := range s.Pods() {
			for _, sb := range snap.Observed.Sandboxes {
				path, err := s.Runtime.NetNS(ctx, sb.ID)
				if err != nil && plan.KindOf(err) != plan.NotFound {
					return nil, err
				}
				names[filepath.Base(path)] = true
			}
		}
		return names, nil
	})
	return func(path string) bool {
		of, err := names()
		return err != nil || of[filepath.Base(path)]
	}
}
