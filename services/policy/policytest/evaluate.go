package policytest

import (
	"fmt"
	"net/netip"

	"berth/services/policy/rules"
	"berth/services/policy/selection"
)

// Packet is a packet at the forward hook.
type Packet struct {
	Source, Destination netip.Addr
	Protocol            selection.Protocol
	Port                uint16 // destination port
	ICMPv6Type          uint8  // with protocol 58
	Established         bool
	Interface           string
}

// Evaluate reports whether the ruleset accepts a packet, and returns the counters that it increments.
// A ruleset that refers to what it does not have is an error.
func Evaluate(r *rules.Ruleset, p Packet) (accepted bool, counters []string, err error) {
	if r == nil {
		return true, nil, nil
	}
	e := evaluation{r: r, p: p}
	for _, d := range []rules.Direction{rules.Egress, rules.Ingress} {
		chain := r.Chains[d.String()]
		if chain == nil || !chain.Base {
			return false, nil, fmt.Errorf("no base chain %s", d)
		}
		if e.chain(chain, 0) == rules.Drop {
			return false, e.counters, e.err
		}
	}
	return e.err == nil, e.counters, e.err
}

type evaluation struct {
	r        *rules.Ruleset
	p        Packet
	counters []string
	err      error
}

// chain returns Accept or Drop, or None at the end of the chain.
func (e *evaluation) chain(c *rules.Chain, depth int) rules.VerdictKind {
	if depth > 8 {
		e.err = fmt.Errorf("chains call each other: %s", c.Name)
		return rules.Drop
	}
	for _, rule := range c.Rules {
		verdict, matched := e.rule(&rule)
		if !matched {
			continue
		}
		switch verdict.Kind {
		case rules.Accept, rules.Drop:
			return verdict.Kind
		case rules.Jump, rules.Goto:
			next := e.r.Chains[verdict.Chain]
			if next == nil {
				e.err = fmt.Errorf("chain %s refers to the unknown chain %s", c.Name, verdict.Chain)
				return rules.Drop
			}
			if v := e.chain(next, depth+1); v != rules.None || verdict.Kind == rules.Goto {
				return v
			}
		case rules.None:
		}
	}
	return rules.None
}

func (e *evaluation) rule(r *rules.Rule) (v rules.Verdict, matched bool) {
	for _, m := range r.Matches {
		if !e.matches(&m) {
			return v, false
		}
	}
	if r.Counter != "" {
		if _, known := e.r.Counters[r.Counter]; !known {
			e.err = fmt.Errorf("unknown counter %s", r.Counter)
		}
		e.counters = append(e.counters, r.Counter)
	}
	if r.Map == nil {
		return r.Verdict, true
	}
	return e.lookup(r.Map, r.Key)
}

func (e *evaluation) matches(m *rules.Match) bool {
	switch m.Kind {
	case rules.Established:
		return e.p.Established
	case rules.IPv4:
		return e.p.Source.Is4()
	case rules.IPv6:
		return e.p.Source.Is6()
	case rules.ICMPv6Type:
		return e.p.Protocol == 58 && m.First <= e.p.ICMPv6Type && e.p.ICMPv6Type <= m.Last
	case rules.InSet:
		_, found := e.lookup(m.Set, m.Field)
		return found
	}
	e.err = fmt.Errorf("unknown condition %d", m.Kind)
	return false
}

// lookup looks a field of the packet up in a set.
func (e *evaluation) lookup(ref *rules.Set, field rules.Field) (rules.Verdict, bool) {
	s := e.r.Sets[ref.Name]
	if s == nil || s.Type != ref.Type || s.Family != ref.Family {
		e.err = fmt.Errorf("unknown set %s", ref.Name)
		return rules.Verdict{}, false
	}
	if s.Family != rules.NoFamily && s.Family != rules.FamilyOf(e.p.Source) {
		e.err = fmt.Errorf("set %s is looked up by an address of the other family", ref.Name)
	}
	address := e.p.Destination
	if field == rules.Source {
		address = e.p.Source
	}
	if s.Type == rules.AddressRanges || s.Type == rules.PortRanges {
		for r := range s.Elements {
			if s.Type == rules.AddressRanges && r.First.Compare(address) <= 0 && address.Compare(r.Last) <= 0 ||
				s.Type == rules.PortRanges && e.hasPorts() && r.Protocol == e.p.Protocol &&
					r.FirstPort <= e.p.Port && e.p.Port <= r.LastPort {
				return rules.Verdict{}, true
			}
		}
		return rules.Verdict{}, false
	}
	v, found := s.Elements[e.element(s.Type, address)]
	return v, found && (s.Type != rules.AddressPorts || e.hasPorts())
}

func (e *evaluation) hasPorts() bool {
	return e.p.Protocol == selection.TCP || e.p.Protocol == selection.UDP || e.p.Protocol == selection.SCTP
}

// element returns the element that matches exactly.
func (e *evaluation) element(t rules.SetType, address netip.Addr) rules.Element {
	switch t {
	case rules.AddressPairs:
		return rules.Element{First: e.p.Source, Last: e.p.Destination}
	case rules.AddressPorts:
		return rules.Element{First: e.p.Destination, Protocol: e.p.Protocol, FirstPort: e.p.Port}
	case rules.Interfaces:
		return rules.Element{Interface: e.p.Interface}
	case rules.Addresses, rules.VerdictMap, rules.AddressRanges, rules.PortRanges:
	}
	return rules.Element{First: address}
}
