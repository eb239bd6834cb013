package selection

import (
	"iter"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/types"
)

// Published holds the members of groups that a control server has computed with an Index. It takes the
// place of the pods and namespaces of the Index of a node, which then has policies only. It is not safe
// for concurrent use. See NewPublished.
type Published struct {
	groups  map[GroupKey]map[types.NamespacedName]*Member
	changes Changes
}

// NewPublished returns a Published without groups.
func NewPublished() *Published {
	return &Published{groups: map[GroupKey]map[types.NamespacedName]*Member{}, changes: newChanges()}
}

// Take returns the changes of members since the last call, with the changed policies of an Index.
func (p *Published) Take(policies *Index) Changes {
	out := p.changes
	p.changes = newChanges()
	of := policies.Take()
	out.Policies = of.Policies
	return out
}

// Members returns the members of a group. It returns none for an unknown group.
func (p *Published) Members(key GroupKey) iter.Seq2[types.NamespacedName, *Member] {
	return maps.All(p.groups[key])
}

// SetMember adds or replaces a member of a group. It reports whether anything has changed.
func (p *Published) SetMember(key GroupKey, name types.NamespacedName, m *Member) bool {
	old := p.groups[key][name]
	if old != nil && old.equal(m) {
		return false
	}
	if p.groups[key] == nil {
		p.groups[key] = map[types.NamespacedName]*Member{}
	}
	p.groups[key][name] = m
	p.changes.record(key, name, old, m)
	return true
}

// DeleteMember removes a member of a group. It reports whether the member existed.
func (p *Published) DeleteMember(key GroupKey, name types.NamespacedName) bool {
	old := p.groups[key][name]
	if old == nil {
		return false
	}
	delete(p.groups[key], name)
	if len(p.groups[key]) == 0 {
		delete(p.groups, key)
	}
	p.changes.record(key, name, old, nil)
	return true
}

// Replace replaces all groups. It reports whether anything has changed.
func (p *Published) Replace(all map[GroupKey]map[types.NamespacedName]*Member) (changed bool) {
	for key, members := range all {
		for name, m := range members {
			changed = p.SetMember(key, name, m) || changed
		}
	}
	for key, members := range p.groups {
		for name := range members {
			if all[key][name] == nil {
				changed = p.DeleteMember(key, name) || changed
			}
		}
	}
	return changed
}

// equal reports whether two members are the same for a group.
func (m *Member) equal(n *Member) bool {
	return slices.Equal(m.Addresses, n.Addresses) && slices.Equal(m.Ports, n.Ports)
}

// GroupMember is a member of a group with its name.
type GroupMember struct {
	Group  GroupKey
	Name   types.NamespacedName
	Member *Member
}

// All returns the members of all groups.
func (p *Published) All() iter.Seq[GroupMember] {
	return func(yield func(GroupMember) bool) {
		for key, members := range p.groups {
			for name, m := range members {
				if !yield(GroupMember{key, name, m}) {
					return
				}
			}
		}
	}
}
