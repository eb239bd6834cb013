package selection

import (
	"iter"
	"maps"

	"k8s.io/apimachinery/pkg/types"
)

// Index keeps the members of the groups of all policies. See New.
type Index struct {
	policies   map[types.NamespacedName]*Policy
	namespaces map[string]Labels
	pods       map[string]map[string]*Pod // by namespace and name
	groups     map[GroupKey]*group
	// byNamespace lists the groups that can select pods of a namespace.
	byNamespace map[string]map[*group]struct{}
	// selecting lists the groups that select namespaces by labels.
	selecting map[*group]struct{}
	changes   Changes
}

type group struct {
	Selector
	policies int // number of policies that refer to it
	members  map[string]map[string]*Pod
}

// New returns an empty Index.
func New() *Index {
	return &Index{
		policies: map[types.NamespacedName]*Policy{}, namespaces: map[string]Labels{},
		pods: map[string]map[string]*Pod{}, groups: map[GroupKey]*group{},
		byNamespace: map[string]map[*group]struct{}{}, selecting: map[*group]struct{}{},
		changes: newChanges(),
	}
}

// Take returns the changes since the last call.
func (x *Index) Take() Changes {
	out := x.changes
	x.changes = newChanges()
	return out
}

// Policies returns the number of policies.
func (x *Index) Policies() int { return len(x.policies) }

// PolicyNames returns the names of all policies, unsorted.
func (x *Index) PolicyNames() iter.Seq[types.NamespacedName] { return maps.Keys(x.policies) }

// HasGroup reports whether a policy refers to a group.
func (x *Index) HasGroup(key GroupKey) bool { return x.groups[key] != nil }

// Members returns the members of a group. It returns none for an unknown group.
func (x *Index) Members(key GroupKey) iter.Seq2[types.NamespacedName, *Member] {
	return func(yield func(types.NamespacedName, *Member) bool) {
		g := x.groups[key]
		if g == nil {
			return
		}
		for _, pods := range g.members {
			for _, p := range pods {
				if !yield(p.Name, &p.Member) {
					return
				}
			}
		}
	}
}

// SetPolicy adds or replaces a policy.
func (x *Index) SetPolicy(p *Policy) {
	for i := range p.Groups { // first, so that groups of both the old and the new policy stay
		x.acquire(&p.Groups[i])
	}
	x.release(x.policies[p.Name])
	x.policies[p.Name] = p
	x.changes.Policies[p.Name] = p
}

// DeletePolicy removes a policy.
func (x *Index) DeletePolicy(name types.NamespacedName) {
	old := x.policies[name]
	if old == nil {
		return
	}
	x.release(old)
	delete(x.policies, name)
	x.changes.Policies[name] = nil
}

func (x *Index) acquire(s *Selector) {
	if g := x.groups[s.Key]; g != nil {
		g.policies++
		return
	}
	g := &group{Selector: *s, policies: 1, members: map[string]map[string]*Pod{}}
	x.groups[s.Key] = g
	x.changes.Created[s.Key] = struct{}{}
	if g.Namespaces == nil {
		x.include(g, g.Namespace)
		return
	}
	x.selecting[g] = struct{}{}
	for name, labels := range x.namespaces {
		if g.Namespaces.Matches(labels) {
			x.include(g, name)
		}
	}
}

func (x *Index) release(p *Policy) {
	if p == nil {
		return
	}
	for i := range p.Groups {
		g := x.groups[p.Groups[i].Key]
		if g.policies--; g.policies > 0 {
			continue
		}
		delete(x.groups, g.Key)
		delete(x.selecting, g)
		delete(x.changes.Members, g.Key)
		delete(x.changes.Created, g.Key)
		if g.Namespaces == nil {
			x.unlink(g, g.Namespace)
			continue
		}
		for name, labels := range x.namespaces {
			if g.Namespaces.Matches(labels) {
				x.unlink(g, name)
			}
		}
	}
}

// include makes a group select pods of a namespace.
func (x *Index) include(g *group, namespace string) {
	if x.byNamespace[namespace] == nil {
		x.byNamespace[namespace] = map[*group]struct{}{}
	}
	x.byNamespace[namespace][g] = struct{}{}
	for _, p := range x.pods[namespace] {
		x.evaluate(g, p.Name, p)
	}
}

// exclude removes the pods of a namespace from a group.
func (x *Index) exclude(g *group, namespace string) {
	x.unlink(g, namespace)
	for _, p := range g.members[namespace] {
		x.evaluate(g, p.Name, nil)
	}
}

func (x *Index) unlink(g *group, namespace string) {
	delete(x.byNamespace[namespace], g)
	if len(x.byNamespace[namespace]) == 0 {
		delete(x.byNamespace, namespace)
	}
}

// evaluate updates the membership of a pod, which is nil if it is to be removed.
func (x *Index) evaluate(g *group, name types.NamespacedName, p *Pod) {
	old := g.members[name.Namespace][name.Name]
	if p != nil && (!p.selectable() || !g.Pods.Matches(p.Labels)) {
		p = nil
	}
	if old == p {
		return
	}
	if p != nil {
		if g.members[name.Namespace] == nil {
			g.members[name.Namespace] = map[string]*Pod{}
		}
		g.members[name.Namespace][name.Name] = p
	} else {
		delete(g.members[name.Namespace], name.Name)
		if len(g.members[name.Namespace]) == 0 {
			delete(g.members, name.Namespace)
		}
	}
	x.changes.record(g.Key, name, old.member(), p.member())
}

// SetPod adds or replaces a pod. It reports whether anything has changed.
func (x *Index) SetPod(p *Pod) bool {
	pods := x.pods[p.Name.Namespace]
	if pods == nil {
		pods = map[string]*Pod{}
		x.pods[p.Name.Namespace] = pods
	}
	if old := pods[p.Name.Name]; old != nil && old.Equal(p) {
		return false
	}
	pods[p.Name.Name] = p
	for g := range x.byNamespace[p.Name.Namespace] {
		x.evaluate(g, p.Name, p)
	}
	return true
}

// DeletePod removes a pod. It reports whether the pod existed.
func (x *Index) DeletePod(name types.NamespacedName) bool {
	pods := x.pods[name.Namespace]
	if pods[name.Name] == nil {
		return false
	}
	delete(pods, name.Name)
	if len(pods) == 0 {
		delete(x.pods, name.Namespace)
	}
	for g := range x.byNamespace[name.Namespace] {
		x.evaluate(g, name, nil)
	}
	return true
}

// SetNamespace adds a namespace or changes its labels. Selectors of namespaces do not select a
// namespace before it is added. It reports whether anything has changed.
func (x *Index) SetNamespace(name string, labels Labels) bool {
	old, known := x.namespaces[name]
	if known && old.equal(labels) {
		return false
	}
	x.namespaces[name] = labels
	for g := range x.selecting {
		was, is := known && g.Namespaces.Matches(old), g.Namespaces.Matches(labels)
		switch {
		case is && !was:
			x.include(g, name)
		case was && !is:
			x.exclude(g, name)
		}
	}
	return true
}

// DeleteNamespace removes a namespace. It reports whether it was known.
func (x *Index) DeleteNamespace(name string) bool {
	old, known := x.namespaces[name]
	if !known {
		return false
	}
	delete(x.namespaces, name)
	for g := range x.selecting {
		if g.Namespaces.Matches(old) {
			x.exclude(g, name)
		}
	}
	return true
}
