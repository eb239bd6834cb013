package ruleset

import (
	"net/netip"
	"slices"
)

// diff collects the elements of the affected frontends before and after a change.
type diff struct {
	old, now   map[ID]Element
	serving    map[Key][]netip.AddrPort // of UDP frontends before the change
	stale      []Key
	selections map[selectionKey]Selection
	local      map[netip.Addr]int // number of references to hairpin addresses before the change
}

// selectionKey identifies a selection, which all frontends of a port share.
type selectionKey struct {
	*entry
	port int16
	ipv6 bool
}

func newDiff() *diff {
	return &diff{
		old: map[ID]Element{}, now: map[ID]Element{}, serving: map[Key][]netip.AddrPort{},
		selections: map[selectionKey]Selection{}, local: map[netip.Addr]int{},
	}
}

// elements returns the elements of a frontend and its target.
func (d *diff) elements(s *State, key Key) (out []Element, sel Selection, ok bool) {
	c, ok := s.owners[key]
	if !ok {
		return nil, sel, false
	}
	at := selectionKey{c.entry, c.port, key.ipv6}
	sel, known := d.selections[at]
	if !known {
		sel = c.selection(key.ipv6)
		d.selections[at] = sel
	}
	return frontendElements(c.svc, Frontend{key, c.kind, int(c.port)}, &sel, c.node), sel, true
}

func (d *diff) before(s *State, key Key) {
	elements, sel, ok := d.elements(s, key)
	for _, e := range elements {
		d.old[e.ID()] = e
		s.countChain(&e, -1)
	}
	if ok && key.Protocol == UDP {
		d.serving[key] = sel.Serving
	}
}

func (d *diff) after(s *State, key Key) {
	elements, sel, ok := d.elements(s, key)
	for _, e := range elements {
		d.now[e.ID()] = e
		s.countChain(&e, 1)
	}
	if key.Protocol != UDP {
		return
	}
	before, existed := d.serving[key]
	lost := slices.ContainsFunc(before, func(a netip.AddrPort) bool {
		_, found := slices.BinarySearchFunc(sel.Serving, a, netip.AddrPort.Compare)
		return !found
	})
	if lost || ok != existed {
		d.stale = append(d.stale, key)
	}
}

// countChain counts the frontends of each chain.
func (s *State) countChain(e *Element, by int) {
	if e.Set != FrontendMap {
		return
	}
	all := s.chains[index(e.IPv6)]
	if all[e.Value] += by; all[e.Value] == 0 {
		delete(all, e.Value)
	}
}

// hairpin counts the references of a Service to the addresses of endpoints on this node.
func (d *diff) hairpin(s *State, e *entry, by int) {
	if e == nil || !Proxied(e.svc) {
		return
	}
	for _, slice := range e.slices {
		for i := range slice.Endpoints {
			at := &slice.Endpoints[i]
			a := at.Address.Unmap()
			if !e.node.isLocal(at) && !e.node.IsLocalPod(a) {
				continue
			}
			if _, known := d.local[a]; !known {
				d.local[a] = s.hairpin[a]
			}
			if s.hairpin[a] += by; s.hairpin[a] == 0 {
				delete(s.hairpin, a)
			}
		}
	}
}

// change returns the differences.
func (d *diff) change(s *State) Change {
	for a, before := range d.local {
		e := hairpinElement(a)
		if before > 0 {
			d.old[e.ID()] = e
		}
		if s.hairpin[a] > 0 {
			d.now[e.ID()] = e
		}
	}
	var c Change
	for id, e := range d.old {
		if now, same := d.now[id]; !same || now != e {
			c.Delete = append(c.Delete, e)
		}
	}
	for id, e := range d.now {
		if old, same := d.old[id]; !same || old != e {
			c.Add = append(c.Add, e)
		}
	}
	slices.SortFunc(c.Delete, compareElements)
	slices.SortFunc(c.Add, compareElements)
	c.StaleUDP = d.stale
	return c
}
