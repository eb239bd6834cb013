package policy

import (
	"net/netip"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/services/policy/rules"
	"berth/services/policy/selection"
)

// kind is a kind of objects that must be known before rules are computed.
type kind int

const (
	policies kind = iota
	pods
	namespaces
	groups
	kinds
)

// Store holds the input of an Enforcer. It is safe for concurrent use. See NewStore.
type Store struct {
	mu    sync.Mutex
	index *selection.Index
	// published has the members of groups if the server computes them. It is nil otherwise.
	published *selection.Published
	compiler  *rules.Compiler
	config    rules.Config
	synced    [kinds]bool
	version   uint64 // number of changes
	policies  map[types.NamespacedName]*selection.Policy
	spaces    map[string]selection.Labels
	pods      map[types.NamespacedName]*selection.Pod // as the source has them
	local     map[types.UID]*localPod
	byName    map[types.NamespacedName]*localPod // the newest of the name
	released  map[netip.Addr]struct{}            // addresses that pods of the node have given up
	signal    chan struct{}
	// unreadable says why the input cannot be read, as long as that is final; nil: it can.
	unreadable error

	// unwritten has the keys of the objects that a Checkpoint has not written, and written is signaled
	// when there are some. They are nil without a Checkpoint.
	unwritten map[string]struct{}
	written   chan struct{}
}

// localPod is a pod of the node.
type localPod struct {
	*selection.Pod
	version uint64 // of the Store, after its last change
}

// NewStore returns an empty store that is not synced.
func NewStore() *Store {
	return &Store{
		index: selection.New(), compiler: rules.New(), policies: map[types.NamespacedName]*selection.Policy{},
		spaces: map[string]selection.Labels{}, pods: map[types.NamespacedName]*selection.Pod{},
		local: map[types.UID]*localPod{}, byName: map[types.NamespacedName]*localPod{},
		released: map[netip.Addr]struct{}{}, signal: make(chan struct{}, 1),
	}
}

// NewStoreWithGroups returns an empty store that takes the members of groups from ReplaceGroups,
// SetMember and DeleteMember. It ignores pods of the cluster and namespaces.
func NewStoreWithGroups() *Store {
	s := NewStore()
	s.UseGroups()
	return s
}

// UseGroups makes the store one of NewStoreWithGroups. It must be called before policies, pods of the
// cluster and namespaces are set.
func (s *Store) UseGroups() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.published, s.index = selection.NewPublished(), selection.New()
}

// SetUnreadable records why the input cannot be read until an administrator changes something. Until the
// next Replace method, WaitInstalled then returns this error instead of waiting for the first input.
func (s *Store) SetUnreadable(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unreadable = err
	s.changed()
}

// Policy returns a policy, or nil.
func (s *Store) Policy(name types.NamespacedName) *selection.Policy {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.policies[name]
}

// waitReason returns what a pod that starts has to wait for: nothing if there are no policies, and an
// error if the input is not known and cannot be read.
func (s *Store) waitReason() (needed bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.isSynced() {
		return true, s.unreadable
	}
	return len(s.policies) > 0, nil
}

// Synced reports whether policies, pods and namespaces were replaced at least once, or policies and
// groups. Before that, rules are not computed. A node that starts without its server calls the Replace
// methods with what it has stored.
func (s *Store) Synced() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.isSynced()
}

func (s *Store) isSynced() bool {
	if s.published != nil {
		return s.synced[policies] && s.synced[groups]
	}
	return s.synced[policies] && s.synced[pods] && s.synced[namespaces]
}

// Changed is signaled after a change.
func (s *Store) Changed() <-chan struct{} { return s.signal }

// changed records a change. The caller holds the lock.
func (s *Store) changed() {
	s.version++
	select {
	case s.signal <- struct{}{}:
	default:
	}
}

// SetPolicy adds or replaces a policy. See selection.FromNetworkPolicy.
func (s *Store) SetPolicy(p *selection.Policy) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.setPolicy(p)
}

func (s *Store) setPolicy(p *selection.Policy) {
	s.policies[p.Name] = p
	s.record(ofPolicy, p.Name.String())
	s.index.SetPolicy(p)
	s.changed()
}

