package selection

import "k8s.io/apimachinery/pkg/types"

// MemberChange is a change of one member of a group. Old is nil for a new member, New for a removed
// one.
type MemberChange struct{ Old, New *Member }

// Changes lists what has changed in an Index.
type Changes struct {
	// Policies has the changed policies. The value is nil for a deleted policy.
	Policies map[types.NamespacedName]*Policy
	// Created has the groups that did not exist at the last Take, or were removed and created since.
	// Their members are those that Members returns.
	Created map[GroupKey]struct{}
	// Members has the changed members of all other groups by the names of their pods. A group that no
	// policy refers to any more does not appear.
	Members map[GroupKey]map[types.NamespacedName]MemberChange
}

// Empty reports whether nothing has changed.
func (c *Changes) Empty() bool { return len(c.Policies) == 0 && len(c.Members) == 0 }

func newChanges() Changes {
	return Changes{
		Policies: map[types.NamespacedName]*Policy{}, Created: map[GroupKey]struct{}{},
		Members: map[GroupKey]map[types.NamespacedName]MemberChange{},
	}
}

// record adds a change of a member. Old is its present value, now the new one.
func (c *Changes) record(key GroupKey, name types.NamespacedName, old, now *Member) {
	if _, created := c.Created[key]; created {
		return
	}
	members := c.Members[key]
	if members == nil {
		members = map[types.NamespacedName]MemberChange{}
		c.Members[key] = members
	}
	change, recorded := members[name]
	if !recorded {
		change.Old = old // otherwise it has the value at the last Take
	}
	if change.New = now; change.Old == change.New {
		delete(members, name)
		return
	}
	members[name] = change
}
