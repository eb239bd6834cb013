package selection

import (
	"errors"
	"fmt"
	"net/netip"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// Policy is the compact form of a NetworkPolicy. It is never modified.
type Policy struct {
	Name types.NamespacedName
	// Subject selects the pods of the namespace that the policy applies to.
	Subject labels.Selector
	// Ingress and Egress list the allowed traffic. A nil value means that the policy does not isolate
	// its pods in that direction, an empty one that it allows nothing.
	Ingress, Egress *Direction
	// Groups are the selectors of all groups that the rules refer to.
	Groups []Selector
}

// Direction lists the allowed traffic of one direction.
type Direction struct{ Rules []Rule }

// Rule allows traffic with any of its peers on any of its ports.
type Rule struct {
	// AnyPeer allows all peers.
	AnyPeer bool
	Groups  []GroupKey
	Blocks  []Block
	// AnyPort allows all ports and all protocols.
	AnyPort bool
	Ports   []PortRange
	// Named are ports by name. They are those of the pod that receives the traffic. The groups of a
	// policy include AllPods if an egress rule needs the ports of pods that no selector names.
	Named []NamedPortRef
}

// Block is the set of the addresses in Prefix that are in none of Except.
type Block struct {
	Prefix netip.Prefix
	Except []netip.Prefix
}

// PortRange is a range of ports of a protocol, both ends included.
type PortRange struct {
	Protocol    Protocol
	First, Last uint16
}

// NamedPortRef refers to container ports by name.
type NamedPortRef struct {
	Name     string
	Protocol Protocol
}

// GroupKey identifies a group of pods by its selectors.
type GroupKey string

// AllPods is the group of all pods in all known namespaces.
const AllPods GroupKey = "namespaces() pods()"

// Selector selects the pods of a group.
type Selector struct {
	Key GroupKey
	// Namespace restricts the group to one namespace if Namespaces is nil.
	Namespace  string
	Namespaces labels.Selector
	Pods       labels.Selector
}

func newSelector(namespace string, namespaces, pods labels.Selector) Selector {
	s := Selector{Namespace: namespace, Namespaces: namespaces, Pods: pods}
	if namespaces == nil {
		s.Key = GroupKey(fmt.Sprintf("namespace %s pods(%s)", namespace, pods))
	} else {
		s.Namespace = ""
		s.Key = GroupKey(fmt.Sprintf("namespaces(%s) pods(%s)", namespaces, pods))
	}
	return s
}

// FromNetworkPolicy returns the compact form of a NetworkPolicy. Parts that the API does not permit
// allow nothing; the error names them. A subject that cannot be parsed selects all pods of the
// namespace.
func FromNetworkPolicy(np *networkingv1.NetworkPolicy) (*Policy, error) {
	p := &Policy{Name: types.NamespacedName{Namespace: np.Namespace, Name: np.Name}}
	c := converter{policy: p, groups: map[GroupKey]bool{}}
	p.Subject = c.selector(&np.Spec.PodSelector, "spec.podSelector")
	if c.errs != nil {
		p.Subject = labels.Everything()
	}
	ingress, egress := len(np.Spec.PolicyTypes) == 0, len(np.Spec.PolicyTypes) == 0 && len(np.Spec.Egress) > 0
	for _, t := range np.Spec.PolicyTypes {
		switch t {
		case networkingv1.PolicyTypeIngress:
			ingress = true
		case networkingv1.PolicyTypeEgress:
			egress = true
		default:
			c.errorf("spec.policyTypes: unknown type %q", t)
		}
	}
	if ingress {
		p.Ingress = &Direction{}
		for i, r := range np.Spec.Ingress {
			field := fmt.Sprintf("spec.ingress[%d]", i)
			p.Ingress.Rules = append(p.Ingress.Rules, c.rule(r.From, r.Ports, field+".from", field+".ports"))
		}
	}
	if egress {
		p.Egress = &Direction{}
		for i, r := range np.Spec.Egress {
			field := fmt.Sprintf("spec.egress[%d]", i)
			rule := c.rule(r.To, r.Ports, field+".to", field+".ports")
			if len(rule.Named) > 0 && (rule.AnyPeer || len(rule.Blocks) > 0) {
				c.group(newSelector("", labels.Everything(), labels.Everything()))
			}
			p.Egress.Rules = append(p.Egress.Rules, rule)
		}
	}
	return p, errors.Join(c.errs...)
}

// converter collects the groups and the errors of a policy.
type converter struct {
	policy *Policy
	groups map[GroupKey]bool
	errs   []error
}

func (c *converter) errorf(format string, args ...any) {
	c.errs = append(c.errs, fmt.Errorf(format, args...))
}

// selector returns a selector that selects nothing if it is invalid.
func (c *converter) selector(s *metav1.LabelSelector, field string) labels.Selector {
	out, err := metav1.LabelSelectorAsSelector(s)
	if err != nil {
		c.errorf("%s: %w", field, err)
		return labels.Nothing()
	}
	return out
}

func (c *converter) group(s Selector) GroupKey {
	if !c.groups[s.Key] {
		c.groups[s.Key] = true
		c.policy.Groups = append(c.policy.Groups, s)
	}
	return s.Key
}

func (c *converter) rule(
	peers []networkingv1.NetworkPolicyPeer, ports []networkingv1.NetworkPolicyPort, peersField, portsField string,
) Rule {
	r := Rule{AnyPeer: len(peers) == 0, AnyPort: len(ports) == 0}
	for i := range peers {
		c.peer(&r, &peers[i], fmt.Sprintf("%s[%d]", peersField, i))
	}
	for i := range ports {
		c.port(&r, &ports[i], fmt.Sprintf("%s[%d]", portsField, i))
	}
	return r
}

func (c *converter) peer(r *Rule, peer *networkingv1.NetworkPolicyPeer, field string) {
	switch {
	case peer.IPBlock != nil:
		if peer.PodSelector != nil || peer.NamespaceSelector != nil {
			c.errorf("%s: ipBlock with a selector", field)
			return
		}
		c.block(r, peer.IPBlock, field+".ipBlock")
	case peer.PodSelector == nil && peer.NamespaceSelector == nil:
		c.errorf("%s: empty peer", field)
	default:
		pods, namespaces := labels.Everything(), labels.Selector(nil)
		if peer.PodSelector != nil {
			pods = c.selector(peer.PodSelector, field+".podSelector")
		}
		if peer.NamespaceSelector != nil {
			namespaces = c.selector(peer.NamespaceSelector, field+".namespaceSelector")
		}
		if _, valid := pods.Requirements(); !valid {
			return // invalid: selects nothing
		}
		if namespaces != nil {
			if _, valid := namespaces.Requirements(); !valid {
				return
			}
		}
		r.Groups = append(r.Groups, c.group(newSelector(c.policy.Name.Namespace, namespaces, pods)))
	}
}

func (c *converter) block(r *Rule, from *networkingv1.IPBlock, field string) {
	prefix, err := netip.ParsePrefix(from.CIDR)
	if err != nil {
		c.errorf("%s.cidr: %w", field, err)
		return
	}
	b := Block{Prefix: prefix.Masked()}
	for i, text := range from.Except {
		except, err := netip.ParsePrefix(text)
		if err != nil { // without the exception, the block would allow too much
			c.errorf("%s.except[%d]: %w", field, i, err)
			return
		}
		b.Except = append(b.Except, except.Masked())
	}
	r.Blocks = append(r.Blocks, b)
}

func (c *converter) port(r *Rule, from *networkingv1.NetworkPolicyPort, field string) {
	protocol, ok := TCP, true
	if from.Protocol != nil {
		protocol, ok = ParseProtocol(*from.Protocol)
	}
	switch {
	case !ok:
		c.errorf("%s.protocol: unknown protocol %q", field, *from.Protocol)
	case from.Port == nil && from.EndPort != nil:
		c.errorf("%s.endPort: no port", field)
	case from.Port == nil:
		r.Ports = append(r.Ports, PortRange{protocol, 0, 65535})
	case from.Port.Type == intstr.String && from.EndPort != nil:
		c.errorf("%s.endPort: port is a name", field)
	case from.Port.Type == intstr.String:
		r.Named = append(r.Named, NamedPortRef{from.Port.StrVal, protocol})
	default:
		first, last := from.Port.IntVal, from.Port.IntVal
		if from.EndPort != nil {
			last = *from.EndPort
		}
		if first < 1 || last > 65535 || last < first {
			c.errorf("%s: invalid port range %d-%d", field, first, last)
			return
		}
		r.Ports = append(r.Ports, PortRange{protocol, uint16(first), uint16(last)})
	}
}