// DeletePolicy removes a policy.
func (s *Store) DeletePolicy(name types.NamespacedName) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.deletePolicy(name)
}

func (s *Store) deletePolicy(name types.NamespacedName) {
	if s.policies[name] == nil {
		return
	}
	delete(s.policies, name)
	s.record(ofPolicy, name.String())
	s.index.DeletePolicy(name)
	s.changed()
}

// ReplacePolicies replaces all policies.
func (s *Store) ReplacePolicies(all []*selection.Policy) {
	s.mu.Lock()
	defer s.mu.Unlock()
	keep := make(map[types.NamespacedName]bool, len(all))
	for _, p := range all {
		keep[p.Name] = true
		s.setPolicy(p)
	}
	for name := range s.policies {
		if !keep[name] {
			s.deletePolicy(name)
		}
	}
	s.sync(policies)
}

func (s *Store) sync(k kind) {
	s.synced[k], s.unreadable = true, nil
	s.record("", "")
	s.changed()
}

// SetPod adds or replaces a pod of the cluster. For pods of this node, the values of SetLocalPod
// count. See selection.FromPod.
func (s *Store) SetPod(p *selection.Pod) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.setPod(p)
}

func (s *Store) setPod(p *selection.Pod) {
	if old := s.pods[p.Name]; old == nil || !old.Equal(p) {
		s.record(ofPod, p.Name.String())
	}
	s.pods[p.Name] = p
	s.selectable(p.Name)
}

// selectable updates the pod of a name for the selection of peers.
func (s *Store) selectable(name types.NamespacedName) {
	if s.published != nil {
		return
	}
	p := s.pods[name]
	if l := s.byName[name]; l != nil && (p == nil || p.UID == l.UID || p.UID == "") {
		p = l.Pod
	}
	if p == nil && s.index.DeletePod(name) || p != nil && s.index.SetPod(p) {
		s.changed()
	}
}

// DeletePod removes a pod of the cluster.
func (s *Store) DeletePod(name types.NamespacedName) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.deletePod(name)
}

func (s *Store) deletePod(name types.NamespacedName) {
	if s.pods[name] == nil {
		return
	}
	delete(s.pods, name)
	s.record(ofPod, name.String())
	s.selectable(name)
}

// ReplacePods replaces all pods of the cluster.
func (s *Store) ReplacePods(all []*selection.Pod) {
	s.mu.Lock()
	defer s.mu.Unlock()
	keep := make(map[types.NamespacedName]bool, len(all))
	for _, p := range all {
		keep[p.Name] = true
		s.setPod(p)
	}
	for name := range s.pods {
		if !keep[name] {
			s.deletePod(name)
		}
	}
	s.sync(pods)
}

// SetNamespace adds a namespace or changes its labels.
func (s *Store) SetNamespace(name string, labels selection.Labels) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.setNamespace(name, labels)
}

func (s *Store) setNamespace(name string, labels selection.Labels) {
	s.spaces[name] = labels
	if s.index.SetNamespace(name, labels) {
		s.record(ofSpace, name)
		s.changed()
	}
}

// DeleteNamespace removes a namespace.
func (s *Store) DeleteNamespace(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.deleteNamespace(name)
}

func (s *Store) deleteNamespace(name string) {
	delete(s.spaces, name)
	if s.index.DeleteNamespace(name) {
		s.record(ofSpace, name)
		s.changed()
	}
}

// ReplaceNamespaces replaces all namespaces by their labels.
func (s *Store) ReplaceNamespaces(all map[string]selection.Labels) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, labels := range all {
		s.setNamespace(name, labels)
	}
	for name := range s.spaces {
		if _, keep := all[name]; !keep {
			s.deleteNamespace(name)
		}
	}
	s.sync(namespaces)
}

// SetLocalPod adds or replaces a pod of this node with its addresses. The agent calls it when the
// pod's sandbox is created, and again when its labels change.
func (s *Store) SetLocalPod(pod *corev1.Pod, addresses []netip.Addr) {
	s.setLocal(selection.FromPodAt(pod, addresses))
}

