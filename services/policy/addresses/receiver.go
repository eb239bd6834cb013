package addresses

import (
	"maps"

	"k8s.io/apimachinery/pkg/types"

	v1 "berth/services/policy/addresses/v1"
	"berth/services/policy/selection"
)

// Members receives the members of groups. policy.Store implements it.
type Members interface {
	SetMember(key selection.GroupKey, name types.NamespacedName, m *selection.Member)
	DeleteMember(key selection.GroupKey, name types.NamespacedName)
	ReplaceGroups(all map[selection.GroupKey]map[types.NamespacedName]*selection.Member)
}

// Receiver passes the members of published objects on. See NewReceiver.
type Receiver struct {
	to      Members
	objects map[string]*received // by name
	// owner has the name of the object that has a member. A member that moves to another object can
	// appear there before it disappears here.
	owner    map[selection.GroupKey]map[types.NamespacedName]string
	complete map[selection.GroupKey]struct{}
}

// received is a received object.
type received struct {
	group selection.GroupKey
	slice int32
	names []types.NamespacedName
}

// NewReceiver returns a Receiver that has received nothing.
func NewReceiver(to Members) *Receiver {
	return &Receiver{
		to: to, objects: map[string]*received{}, owner: map[selection.GroupKey]map[types.NamespacedName]string{},
		complete: map[selection.GroupKey]struct{}{},
	}
}

// Complete reports whether the members of all groups of a policy have been received.
func (r *Receiver) Complete(p *selection.Policy) bool {
	for i := range p.Groups {
		if _, ok := r.complete[p.Groups[i].Key]; !ok {
			return false
		}
	}
	return true
}

// Set adds or replaces an object.
func (r *Receiver) Set(o *v1.NetworkPolicyAddresses) {
	for name, m := range r.take(o) {
		r.to.SetMember(selection.GroupKey(o.Group), name, m)
	}
}

// take records an object, removes the members that it has lost, and returns those that it has.
func (r *Receiver) take(o *v1.NetworkPolicyAddresses) map[types.NamespacedName]*selection.Member {
	key := selection.GroupKey(o.Group)
	now := &received{group: key, slice: o.Slice}
	members := make(map[types.NamespacedName]*selection.Member, len(o.Members))
	for i := range o.Members {
		name := types.NamespacedName{Namespace: o.Members[i].Namespace, Name: o.Members[i].Name}
		members[name] = memberOf(&o.Members[i])
		now.names = append(now.names, name)
	}
	if old := r.objects[o.Name]; old != nil {
		r.lose(o.Name, old, members)
	}
	r.objects[o.Name] = now
	if r.owner[key] == nil {
		r.owner[key] = map[types.NamespacedName]string{}
	}
	for name := range members {
		r.owner[key][name] = o.Name
	}
	if o.Slice == 0 {
		r.complete[key] = struct{}{}
	}
	return members
}

// lose removes the members of an object that it does not have any more.
func (r *Receiver) lose(object string, old *received, now map[types.NamespacedName]*selection.Member) {
	for _, name := range old.names {
		if now[name] == nil && r.owner[old.group][name] == object {
			delete(r.owner[old.group], name)
			r.to.DeleteMember(old.group, name)
		}
	}
	if len(r.owner[old.group]) == 0 {
		delete(r.owner, old.group)
	}
}

// Delete removes an object.
func (r *Receiver) Delete(name string) {
	old := r.objects[name]
	if old == nil {
		return
	}
	delete(r.objects, name)
	r.lose(name, old, nil)
	if old.slice == 0 {
		delete(r.complete, old.group)
	}
}

// Replace replaces all objects.
func (r *Receiver) Replace(list []*v1.NetworkPolicyAddresses) {
	fresh := NewReceiver(nil)
	all := map[selection.GroupKey]map[types.NamespacedName]*selection.Member{}
	for _, o := range list {
		key := selection.GroupKey(o.Group)
		if all[key] == nil {
			all[key] = map[types.NamespacedName]*selection.Member{}
		}
		maps.Copy(all[key], fresh.take(o))
	}
	r.objects, r.owner, r.complete = fresh.objects, fresh.owner, fresh.complete
	r.to.ReplaceGroups(all)
}
