package ruleset

import (
	"strconv"
	"strings"

	"berth/services"
)

// Class is how the traffic of a frontend is handled.
type Class uint8

// The classes. External classes are those of NodePorts, load balancer addresses and external
// addresses.
const (
	// Internal sends to the endpoints of the cluster. Traffic that is not from a local pod is
	// masqueraded.
	Internal Class = iota + 1
	// InternalLocal sends to the endpoints on this node, and masquerades as Internal.
	InternalLocal
	// External sends to the endpoints of the cluster and masquerades all traffic.
	External
	// ExternalLocal sends to the endpoints on this node and keeps the client address, or drops if
	// there are none. Traffic of local pods and of the node itself goes to the endpoints of the
	// cluster. That of the node is masqueraded.
	ExternalLocal
	// Reject answers with an ICMP error: the Service has no endpoints.
	Reject
	// Drop drops: the Service has endpoints, but none that the traffic policy allows.
	Drop
)

// Target is how the traffic of a frontend is handled. Frontends with equal targets share chains.
type Target struct {
	Class Class
	// Firewall is true if only some sources may use the frontend. Traffic of others is dropped.
	Firewall bool
	// Cluster and Local are the numbers of endpoints. A number that the class does not use is 0.
	Cluster, Local uint32
	// Affinity is the timeout of session affinity in seconds, 0 for none.
	Affinity uint32
}

// Chain returns the name of the chain for the target.
func (t Target) Chain() string {
	var name string
	switch t.Class {
	case Internal, External:
		name = EndpointsChain(t.Cluster, t.Affinity, false)
	case InternalLocal:
		name = EndpointsChain(t.Local, t.Affinity, true)
	case ExternalLocal:
		name = externalLocalPrefix + number(t.Cluster) + "-" + number(t.Local) + affinitySuffix(t.Affinity)
	case Reject:
		name = rejectName
	case Drop:
		name = dropName
	}
	if t.Firewall {
		return firewallPrefix + name
	}
	return name
}

// EndpointsChain returns the name of the chain that selects one of n endpoints.
func EndpointsChain(n, affinity uint32, local bool) string {
	if local {
		return localPrefix + number(n) + affinitySuffix(affinity)
	}
	return clusterPrefix + number(n) + affinitySuffix(affinity)
}

func affinitySuffix(seconds uint32) string {
	if seconds == 0 {
		return ""
	}
	return affinityInfix + number(seconds)
}

// Parts of the names of chains.
const (
	rejectName          = "no-endpoints"
	dropName            = "no-local-endpoints"
	clusterPrefix       = "cluster-"
	localPrefix         = "local-"
	externalLocalPrefix = "external-local-"
	firewallPrefix      = "firewall-"
	affinityInfix       = "-affinity-"
)

// ParseChain returns a target that has the chain. Internal and External share chains: it returns
// Internal.
func ParseChain(name string) (t Target, ok bool) {
	rest, firewall := strings.CutPrefix(name, firewallPrefix)
	t.Firewall = firewall
	rest, affinity, _ := strings.Cut(rest, affinityInfix)
	t.Affinity = parse(affinity)
	switch local, isLocal := strings.CutPrefix(rest, localPrefix); {
	case rest == rejectName:
		t.Class = Reject
	case rest == dropName:
		t.Class = Drop
	case isLocal:
		t.Class, t.Local = InternalLocal, parse(local)
	case strings.HasPrefix(rest, clusterPrefix):
		t.Class, t.Cluster = Internal, parse(strings.TrimPrefix(rest, clusterPrefix))
	case strings.HasPrefix(rest, externalLocalPrefix):
		cluster, local, _ := strings.Cut(strings.TrimPrefix(rest, externalLocalPrefix), "-")
		t.Class, t.Cluster, t.Local = ExternalLocal, parse(cluster), parse(local)
	}
	return t, t.Class != 0 && t.Chain() == name
}

// parse returns a number, or 0.
func parse(text string) uint32 {
	n, err := strconv.ParseUint(text, 10, 32)
	if err != nil {
		return 0
	}
	return uint32(n)
}

func number(n uint32) string { return strconv.FormatUint(uint64(n), 10) }

// The chains that decide whether traffic to external frontends is masqueraded.
const (
	MasqueradeExternal      = "masquerade-external"
	MasqueradeExternalLocal = "masquerade-external-local"
)

// masqueradeChain returns the chain that decides whether traffic to an external frontend is
// masqueraded, or "" if there is no traffic or the frontend is internal.
func (t Target) masqueradeChain() string {
	switch t.Class {
	case External:
		return MasqueradeExternal
	case ExternalLocal:
		return MasqueradeExternalLocal
	case Internal, InternalLocal, Reject, Drop:
	}
	return ""
}

// targetOf returns the target of a frontend with a port.
func targetOf(svc *services.Service, kind Kind, ipv6 bool, s *Selection) Target {
	t := Target{
		Cluster: uint32(len(s.Cluster)), Local: uint32(len(s.Local)), Affinity: uint32(max(svc.AffinitySeconds, 0)),
		Firewall: kind == LoadBalancerIP && len(sourceRanges(svc, ipv6)) > 0,
	}
	switch {
	case !s.HasAny:
		t.Class = Reject
	case kind == ClusterIP && !svc.InternalLocal:
		t.Class = Internal
	case kind == ClusterIP && t.Local > 0:
		t.Class = InternalLocal
	case kind == ClusterIP:
		t.Class = Drop
	case svc.ExternalLocal:
		t.Class = ExternalLocal
	default:
		t.Class = External
	}
	switch t.Class {
	case Internal, External:
		t.Local = 0
	case InternalLocal:
		t.Cluster = 0
	case Reject, Drop:
		t.Cluster, t.Local, t.Affinity = 0, 0, 0
	case ExternalLocal:
	}
	return t
}
