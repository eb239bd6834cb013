package rules

import (
	"iter"
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"berth/services/policy/selection"
)

// groupState counts the addresses and named ports of a group, because two members can have the same
// address for a moment.
type groupState struct {
	sets      []memberSet // those that the ruleset uses
	addresses map[netip.Addr]int
	ports     map[selection.NamedPortRef]map[Element]int // only ports of sets
}

// Marks of an element in a set of changed elements: whether it was in the set before the change.
var (
	present = Verdict{Kind: Accept}
	absent  = Verdict{}
)

func newGroupState() *groupState {
	return &groupState{addresses: map[netip.Addr]int{}, ports: map[selection.NamedPortRef]map[Element]int{}}
}

// use sets the sets that the ruleset uses and loads the members if a port has not been counted.
func (g *groupState) use(sets []memberSet, members iter.Seq2[types.NamespacedName, *selection.Member]) {
	complete := len(g.sets) > 0
	ports := map[selection.NamedPortRef]map[Element]int{}
	for _, m := range sets {
		if m.port.Name == "" {
			continue
		}
		if ports[m.port] = g.ports[m.port]; ports[m.port] == nil {
			ports[m.port], complete = map[Element]int{}, false
		}
	}
	g.sets, g.ports = sets, ports
	if complete {
		return
	}
	g.clear()
	for _, m := range members {
		g.count(m, 1)
	}
}

func (g *groupState) clear() {
	clear(g.addresses)
	for _, counts := range g.ports {
		clear(counts)
	}
}

// count adds a member n times.
func (g *groupState) count(m *selection.Member, n int) {
	for _, a := range m.Addresses {
		if g.addresses[a] += n; g.addresses[a] == 0 {
			delete(g.addresses, a)
		}
	}
	for ref, counts := range g.ports {
		for e := range portElements(m, ref) {
			if counts[e] += n; counts[e] == 0 {
				delete(counts, e)
			}
		}
	}
}

// portElements returns the addresses of a member with its ports of a name, each element once.
func portElements(m *selection.Member, ref selection.NamedPortRef) iter.Seq[Element] {
	return func(yield func(Element) bool) {
		for i, p := range m.Ports {
			if p.Name != ref.Name || p.Protocol != ref.Protocol || slices.Index(m.Ports, p) < i {
				continue
			}
			for _, a := range m.Addresses {
				if !yield(Element{First: a, Protocol: p.Protocol, FirstPort: p.Port}) {
					return
				}
			}
		}
	}
}

// elements returns the elements that a member has in a set.
func (m memberSet) elements(member *selection.Member) (out []Element) {
	if m.port.Name == "" {
		for _, a := range member.Addresses {
			out = append(out, Element{First: a})
		}
	} else {
		out = slices.Collect(portElements(member, m.port))
	}
	return slices.DeleteFunc(out, func(e Element) bool { return FamilyOf(e.First) != m.set.Family })
}

// has reports whether an element is in a set of the group.
func (g *groupState) has(m memberSet, e Element) bool {
	if m.port.Name == "" {
		return g.addresses[e.First] > 0
	}
	return g.ports[m.port][e] > 0
}

// content returns a set with its elements.
func (g *groupState) content(m memberSet) *Set {
	s := m.set.empty()
	if m.port.Name == "" {
		for a := range g.addresses {
			if FamilyOf(a) == s.Family {
				s.Elements[Element{First: a}] = Verdict{}
			}
		}
		return s
	}
	for e := range g.ports[m.port] {
		if FamilyOf(e.First) == s.Family {
			s.Elements[e] = Verdict{}
		}
	}
	return s
}

// mark records the elements of a member in the sets of changed elements.
func (g *groupState) mark(member *selection.Member, changed map[string]*Set) {
	for _, m := range g.sets {
		for _, e := range m.elements(member) {
			s := changed[m.set.Name]
			if s == nil {
				s = m.set.empty()
				changed[m.set.Name] = s
			}
			if _, marked := s.Elements[e]; !marked {
				s.Elements[e] = absent
				if g.has(m, e) {
					s.Elements[e] = present
				}
			}
		}
	}
}

// change applies the change of a member.
func (g *groupState) change(c selection.MemberChange, changed map[string]*Set) {
	for _, m := range []*selection.Member{c.Old, c.New} {
		if m != nil {
			g.mark(m, changed)
		}
	}
	if c.Old != nil {
		g.count(c.Old, -1)
	}
	if c.New != nil {
		g.count(c.New, 1)
	}
}

// reload replaces all members.
func (g *groupState) reload(members iter.Seq2[types.NamespacedName, *selection.Member], changed map[string]*Set) {
	for _, m := range g.sets {
		for e := range g.content(m).Elements {
			s := changed[m.set.Name]
			if s == nil {
				s = m.set.empty()
				changed[m.set.Name] = s
			}
			if _, marked := s.Elements[e]; !marked {
				s.Elements[e] = present
			}
		}
	}
	for _, m := range members {
		g.mark(m, changed)
	}
	g.clear()
	for _, m := range members {
		g.count(m, 1)
	}
}
