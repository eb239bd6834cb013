package ruleset

import (
	"cmp"
	"iter"
	"maps"
	"net/netip"
	"slices"

	"berth/services"
)

// State is the desired content of the tables. It keeps the Services and EndpointSlices it was given,
// not the elements, and is not safe for concurrent use.
type State struct {
	node      *Node
	installed map[services.Name]*entry
	// owners has the Service that owns each frontend, and rivals has further claims to it.
	owners  map[Key]claim
	rivals  map[Key][]claim
	hairpin map[netip.Addr]int
	chains  [2]map[string]int // number of frontends, IPv4 and IPv6
}

// entry is a Service of the state. It is replaced, never modified.
type entry struct {
	svc    *services.Service // not nil
	slices []*services.Slice
	node   *Node
}

// claim is the claim of a Service to a frontend.
type claim struct {
	*entry
	kind Kind
	port int16
}

// compare orders claims by precedence.
func (c claim) compare(d claim) int {
	return cmp.Or(cmp.Compare(c.kind, d.kind), c.svc.Compare(d.svc.Name), cmp.Compare(c.port, d.port))
}

// Update is the new value of a Service. A nil Service was deleted.
type Update struct {
	Name    services.Name
	Service *services.Service
	Slices  []*services.Slice
}

// Change is the difference between two states.
type Change struct {
	// Delete and Add are the elements. A changed element is in both.
	Delete, Add []Element
	// StaleUDP are UDP frontends that are new or gone or have lost an endpoint. Existing flows to
	// them may lead to the wrong place.
	StaleUDP []Key
}

// NewState returns a state without Services.
func NewState(node *Node) *State {
	return &State{
		node: node, installed: map[services.Name]*entry{}, owners: map[Key]claim{}, rivals: map[Key][]claim{},
		hairpin: map[netip.Addr]int{}, chains: [2]map[string]int{{}, {}},
	}
}

// Node returns the node.
func (s *State) Node() *Node { return s.node }

// SetNode changes the node. It takes effect for a Service when the Service is applied again.
func (s *State) SetNode(node *Node) { s.node = node }

// Names returns the Services of the state.
func (s *State) Names() iter.Seq[services.Name] { return maps.Keys(s.installed) }

// Service returns a Service of the state and its EndpointSlices, or nil.
func (s *State) Service(name services.Name) (*services.Service, []*services.Slice) {
	if e := s.installed[name]; e != nil {
		return e.svc, e.slices
	}
	return nil, nil
}

// Chains returns the chains that frontends of a family lead to, and the number of frontends.
func (s *State) Chains(ipv6 bool) map[string]int { return s.chains[index(ipv6)] }

func index(ipv6 bool) int {
	if ipv6 {
		return 1
	}
	return 0
}

// Apply changes Services and returns what changes in the kernel.
func (s *State) Apply(updates []Update) Change {
	var affected []Key
	seen := map[Key]bool{}
	note := func(e *entry) {
		if e == nil {
			return
		}
		for _, f := range Frontends(e.svc, e.node) {
			if !seen[f.Key] {
				seen[f.Key] = true
				affected = append(affected, f.Key)
			}
		}
	}
	entries := make([]*entry, len(updates))
	for i, u := range updates {
		if u.Service != nil {
			entries[i] = &entry{u.Service, u.Slices, s.node}
		}
		note(s.installed[u.Name])
		note(entries[i])
	}
	d := newDiff()
	for _, key := range affected {
		d.before(s, key)
	}
	for i, u := range updates {
		d.hairpin(s, s.installed[u.Name], -1)
		s.replace(u.Name, entries[i])
		d.hairpin(s, entries[i], 1)
	}
	for _, key := range affected {
		d.after(s, key)
	}
	return d.change(s)
}

// replace replaces a Service and its claims.
func (s *State) replace(name services.Name, e *entry) {
	if old := s.installed[name]; old != nil {
		for _, f := range Frontends(old.svc, old.node) {
			s.withdraw(f.Key, old)
		}
		delete(s.installed, name)
	}
	if e == nil {
		return
	}
	s.installed[name] = e
	for _, f := range Frontends(e.svc, e.node) {
		s.claim(f.Key, claim{e, f.Kind, int16(f.Port)})
	}
}

// claim adds a claim. The best claim owns the frontend.
func (s *State) claim(key Key, c claim) {
	owner, taken := s.owners[key]
	switch {
	case !taken:
		s.owners[key] = c
	case c.compare(owner) < 0:
		s.owners[key] = c
		s.rivals[key] = append(s.rivals[key], owner)
	default:
		s.rivals[key] = append(s.rivals[key], c)
	}
}

// withdraw removes all claims of a Service to a frontend.
func (s *State) withdraw(key Key, e *entry) {
	rivals := slices.DeleteFunc(s.rivals[key], func(c claim) bool { return c.entry == e })
	if s.owners[key].entry == e {
		delete(s.owners, key)
		if len(rivals) > 0 {
			best := slices.MinFunc(rivals, claim.compare)
			s.owners[key] = best
			rivals = slices.DeleteFunc(rivals, func(c claim) bool { return c == best })
		}
	}
	if s.rivals[key] = rivals; len(rivals) == 0 {
		delete(s.rivals, key)
	}
}

// selection returns the endpoints of a claim.
func (c claim) selection(ipv6 bool) Selection {
	if c.port < 0 {
		return Selection{}
	}
	return Select(c.svc, &c.svc.Ports[c.port], ipv6, c.slices, c.node)
}

// All returns all elements of a family.
func (s *State) All(ipv6 bool) iter.Seq[Element] {
	return func(yield func(Element) bool) {
		for a := range s.hairpin {
			if a.Is6() == ipv6 && !yield(hairpinElement(a)) {
				return
			}
		}
		for key, c := range s.owners {
			if key.ipv6 != ipv6 {
				continue
			}
			sel := c.selection(ipv6)
			for _, e := range frontendElements(c.svc, Frontend{key, c.kind, int(c.port)}, &sel, c.node) {
				if !yield(e) {
					return
				}
			}
		}
	}
}

// Owner returns the Service that owns a frontend, and the endpoints that may keep existing UDP flows.
func (s *State) Owner(key Key) (name services.Name, serving []netip.AddrPort, ok bool) {
	c, ok := s.owners[key]
	if !ok {
		return name, nil, false
	}
	return c.svc.Name, c.selection(key.ipv6).Serving, true
}

// UDPFrontends returns all UDP frontends.
func (s *State) UDPFrontends() (out []Key) {
	for key := range s.owners {
		if key.Protocol == UDP {
			out = append(out, key)
		}
	}
	return out
}
