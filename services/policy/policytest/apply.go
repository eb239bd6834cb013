package policytest

import (
	"fmt"
	"maps"
	"slices"

	"berth/services/policy/rules"
)

// Apply applies a transaction to a ruleset as the kernel would. It returns an error for what the
// kernel refuses, and for objects that are added or deleted without need. The result is nil without a
// table.
func Apply(r *rules.Ruleset, t *rules.Transaction) (*rules.Ruleset, error) {
	if t.Remove {
		if r == nil {
			return nil, fmt.Errorf("no table to remove")
		}
		return nil, nil
	}
	if t.Replace != nil {
		return clone(t.Replace), references(t.Replace)
	}
	if t.Empty() {
		return r, nil
	}
	if r == nil {
		return nil, fmt.Errorf("no table to change")
	}
	r = clone(r)
	for _, name := range t.AddCounters {
		if _, known := r.Counters[name]; known {
			return nil, fmt.Errorf("counter %s exists", name)
		}
		r.Counters[name] = struct{}{}
	}
	for _, s := range t.AddSets {
		if r.Sets[s.Name] != nil {
			return nil, fmt.Errorf("set %s exists", s.Name)
		}
		r.Sets[s.Name] = cloneSet(s)
	}
	for _, c := range t.AddChains {
		if r.Chains[c.Name] != nil {
			return nil, fmt.Errorf("chain %s exists", c.Name)
		}
		r.Chains[c.Name] = c
	}
	for _, c := range t.ReplaceRules {
		if r.Chains[c.Name] == nil {
			return nil, fmt.Errorf("no chain %s to replace", c.Name)
		}
		r.Chains[c.Name] = c
	}
	if err := elements(r, t); err != nil {
		return nil, err
	}
	for _, c := range t.DeleteChains {
		if r.Chains[c.Name] == nil {
			return nil, fmt.Errorf("no chain %s to delete", c.Name)
		}
		delete(r.Chains, c.Name)
	}
	for _, s := range t.DeleteSets {
		if r.Sets[s.Name] == nil {
			return nil, fmt.Errorf("no set %s to delete", s.Name)
		}
		delete(r.Sets, s.Name)
	}
	for _, name := range t.DeleteCounters {
		if _, known := r.Counters[name]; !known {
			return nil, fmt.Errorf("no counter %s to delete", name)
		}
		delete(r.Counters, name)
	}
	return r, references(r)
}

func elements(r *rules.Ruleset, t *rules.Transaction) error {
	for _, s := range t.DeleteElements {
		for e, v := range s.Elements {
			if w, known := r.Sets[s.Name].Elements[e]; !known || w != v {
				return fmt.Errorf("set %s has no element %v to delete", s.Name, e)
			}
			delete(r.Sets[s.Name].Elements, e)
		}
	}
	for _, s := range t.AddElements {
		for e, v := range s.Elements {
			if _, known := r.Sets[s.Name].Elements[e]; known {
				return fmt.Errorf("set %s has element %v", s.Name, e)
			}
			r.Sets[s.Name].Elements[e] = v
		}
	}
	return nil
}

// references returns an error if an object refers to an unknown one, or if no base chain leads to an
// object.
func references(r *rules.Ruleset) error {
	used := map[string]bool{"set self4": true, "set self6": true} // no pod may be isolated
	for _, c := range r.Chains {
		used["chain "+c.Name] = used["chain "+c.Name] || c.Base
		for i := range c.Rules {
			rule := &c.Rules[i]
			used["counter "+rule.Counter], used["chain "+rule.Verdict.Chain] = true, true
			if rule.Map != nil {
				used["set "+rule.Map.Name] = true
			}
			for _, m := range rule.Matches {
				if m.Set != nil {
					used["set "+m.Set.Name] = true
				}
			}
		}
	}
	for _, s := range r.Sets {
		for _, v := range s.Elements {
			used["chain "+v.Chain] = true
		}
	}
	delete(used, "chain ") // of verdicts without a chain, and of rules without a counter
	delete(used, "counter ")
	known := map[string]bool{}
	for name := range r.Chains {
		known["chain "+name] = true
	}
	for name := range r.Counters {
		known["counter "+name] = true
	}
	for name := range r.Sets {
		known["set "+name] = true
	}
	if !maps.Equal(known, used) {
		maps.DeleteFunc(known, func(name string, _ bool) bool {
			was := used[name]
			delete(used, name)
			return was
		})
		return fmt.Errorf("unknown objects %v, unused objects %v", used, known)
	}
	return nil
}

func clone(r *rules.Ruleset) *rules.Ruleset {
	out := &rules.Ruleset{Chains: maps.Clone(r.Chains), Sets: map[string]*rules.Set{}, Counters: maps.Clone(r.Counters)}
	for name, s := range r.Sets {
		out.Sets[name] = cloneSet(s)
	}
	return out
}

func cloneSet(s *rules.Set) *rules.Set {
	out := *s
	out.Elements = maps.Clone(s.Elements)
	return &out
}

// Equal returns an error that says how two rulesets differ.
func Equal(got, want *rules.Ruleset) error {
	if got == nil || want == nil {
		if got != want {
			return fmt.Errorf("got table: %t, want: %t", got != nil, want != nil)
		}
		return nil
	}
	if !maps.Equal(got.Counters, want.Counters) {
		return fmt.Errorf("counters: got %v, want %v", got.Counters, want.Counters)
	}
	if len(got.Chains) != len(want.Chains) || len(got.Sets) != len(want.Sets) {
		return fmt.Errorf("got %d chains and %d sets, want %d and %d",
			len(got.Chains), len(got.Sets), len(want.Chains), len(want.Sets))
	}
	for name, w := range want.Chains {
		g := got.Chains[name]
		if g == nil || g.Base != w.Base || !slices.EqualFunc(g.Rules, w.Rules, rules.Rule.Equal) {
			return fmt.Errorf("chain %s: got %v, want %v", name, g, w.Rules)
		}
	}
	for name, w := range want.Sets {
		g := got.Sets[name]
		if g == nil || g.Type != w.Type || g.Family != w.Family || !maps.Equal(g.Elements, w.Elements) {
			return fmt.Errorf("set %s: got %v, want %v", name, g, w)
		}
	}
	return nil
}
