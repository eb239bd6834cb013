package rules

import (
	"fmt"
	"iter"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"berth/services/policy/selection"
)

// Config describes the pod network of the node.
type Config struct {
	// PodRanges are the ranges from which the node's pods get their addresses.
	PodRanges []netip.Prefix
	// Bridges are the names of the interfaces that connect only pods of the node.
	Bridges []string
}

// Groups returns the members of groups.
type Groups interface {
	Members(selection.GroupKey) iter.Seq2[types.NamespacedName, *selection.Member]
}

// Compiler computes the ruleset of a node. See New.
type Compiler struct {
	config   Config
	policies map[string]map[string]*policyState // by namespace and name
	number   int                                // of policies
	pods     map[types.UID]*podState
	byName   map[string]map[types.UID]*podState // by namespace
	groups   map[selection.GroupKey]*groupState // those that the ruleset uses
	sequence int

	stale   bool // current does not have all policies, pods and configuration
	current *static
	changed map[string]*Set // sets of groups with changed elements
}

type policyState struct {
	*selection.Policy
	compiled *compiledPolicy // nil until a pod of the node needs it
}

type podState struct {
	*selection.Pod
	sequence int // a larger one is newer
	// selected are the policies that select the pod.
	selected map[string]*policyState
	// chains are the chains of the pod, shared those that they call, by slot. chains is nil if they
	// must be computed.
	chains, shared []*Chain
}

// static is the part of the ruleset that does not depend on the members of groups.
type static struct {
	chains   map[string]*Chain
	sets     map[string]*Set
	counters map[string]struct{}
	members  map[string]memberSet
}

// New returns a Compiler without policies and pods.
func New() *Compiler {
	return &Compiler{
		policies: map[string]map[string]*policyState{}, pods: map[types.UID]*podState{},
		byName: map[string]map[types.UID]*podState{}, groups: map[selection.GroupKey]*groupState{},
		changed: map[string]*Set{},
	}
}

// SetConfig changes the description of the pod network.
func (c *Compiler) SetConfig(config Config) {
	if slices.Equal(c.config.PodRanges, config.PodRanges) && slices.Equal(c.config.Bridges, config.Bridges) {
		return
	}
	c.config, c.stale = config, true
}

// SetPod adds or replaces a pod of the node. Policies do not apply to a pod that uses the
// host network. If two pods have the same address, it is that of the pod that was set last.
func (c *Compiler) SetPod(p *selection.Pod) {
	old := c.pods[p.UID]
	if old != nil && old.Pod.Equal(p) {
		return
	}
	c.DeletePod(p.UID)
	c.sequence++
	s := &podState{Pod: p, sequence: c.sequence, selected: map[string]*policyState{}}
	c.pods[p.UID] = s
	if c.byName[p.Name.Namespace] == nil {
		c.byName[p.Name.Namespace] = map[types.UID]*podState{}
	}
	c.byName[p.Name.Namespace][p.UID] = s
	for name, policy := range c.policies[p.Name.Namespace] {
		if policy.Subject.Matches(p.Labels) {
			s.selected[name] = policy
		}
	}
	c.stale = true
}

// DeletePod removes a pod of the node.
func (c *Compiler) DeletePod(uid types.UID) {
	old := c.pods[uid]
	if old == nil {
		return
	}
	delete(c.pods, uid)
	delete(c.byName[old.Name.Namespace], uid)
	if len(c.byName[old.Name.Namespace]) == 0 {
		delete(c.byName, old.Name.Namespace)
	}
	c.stale = true
}

// Update applies changes of policies and of the members of groups.
func (c *Compiler) Update(changes selection.Changes, groups Groups) {
	for name, p := range changes.Policies {
		c.setPolicy(name, p)
	}
	for key := range changes.Created {
		if g := c.groups[key]; g != nil {
			g.reload(groups.Members(key), c.changed)
		}
	}
	for key, members := range changes.Members {
		g := c.groups[key]
		if g == nil {
			continue
		}
		for _, change := range members {
			g.change(change, c.changed)
		}
	}
}

func (c *Compiler) setPolicy(name types.NamespacedName, p *selection.Policy) {
	of := c.policies[name.Namespace]
	if of[name.Name] != nil {
		c.number--
	}
	var state *policyState
	if p != nil {
		c.number++
		state = &policyState{Policy: p}
		if of == nil {
			of = map[string]*policyState{}
			c.policies[name.Namespace] = of
		}
		of[name.Name] = state
	} else {
		delete(of, name.Name)
		if len(of) == 0 {
			delete(c.policies, name.Namespace)
		}
	}
	if (c.number > 0) != (c.current != nil) {
		c.stale = true
	}
	for _, pod := range c.byName[name.Namespace] {
		selects := state != nil && state.Subject.Matches(pod.Labels)
		if pod.selected[name.Name] == nil && !selects {
			continue
		}
		if c.stale, pod.chains = true, nil; selects {
			pod.selected[name.Name] = state
		} else {
			delete(pod.selected, name.Name)
		}
	}
}

// Transaction returns the changes since the last call.
func (c *Compiler) Transaction(groups Groups) *Transaction {
	t := &Transaction{}
	if !c.stale {
		c.changeElements(t, c.current)
		return t
	}
	c.stale = false
	old := c.current
	if c.number == 0 {
		c.current, c.groups, c.changed = nil, map[selection.GroupKey]*groupState{}, map[string]*Set{}
		t.Remove = old != nil
		return t
	}
	c.current = c.build()
	c.use(groups)
	if old == nil {
		c.changed = map[string]*Set{}
		t.Replace = c.Ruleset()
		return t
	}
	c.changeElements(t, old)
	c.difference(t, old)
	return t
}

