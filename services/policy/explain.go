package policy

import (
	"cmp"
	"fmt"
	"iter"
	"slices"
	"strings"

	"github.com/google/nftables/expr"
	"k8s.io/apimachinery/pkg/types"

	"berth/services/policy/rules"
	"berth/services/policy/selection"
)

// Explanation says which policies apply to a pod of this node.
type Explanation struct {
	// Enforced is false if policies are not enforced on this node, or not for this pod because it uses
	// the host network.
	Enforced bool `json:"enforced"`
	// Installed is false while the rules of the pod are not in place.
	Installed bool                 `json:"installed"`
	Ingress   DirectionExplanation `json:"ingress"`
	Egress    DirectionExplanation `json:"egress"`
}

// DirectionExplanation is the part of an Explanation for one direction.
type DirectionExplanation struct {
	// Isolated is true if a policy restricts the traffic. Then only what a policy allows passes.
	Isolated bool             `json:"isolated"`
	Policies []SelectedPolicy `json:"policies,omitempty"`
	// DroppedPackets counts packets that no policy allowed.
	DroppedPackets uint64 `json:"droppedPackets"`
}

// SelectedPolicy says what a policy allows.
type SelectedPolicy struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// AllowedConnections counts connections of all pods of the node that the policy has allowed.
	AllowedConnections uint64 `json:"allowedConnections"`
	// Allows has a text for each rule. It is empty if the policy allows nothing.
	Allows []string `json:"allows,omitempty"`
}

// Explain returns which policies apply to a pod of this node, and how many packets were dropped. It
// returns false if the Store does not have the pod.
func (e *Enforcer) Explain(uid types.UID) (x Explanation, known bool, err error) {
	pod, selected, version := e.opt.Store.explained(uid)
	if pod == nil {
		return x, false, nil
	}
	x.Enforced = e.opt.Enabled() && !pod.HostNetwork
	e.mu.Lock()
	x.Installed = e.known && e.applied >= version
	e.mu.Unlock()
	if !x.Enforced {
		return x, true, nil
	}
	counters, err := e.kernel.counters()
	if err != nil {
		return x, true, err
	}
	x.Ingress = e.explain(rules.Ingress, pod, selected, counters)
	x.Egress = e.explain(rules.Egress, pod, selected, counters)
	return x, true, nil
}

func (e *Enforcer) explain(
	d rules.Direction, pod *selection.Pod, selected []*selection.Policy, counters map[string]expr.Counter,
) (x DirectionExplanation) {
	for _, p := range selected {
		allowed := p.Ingress
		if d == rules.Egress {
			allowed = p.Egress
		}
		if allowed == nil {
			continue
		}
		x.Isolated = true
		of := SelectedPolicy{Namespace: p.Name.Namespace, Name: p.Name.Name,
			AllowedConnections: counters[rules.AllowCounter(d, p.Name)].Packets}
		for i := range allowed.Rules {
			of.Allows = append(of.Allows, e.opt.Store.describe(d, &allowed.Rules[i]))
		}
		x.Policies = append(x.Policies, of)
	}
	x.DroppedPackets = counters[rules.DropCounter(d, pod)].Packets
	return x
}

// explained returns a pod of this node, the policies that select it sorted by name, and the version of
// the pod.
func (s *Store) explained(uid types.UID) (*selection.Pod, []*selection.Policy, uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	pod := s.local[uid]
	if pod == nil {
		return nil, nil, 0
	}
	var selected []*selection.Policy
	for _, p := range s.policies {
		if p.Name.Namespace == pod.Name.Namespace && p.Subject.Matches(pod.Labels) {
			selected = append(selected, p)
		}
	}
	slices.SortFunc(selected, func(p, q *selection.Policy) int { return cmp.Compare(p.Name.Name, q.Name.Name) })
	return pod.Pod, selected, pod.version
}

// describe returns a rule as text, such as "from 2 pods of namespace n pods(app=a) on TCP 80".
func (s *Store) describe(d rules.Direction, r *selection.Rule) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var peers, ports []string
	for _, key := range r.Groups {
		peers = append(peers, fmt.Sprintf("%d pods of %s", count(s.groups().Members(key)), key))
	}
	for _, b := range r.Blocks {
		text := b.Prefix.String()
		if len(b.Except) > 0 {
			text += fmt.Sprintf(" except %s", strings.Trim(fmt.Sprint(b.Except), "[]"))
		}
		peers = append(peers, text)
	}
	for _, p := range r.Ports {
		switch {
		case p.First == 0 && p.Last == 65535:
			ports = append(ports, p.Protocol.String())
		case p.First == p.Last:
			ports = append(ports, fmt.Sprintf("%s %d", p.Protocol, p.First))
		default:
			ports = append(ports, fmt.Sprintf("%s %d-%d", p.Protocol, p.First, p.Last))
		}
	}
	for _, p := range r.Named {
		ports = append(ports, fmt.Sprintf("%s %s", p.Protocol, p.Name))
	}
	from, to := "nothing", "no port"
	switch {
	case r.AnyPeer:
		from = "anywhere"
	case len(peers) > 0:
		from = strings.Join(peers, ", ")
	}
	switch {
	case r.AnyPort:
		to = "all ports"
	case len(ports) > 0:
		to = strings.Join(ports, ", ")
	}
	if d == rules.Egress {
		return fmt.Sprintf("to %s on %s", from, to)
	}
	return fmt.Sprintf("from %s on %s", from, to)
}

func count[K, V any](all iter.Seq2[K, V]) (n int) {
	for range all {
		n++
	}
	return n
}
