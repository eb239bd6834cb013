package rules

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"berth/services/policy/selection"
)

// Names of objects that are not named after a pod or a policy.
const (
	unknownCounter = "-unknown" // packets of addresses of the pod CIDRs that no pod has
	bridgesSet     = "bridges"
)

// build returns the ruleset of the present policies, pods and configuration.
func (c *Compiler) build() *static {
	b := &static{
		chains: map[string]*Chain{}, sets: map[string]*Set{}, counters: map[string]struct{}{},
		members: map[string]memberSet{},
	}
	var maps4 [4]*Set // of each direction and family
	for _, d := range Directions {
		for _, f := range families {
			s := &Set{Name: fmt.Sprintf("%s%d", d, f), Type: VerdictMap, Family: f, Elements: map[Element]Verdict{}}
			maps4[slot(d, f)] = s
			b.sets[s.Name] = s
		}
	}
	self := map[Family]*Set{}
	for _, f := range families {
		s := &Set{Name: fmt.Sprintf("self%d", f), Type: AddressPairs, Family: f, Elements: map[Element]Verdict{}}
		self[f], b.sets[s.Name] = s, s
	}
	for _, pod := range c.byAge() {
		if pod.HostNetwork {
			continue
		}
		if pod.chains == nil {
			pod.build(self)
		}
		for _, a := range pod.Addresses {
			f := FamilyOf(a)
			for _, d := range Directions {
				chain, verdict := pod.chains[slot(d, f)], Verdict{Kind: Accept}
				if chain != nil {
					verdict = Verdict{Kind: Goto, Chain: chain.Name}
					self[f].Elements[Element{First: a, Last: a}] = Verdict{}
				}
				maps4[slot(d, f)].Elements[Element{First: a}] = verdict
			}
		}
	}
	for _, pod := range c.pods {
		b.addPod(pod, maps4)
	}
	b.base(c.config, maps4)
	return b
}

// byAge returns the pods, the one that was set last at the end.
func (c *Compiler) byAge() []*podState {
	return slices.SortedFunc(maps.Values(c.pods), func(p, q *podState) int { return p.sequence - q.sequence })
}

// build computes the chains of a pod by slot. A chain is nil if no policy isolates the pod in the
// direction, or if the pod has no address of the family.
func (p *podState) build(self map[Family]*Set) {
	p.chains, p.shared = make([]*Chain, 4), make([]*Chain, 4)
	names := slices.Sorted(maps.Keys(p.selected))
	for _, d := range Directions {
		for _, f := range families {
			if !slices.ContainsFunc(p.Addresses, func(a netip.Addr) bool { return FamilyOf(a) == f }) {
				continue
			}
			isolated, rules := p.policies(names, d, f)
			if !isolated {
				continue
			}
			if len(rules) > 1 {
				p.shared[slot(d, f)] = share(d, f, rules)
				rules = []Rule{{Verdict: Verdict{Kind: Jump, Chain: p.shared[slot(d, f)].Name}}}
			}
			rules = append(rules,
				Rule{Matches: []Match{self[f].in(SourceDestination)}, Verdict: Verdict{Kind: Accept}},
				Rule{Counter: DropCounter(d, p.Pod), Verdict: Verdict{Kind: Drop}})
			p.chains[slot(d, f)] = &Chain{Name: podName(fmt.Sprintf("%s%d", d, f), p.Pod), Rules: rules}
		}
	}
}

// policies returns whether policies isolate the pod, and the calls of their chains.
func (p *podState) policies(names []string, d Direction, f Family) (isolated bool, calls []Rule) {
	for _, name := range names {
		policy := p.selected[name]
		if d.of(policy.Policy) == nil {
			continue
		}
		isolated = true
		if policy.compiled == nil {
			policy.compiled = compilePolicy(policy.Policy)
		}
		if chain := policy.compiled.chains[slot(d, f)]; chain != nil {
			calls = append(calls, Rule{Verdict: Verdict{Kind: Jump, Chain: chain.Name}})
		}
	}
	return isolated, calls
}

// share returns a chain with calls of policies, which is the same for all pods with these policies. The
// number of rules is then not the product of pods and policies.
func share(d Direction, f Family, calls []Rule) *Chain {
	var identity strings.Builder
	for _, r := range calls {
		identity.WriteString(r.Verdict.Chain + " ")
	}
	return &Chain{Name: named(fmt.Sprintf("%s%d-policies", d, f), identity.String(), ""), Rules: calls}
}

// DropCounter returns the name of the counter of the packets that are dropped because policies do not
// allow them.
func DropCounter(d Direction, p *selection.Pod) string { return podName(d.String()+"-drop", p) }

// AllowCounter returns the name of the counter of the connections that a policy has allowed, for all
// pods of the node.
func AllowCounter(d Direction, policy types.NamespacedName) string {
	return named(d.String()+"-allow-policy", policy.String(), policy.String())
}