// Ruleset returns the whole ruleset as of the last Transaction, or nil if there are no rules.
func (c *Compiler) Ruleset() *Ruleset {
	if c.current == nil {
		return nil
	}
	r := &Ruleset{
		Chains: maps.Clone(c.current.chains), Sets: maps.Clone(c.current.sets),
		Counters: maps.Clone(c.current.counters),
	}
	for name, m := range c.current.members {
		r.Sets[name] = c.groups[m.group].content(m)
	}
	return r
}

// use loads the groups that the ruleset uses and releases the others.
func (c *Compiler) use(groups Groups) {
	needed := map[selection.GroupKey][]memberSet{}
	for _, m := range c.current.members {
		needed[m.group] = append(needed[m.group], m)
	}
	for key := range c.groups {
		if needed[key] == nil {
			delete(c.groups, key)
		}
	}
	for key, sets := range needed {
		g := c.groups[key]
		if g == nil {
			g = newGroupState()
			c.groups[key] = g
		}
		g.use(sets, groups.Members(key))
	}
}

// changeElements adds the changed elements of sets of groups that were and are in use.
func (c *Compiler) changeElements(t *Transaction, old *static) {
	changed := c.changed
	c.changed = map[string]*Set{}
	if c.current == nil {
		return
	}
	for _, name := range slices.Sorted(maps.Keys(changed)) {
		m, used := c.current.members[name]
		if _, known := old.members[name]; !used || !known {
			continue
		}
		g := c.groups[m.group]
		add, remove := m.set.empty(), m.set.empty()
		for e := range changed[name].Elements {
			was, is := changed[name].Elements[e] == present, g.has(m, e)
			switch {
			case is && !was:
				add.Elements[e] = Verdict{}
			case was && !is:
				remove.Elements[e] = Verdict{}
			}
		}
		t.addElements(add)
		t.deleteElements(remove)
	}
}

func (s *Set) empty() *Set {
	return &Set{Name: s.Name, Type: s.Type, Family: s.Family, Elements: map[Element]Verdict{}}
}

func (t *Transaction) addElements(s *Set) {
	if len(s.Elements) > 0 {
		t.AddElements = append(t.AddElements, s)
	}
}

func (t *Transaction) deleteElements(s *Set) {
	if len(s.Elements) > 0 {
		t.DeleteElements = append(t.DeleteElements, s)
	}
}

// difference adds the differences between old and the current ruleset, except for changed elements
// of sets of groups.
func (c *Compiler) difference(t *Transaction, old *static) {
	now := c.current
	t.AddCounters = missing(now.counters, old.counters)
	t.DeleteCounters = missing(old.counters, now.counters)
	for _, name := range missing(now.chains, old.chains) {
		t.AddChains = append(t.AddChains, now.chains[name])
	}
	for _, name := range missing(old.chains, now.chains) {
		t.DeleteChains = append(t.DeleteChains, old.chains[name])
	}
	for _, name := range slices.Sorted(maps.Keys(now.chains)) {
		if was := old.chains[name]; was != nil && !was.equal(now.chains[name]) {
			t.ReplaceRules = append(t.ReplaceRules, now.chains[name])
		}
	}
	for _, name := range missing(now.sets, old.sets) {
		t.AddSets = append(t.AddSets, now.sets[name])
	}
	for _, name := range missing(now.members, old.members) {
		m := now.members[name]
		t.AddSets = append(t.AddSets, c.groups[m.group].content(m))
	}
	for _, name := range missing(old.sets, now.sets) {
		t.DeleteSets = append(t.DeleteSets, old.sets[name].empty())
	}
	for _, name := range missing(old.members, now.members) {
		t.DeleteSets = append(t.DeleteSets, old.members[name].set.empty())
	}
	for _, name := range slices.Sorted(maps.Keys(now.sets)) {
		was, is := old.sets[name], now.sets[name]
		if was == nil || was == is {
			continue
		}
		add, remove := is.empty(), is.empty()
		for e, v := range is.Elements {
			if w, known := was.Elements[e]; !known || w != v {
				add.Elements[e] = v
			}
		}
		for e, v := range was.Elements {
			if w, known := is.Elements[e]; !known || w != v {
				remove.Elements[e] = v
			}
		}
		t.addElements(add)
		t.deleteElements(remove)
	}
}

// missing returns the keys of a that b does not have, sorted.
func missing[V, W any](a map[string]V, b map[string]W) (out []string) {
	for name := range a {
		if _, known := b[name]; !known {
			out = append(out, name)
		}
	}
	slices.SortFunc(out, strings.Compare)
	return out
}

func (c *Chain) equal(d *Chain) bool {
	return c == d || c.Base == d.Base && slices.EqualFunc(c.Rules, d.Rules, Rule.Equal)
}

// podName returns the name of an object of a pod.
func podName(kind string, p *selection.Pod) string {
	return named(fmt.Sprintf("%s-pod", kind), string(p.UID), p.Name.String())
}

// IsolatedPods returns the number of pods of the node that policies isolate in any direction.
func (c *Compiler) IsolatedPods() (n int) {
	for _, p := range c.pods {
		if !p.HostNetwork && len(p.selected) > 0 {
			n++
		}
	}
	return n
}
