package main

import (
	"cmp"
	"context"
	"encoding/json"
	"path/filepath"
	"sync"

	"berth/agent"
	"berth/agent/plan"
	"berth/cni"
	"berth/cri"
)

// leakFinder finds leaks of the runtime: tasks that it no longer knows, and their network resources.
// IDs known to the agent are skipped, so that a search without findings does not query the runtime.
type leakFinder struct{ b *berth }

func (s *leakFinder) Find(ctx context.Context, deep bool) ([]agent.Leak, error) {
	client, network := s.b.runtime.client, s.b.host.network
	facts, ok, err := client.Layout(ctx)
	if err != nil || !ok {
		return nil, err // another runtime uses other paths
	}
	known := s.known()
	tasks, err := client.LeakedTasks(ctx, cri.LeakSearch{
		Known:      func(id string) bool { return known[id] },
		OwnsCgroup: s.b.host.cgroups.Owns, LogDir: s.b.config.PodLogsDir, ScanProcesses: deep,
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
		held, err := client.LeakedLeases(ctx)
		if err != nil {
			return nil, err
		}
		for _, id := range held {
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
		FilterUnknown: client.UnknownIDs, AnnotationPrefix: berthMark, NetNSDir: facts.NetNSDir, ExclusiveNetNSDir: facts.PrivateNetNSDir, Deep: deep,
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
func (s *leakFinder) attached(ctx context.Context, known map[string]bool) (out []agent.Leak, err error) {
	nets := s.b.host.networks
	ids, err := s.b.runtime.client.UnknownIDs(ctx, nets.Orphaned(func(id string) bool { return known[id] }))
	for _, id := range ids {
		out = append(out, agent.Leak{
			Kind: "network", Name: id, Ownership: agent.Marked,
			Remove: func(ctx context.Context) error { return nets.Detach(ctx, id) },
		})
	}
	return out, err
}

// socketsNote is the key of the directories of shim sockets in the store.
const socketsNote = "shim-sockets"

// rememberSockets lets the runtime client persist the directories of shim sockets.
func (b *berth) rememberSockets() {
	var dirs []string
	kept, err := b.store.NodeValue(socketsNote)
	if err == nil && kept != nil {
		err = json.Unmarshal(kept, &dirs)
	}
	if err != nil {
		b.log.Warn("shim socket directories are not available from the store, restoring them from the runtime", "err", err)
	}
	b.runtime.client.SetSocketDirs(dirs, func(dirs []string) {
		if text, err := json.Marshal(dirs); err == nil { // marshaling strings cannot fail
			b.store.PutNodeValue(socketsNote, text)
		}
	})
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
func (s *leakFinder) known() map[string]bool {
	ids := map[string]bool{}
	for _, snap := range s.b.agent.StatusCache.All() {
		for _, sb := range snap.Seen.Sandboxes {
			ids[sb.ID] = true
		}
		for _, k := range snap.Seen.Containers {
			ids[k.ID] = true
		}
	}
	return ids
}

// pins returns a function that reports whether a pinned network namespace belongs, or may belong,
// to an existing sandbox. The runtime is queried only on the first call, and only for new
// sandboxes.
func (s *leakFinder) pins(ctx context.Context) func(path string) bool {
	names := sync.OnceValues(func() (map[string]bool, error) {
		names := map[string]bool{}
		for _, snap := range s.b.agent.StatusCache.All() {
			for _, sb := range snap.Seen.Sandboxes {
				path, err := s.b.runtime.client.NetNS(ctx, sb.ID)
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