// IsDropCounter reports whether a counter of the direction counts packets that were dropped because
// policies do not allow them.
func IsDropCounter(name string, d Direction) bool {
	return strings.HasPrefix(name, d.String()+"-drop-")
}

// UnknownCounter returns the name of the counter of the packets that are dropped because they are to
// or from an address that no known pod has.
func UnknownCounter(d Direction) string { return d.String() + unknownCounter }

// addPod adds the chains of a pod that a map refers to, with all that the chains refer to.
func (b *static) addPod(p *podState, verdicts [4]*Set) {
	if p.HostNetwork {
		return
	}
	for _, d := range Directions {
		for _, f := range families {
			chain := p.chains[slot(d, f)]
			if chain == nil || !refers(verdicts[slot(d, f)], p, chain) {
				continue
			}
			b.chains[chain.Name] = chain
			b.counters[DropCounter(d, p.Pod)] = struct{}{}
			known := false // the policies of the pod
			if shared := p.shared[slot(d, f)]; shared != nil {
				known = b.chains[shared.Name] != nil
				b.chains[shared.Name] = shared
			}
			for _, policy := range p.selected {
				if policy.compiled == nil || policy.compiled.chains[slot(d, f)] == nil {
					continue
				}
				if !known {
					b.addPolicy(policy.compiled, policy.compiled.chains[slot(d, f)])
				}
				b.addPorts(policy.compiled.local[slot(d, f)], p.Pod)
			}
		}
	}
}

// refers reports whether the map refers to the chain of the pod. It does not if another pod has the
// same address.
func refers(verdicts *Set, p *podState, chain *Chain) bool {
	return slices.ContainsFunc(p.Addresses, func(a netip.Addr) bool {
		return verdicts.Elements[Element{First: a}].Chain == chain.Name
	})
}

// addPolicy adds the chain of a policy and its sets.
func (b *static) addPolicy(c *compiledPolicy, chain *Chain) {
	if b.chains[chain.Name] != nil {
		return
	}
	b.chains[chain.Name] = chain
	for _, r := range chain.Rules {
		b.counters[r.Counter] = struct{}{}
		for _, m := range r.Matches {
			if m.Kind != InSet {
				continue
			}
			name := m.Set.Name
			if s := c.static[name]; s != nil {
				b.sets[name] = s
			} else if s, ok := c.members[name]; ok {
				b.members[name] = s
			}
		}
	}
}

// addPorts adds the named ports of a pod to the sets of a policy that isolates it.
func (b *static) addPorts(local []localSet, p *selection.Pod) {
	for _, s := range local {
		name := s.set.Name
		if b.sets[name] == nil {
			b.sets[name] = s.set.empty()
		}
		for e := range portElements(&p.Member, s.port) {
			if FamilyOf(e.First) == s.set.Family {
				b.sets[name].Elements[e] = Verdict{}
			}
		}
	}
}

// base adds the base chains.
func (b *static) base(config Config, verdicts [4]*Set) {
	bridges := &Set{Name: bridgesSet, Type: Interfaces, Elements: map[Element]Verdict{}}
	for _, name := range config.Bridges {
		bridges.Elements[Element{Interface: name}] = Verdict{}
	}
	bridges.Name = named(bridgesSet, strings.Join(config.Bridges, " "), "")
	for _, d := range Directions {
		accept, unknown := Verdict{Kind: Accept}, Rule{Counter: UnknownCounter(d), Verdict: Verdict{Kind: Drop}}
		b.counters[unknown.Counter] = struct{}{}
		chain := &Chain{Name: d.String(), Base: true, Rules: []Rule{
			{Matches: []Match{{Kind: Established}}, Verdict: accept},
			{Matches: []Match{{Kind: ICMPv6Type, First: 130, Last: 137}}, Verdict: accept},
			{Matches: []Match{{Kind: ICMPv6Type, First: 143, Last: 143}}, Verdict: accept},
			{Matches: []Match{{Kind: IPv4}}, Map: verdicts[slot(d, V4)], Key: d.self()},
			{Matches: []Match{{Kind: IPv6}}, Map: verdicts[slot(d, V6)], Key: d.self()},
		}}
		for _, f := range families {
			var ranges []addressRange
			for _, p := range config.PodRanges {
				if FamilyOf(p.Addr()) == f {
					ranges = append(ranges, rangeOf(p))
				}
			}
			if ranges = union(ranges); len(ranges) == 0 {
				continue
			}
			s := rangeSet("pods", f, ranges)
			b.sets[s.Name] = s
			rule := unknown
			rule.Matches = []Match{{Kind: map[Family]MatchKind{V4: IPv4, V6: IPv6}[f]}, s.in(d.self())}
			chain.Rules = append(chain.Rules, rule)
		}
		if d == Egress && len(bridges.Elements) > 0 {
			b.sets[bridges.Name] = bridges
			rule := unknown
			rule.Matches = []Match{bridges.in(InputInterface)}
			chain.Rules = append(chain.Rules, rule)
		}
		b.chains[chain.Name] = chain
	}
}