func (s *Store) setLocal(p *selection.Pod) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if old := s.local[p.UID]; old != nil {
		if old.Equal(p) {
			return
		}
		for _, a := range old.Addresses {
			if !old.HostNetwork && !slices.Contains(p.Addresses, a) {
				s.released[a] = struct{}{}
			}
		}
	}
	s.compiler.SetPod(p)
	s.changed()
	l := &localPod{p, s.version}
	s.local[p.UID], s.byName[p.Name] = l, l
	s.selectable(p.Name)
}

// DeleteLocalPod removes a pod of this node. The agent calls it after the pod's sandbox is removed.
func (s *Store) DeleteLocalPod(uid types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.local[uid]
	if old == nil {
		return
	}
	for _, a := range old.Addresses {
		if !old.HostNetwork {
			s.released[a] = struct{}{}
		}
	}
	delete(s.local, uid)
	s.compiler.DeletePod(uid)
	s.changed()
	if s.byName[old.Name] == old {
		delete(s.byName, old.Name)
		s.selectable(old.Name)
	}
}

// SetPodRanges sets the ranges from which the pods of this node get their addresses. Without ranges,
// policies do not apply to addresses of unknown pods.
func (s *Store) SetPodRanges(ranges []netip.Prefix) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if slices.Equal(s.config.PodRanges, ranges) {
		return
	}
	s.config.PodRanges = slices.Clone(ranges)
	s.configure()
}

// enforcedRanges returns the pod CIDRs, or none if there are no policies.
func (s *Store) enforcedRanges() []netip.Prefix {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.policies) == 0 {
		return nil
	}
	return s.config.PodRanges
}

// setBridges sets the names of the interfaces that connect only pods.
func (s *Store) setBridges(names []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if slices.Equal(s.config.Bridges, names) {
		return
	}
	s.config.Bridges = names
	s.configure()
}

func (s *Store) configure() {
	s.compiler.SetConfig(s.config)
	s.changed()
}

// state is the result of a Store at a version.
type state struct {
	synced  bool
	version uint64
	changes *rules.Transaction
	whole   *rules.Ruleset // only if it was requested
	// released are addresses that pods have given up since the last call.
	released map[netip.Addr]struct{}
	numbers  Numbers
}

// Numbers are the sizes of the input.
type Numbers struct{ Policies, LocalPods, IsolatedPods int }

// take returns the changes since the last call, and the whole ruleset on request.
func (s *Store) take(whole bool) state {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := state{synced: s.isSynced(), version: s.version}
	if !out.synced {
		return out
	}
	if s.published != nil {
		s.compiler.Update(s.published.Take(s.index), s.published)
	} else {
		s.compiler.Update(s.index.Take(), s.index)
	}
	out.changes = s.compiler.Transaction(s.groups())
	out.released, s.released = s.released, map[netip.Addr]struct{}{}
	if whole {
		out.whole = s.compiler.Ruleset()
	}
	out.numbers = Numbers{s.index.Policies(), len(s.local), s.compiler.IsolatedPods()}
	return out
}

// groups returns the source of the members of groups.
func (s *Store) groups() rules.Groups {
	if s.published != nil {
		return s.published
	}
	return s.index
}

// ReplaceGroups replaces the members of all groups. The Store must be from NewStoreWithGroups.
func (s *Store) ReplaceGroups(all map[selection.GroupKey]map[types.NamespacedName]*selection.Member) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.recordMembers() // those that will be gone
	s.published.Replace(all)
	s.recordMembers()
	s.sync(groups)
}

// SetMember adds or replaces a member of a group. The Store must be from NewStoreWithGroups.
func (s *Store) SetMember(key selection.GroupKey, name types.NamespacedName, m *selection.Member) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.published.SetMember(key, name, m) {
		s.record(ofMember, memberName(key, name))
		s.changed()
	}
}

// DeleteMember removes a member of a group. The Store must be from NewStoreWithGroups.
func (s *Store) DeleteMember(key selection.GroupKey, name types.NamespacedName) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.published.DeleteMember(key, name) {
		s.record(ofMember, memberName(key, name))
		s.changed()
	}
}

// localVersion returns the version of the last change of a pod of this node, or 0 if
// policies do not apply to the pod because it uses the host network.
func (s *Store) localVersion(uid types.UID) (version uint64, known bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.local[uid]
	switch {
	case p == nil:
		return 0, false
	case p.HostNetwork:
		return 0, true
	}
	return p.version, true
}
