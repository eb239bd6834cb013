package addresses

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	v1 "berth/services/policy/addresses/v1"
	"berth/services/policy/selection"
)

// SliceSize is the highest number of members of an object. It bounds what a node receives when one pod
// changes.
const SliceSize = 50

// Publisher spreads the members of groups over objects. See NewPublisher.
type Publisher struct {
	groups map[selection.GroupKey]*group
	unused map[selection.GroupKey]struct{} // groups that no policy refers to
}

// group is a published group.
type group struct {
	name   string // prefix of the names of its objects
	slices []map[types.NamespacedName]*selection.Member
	of     map[types.NamespacedName]int // the slice of each member
}

// Change is a change of an object, which is nil if it is deleted.
type Change struct {
	Name   string
	Object *v1.NetworkPolicyAddresses
}

// NewPublisher returns a Publisher without objects.
func NewPublisher() *Publisher {
	return &Publisher{groups: map[selection.GroupKey]*group{}, unused: map[selection.GroupKey]struct{}{}}
}

// Update returns the changes of objects that follow from changes of an Index, in the order in which
// nodes are to receive them. Objects of groups that no policy refers to any more stay until RemoveUnused,
// because a node can receive the change of the policy later.
func (p *Publisher) Update(c selection.Changes, index *selection.Index) (out []Change) {
	for key := range p.groups {
		if !index.HasGroup(key) {
			p.unused[key] = struct{}{}
		}
	}
	changed := map[selection.GroupKey]map[int]struct{}{}
	for key := range c.Created {
		delete(p.unused, key)
		changed[key] = p.create(key, maps.Collect(index.Members(key)))
	}
	for key, members := range c.Members {
		g := p.groups[key]
		changed[key] = map[int]struct{}{}
		for name, m := range members {
			changed[key][g.set(name, m.New)] = struct{}{}
		}
	}
	for key, numbers := range changed {
		out = append(out, p.groups[key].objects(key, numbers)...)
	}
	return out
}

// Unused reports whether RemoveUnused has something to remove.
func (p *Publisher) Unused() bool { return len(p.unused) > 0 }

// RemoveUnused removes the objects of groups that no policy refers to.
func (p *Publisher) RemoveUnused() (out []Change) {
	for key := range p.unused {
		for i, members := range p.groups[key].slices {
			if i == 0 || len(members) > 0 {
				out = append(out, Change{Name: p.groups[key].objectName(i)})
			}
		}
		delete(p.groups, key)
	}
	clear(p.unused)
	return out
}

// create makes the members of a group those that are given, and returns the changed slices.
func (p *Publisher) create(
	key selection.GroupKey, members map[types.NamespacedName]*selection.Member,
) (changed map[int]struct{}) {
	g, changed := p.groups[key], map[int]struct{}{0: {}}
	if g == nil {
		sum := sha256.Sum256([]byte(key))
		g = &group{
			name: hex.EncodeToString(sum[:10]), of: map[types.NamespacedName]int{},
			slices: []map[types.NamespacedName]*selection.Member{{}},
		}
		p.groups[key] = g
	}
	for name := range g.of {
		if members[name] == nil {
			changed[g.set(name, nil)] = struct{}{}
		}
	}
	for name, m := range members {
		changed[g.set(name, m)] = struct{}{}
	}
	return changed
}

// set adds, replaces or removes a member, and returns its slice.
func (g *group) set(name types.NamespacedName, m *selection.Member) int {
	i, known := g.of[name]
	switch {
	case m == nil && !known:
		return 0
	case m == nil:
		delete(g.of, name)
		delete(g.slices[i], name)
		return i
	case !known:
		i = slices.IndexFunc(g.slices, func(s map[types.NamespacedName]*selection.Member) bool {
			return len(s) < SliceSize
		})
		if i < 0 {
			i = len(g.slices)
			g.slices = append(g.slices, map[types.NamespacedName]*selection.Member{})
		}
		g.of[name] = i
	}
	g.slices[i][name] = m
	return i
}

// objects returns the changes of slices, slice 0 last.
func (g *group) objects(key selection.GroupKey, numbers map[int]struct{}) (out []Change) {
	for _, i := range slices.Backward(slices.Sorted(maps.Keys(numbers))) {
		c := Change{Name: g.objectName(i)}
		if i == 0 || len(g.slices[i]) > 0 {
			c.Object = object(c.Name, key, i, g.slices[i])
		}
		out = append(out, c)
	}
	return out
}

func (g *group) objectName(slice int) string { return fmt.Sprintf("%s-%d", g.name, slice) }

func object(
	name string, key selection.GroupKey, slice int, members map[types.NamespacedName]*selection.Member,
) *v1.NetworkPolicyAddresses {
	o := &v1.NetworkPolicyAddresses{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1.GroupVersion.String(), Kind: "NetworkPolicyAddresses"},
		ObjectMeta: metav1.ObjectMeta{Name: name}, Group: string(key), Slice: int32(slice),
	}
	for name, m := range members {
		member := v1.Member{Namespace: name.Namespace, Name: name.Name}
		for _, a := range m.Addresses {
			member.Addresses = append(member.Addresses, a.String())
		}
		for _, p := range m.Ports {
			member.Ports = append(member.Ports, v1.Port{Name: p.Name, Protocol: p.Protocol.String(),
				Port: int32(p.Port)})
		}
		o.Members = append(o.Members, member)
	}
	slices.SortFunc(o.Members, func(a, b v1.Member) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	})
	return o
}

// memberOf returns a published member. It leaves out what it cannot parse.
func memberOf(from *v1.Member) *selection.Member {
	m := &selection.Member{}
	for _, text := range from.Addresses {
		if a, err := netip.ParseAddr(text); err == nil {
			m.Addresses = append(m.Addresses, a)
		}
	}
	for _, p := range from.Ports {
		protocol, ok := selection.ParseProtocol(corev1.Protocol(p.Protocol))
		if ok && p.Port > 0 && p.Port <= 65535 {
			m.Ports = append(m.Ports, selection.NamedPort{Name: p.Name, Protocol: protocol, Port: uint16(p.Port)})
		}
	}
	return m
}
