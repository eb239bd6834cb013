package rules

import (
	"fmt"
	"slices"

	"berth/services/policy/selection"
)

// Direction is the direction of traffic as seen from a pod.
type Direction uint8

const (
	Egress Direction = iota
	Ingress
)

// String returns the name of the direction, which is that of its base chain.
func (d Direction) String() string { return [...]string{"egress", "ingress"}[d] }

var (
	// Directions has both directions.
	Directions = [...]Direction{Egress, Ingress}
	families   = [...]Family{V4, V6}
)

// of returns what a policy allows in the direction, or nil if it does not isolate pods in it.
func (d Direction) of(p *selection.Policy) *selection.Direction {
	if d == Egress {
		return p.Egress
	}
	return p.Ingress
}

// self and peer return the field with the address of the pod and that of its peer.
func (d Direction) self() Field { return [...]Field{Source, Destination}[d] }
func (d Direction) peer() Field { return [...]Field{Destination, Source}[d] }

// slot is the index of a chain by direction and family.
func slot(d Direction, f Family) int { return int(d)*2 + int(f-V4)/2 }

// compiledPolicy has the chains of a policy and the sets that they refer to. It is never modified.
type compiledPolicy struct {
	// chains has the chain of each slot. It is nil if the policy allows nothing there.
	chains [4]*Chain
	// static are sets whose content is known.
	static map[string]*Set
	// members are sets with the addresses of a group.
	members map[string]memberSet
	// local are sets with the named ports of the pods that the policy isolates, by slot.
	local [4][]localSet
}

// memberSet is a set with the addresses of the members of a group, or with the members' ports of a
// name if port has a name.
type memberSet struct {
	set   *Set // without elements
	group selection.GroupKey
	port  selection.NamedPortRef
}

// localSet is a set with the ports of a name of pods of the node.
type localSet struct {
	set  *Set // without elements
	port selection.NamedPortRef
}

// compilePolicy returns the chains of a policy.
func compilePolicy(p *selection.Policy) *compiledPolicy {
	c := &compiledPolicy{static: map[string]*Set{}, members: map[string]memberSet{}}
	for _, d := range Directions {
		allowed := d.of(p)
		if allowed == nil {
			continue
		}
		for _, f := range families {
			var rules []Rule
			for i := range allowed.Rules {
				rules = append(rules, c.rule(p, &allowed.Rules[i], d, f)...)
			}
			if len(rules) > 0 {
				kind := fmt.Sprintf("%s%d-policy", d, f)
				c.chains[slot(d, f)] = &Chain{Name: named(kind, p.Name.String(), p.Name.String()), Rules: rules}
			}
		}
	}
	return c
}

// rule returns a rule for each combination of a peer and a set of ports.
func (c *compiledPolicy) rule(p *selection.Policy, r *selection.Rule, d Direction, f Family) (out []Rule) {
	accept := func(matches ...Match) {
		out = append(out, Rule{Matches: matches, Counter: AllowCounter(d, p.Name), Verdict: Verdict{Kind: Accept}})
	}
	peers := c.peers(r, d, f)
	if r.AnyPort {
		for _, peer := range peers {
			accept(peer...)
		}
		return out
	}
	if len(r.Ports) > 0 {
		ports := c.addStatic(portSet(r.Ports))
		for _, peer := range peers {
			accept(append(peer, ports.in(Port))...)
		}
	}
	for _, ref := range r.Named {
		if d == Ingress {
			for _, peer := range peers {
				accept(append(peer, c.addLocal(p, ref, f).in(DestinationPort))...)
			}
			continue
		}
		for _, key := range r.Groups { // a named port of a member implies its address
			accept(c.addMembers(key, ref, f).in(DestinationPort))
		}
		switch block, all, some := c.blocks(r, d, f); {
		case all:
			accept(c.addMembers(selection.AllPods, ref, f).in(DestinationPort))
		case some:
			accept(block, c.addMembers(selection.AllPods, ref, f).in(DestinationPort))
		}
	}
	return out
}

// peers returns the conditions of each alternative of the peers of a rule.
func (c *compiledPolicy) peers(r *selection.Rule, d Direction, f Family) (out [][]Match) {
	block, all, some := c.blocks(r, d, f)
	if all {
		return [][]Match{nil}
	}
	for _, key := range r.Groups {
		out = append(out, []Match{c.addMembers(key, selection.NamedPortRef{}, f).in(d.peer())})
	}
	if some {
		out = append(out, []Match{block})
	}
	return out
}

// blocks returns the condition of the address blocks of a rule, whether they have all addresses of
// the family, and whether they have any.
func (c *compiledPolicy) blocks(r *selection.Rule, d Direction, f Family) (m Match, all, some bool) {
	if r.AnyPeer {
		return m, true, true
	}
	ranges := blockRanges(r.Blocks, f)
	if len(ranges) == 0 {
		return m, false, false
	}
	if everything(ranges) {
		return m, true, true
	}
	return c.addStatic(rangeSet("block", f, ranges)).in(d.peer()), false, true
}

func (s *Set) in(f Field) Match { return Match{Kind: InSet, Set: s, Field: f} }

func (c *compiledPolicy) addStatic(s *Set) *Set {
	c.static[s.Name] = s
	return s
}

func (c *compiledPolicy) addMembers(key selection.GroupKey, port selection.NamedPortRef, f Family) *Set {
	kind, identity, setType := "group", string(key), Addresses
	if port.Name != "" {
		kind, setType = "named", AddressPorts
		identity = fmt.Sprintf("%s %s/%s", key, port.Name, port.Protocol)
	}
	s := &Set{Name: named(fmt.Sprintf("%s%d", kind, f), identity, ""), Type: setType, Family: f}
	c.members[s.Name] = memberSet{s, key, port}
	return s
}

func (c *compiledPolicy) addLocal(p *selection.Policy, port selection.NamedPortRef, f Family) *Set {
	s := &Set{Type: AddressPorts, Family: f}
	s.Name = named(fmt.Sprintf("local%d", f), fmt.Sprintf("%s %s/%s", p.Name, port.Name, port.Protocol), "")
	local := &c.local[slot(Ingress, f)]
	if !slices.ContainsFunc(*local, func(l localSet) bool { return l.set.Name == s.Name }) {
		*local = append(*local, localSet{s, port})
	}
	return s
}
