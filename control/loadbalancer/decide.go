package loadbalancer

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// Name identifies a Service.
type Name struct{ Namespace, Name string }

// String returns namespace/name.
func (n Name) String() string { return n.Namespace + "/" + n.Name }

// Service is a Service of type LoadBalancer that needs addresses.
type Service struct {
	Name
	Created time.Time
	// IPv4 and IPv6 are the families of the Service.
	IPv4, IPv6 bool
	Ports      []Port
	// Local is true for externalTrafficPolicy Local. Endpoints then has the names of the nodes with
	// ready endpoints.
	Local     bool
	Endpoints map[string]bool
	// Wanted are the addresses that the user asks for, at most one per family.
	Wanted []netip.Addr
	// Current are the addresses that the Service has. Admitted is true if the last decision had no
	// problem: the Service then comes before those that wait.
	Current  []netip.Addr
	Admitted bool
}

// Port is a port of a load balancer. Protocol is as in the API.
type Port struct {
	Protocol string
	Port     int32
}

// Node is a node that may accept the traffic of load balancers.
type Node struct {
	Name string
	// Addresses are the addresses for clients, preferred first.
	Addresses []netip.Addr
	// Usable is false if the node is not ready, or excluded from load balancers.
	Usable bool
	// Reserved are ports of the node's own addresses that no Service may take, with their use.
	Reserved map[Port]string
}

// Input is everything that the decision depends on.
type Input struct {
	Services []Service
	Nodes    []Node
	Pool     Pool // empty: Services have the addresses of nodes
}

// Assignment is the result for one Service.
type Assignment struct {
	// Addresses are those of the first family first.
	Addresses []netip.Addr
	// Problem is why the Service lacks an address; empty if it has all.
	Problem string
}

// Decide returns the addresses of each Service.
func Decide(in Input) map[Name]Assignment {
	services := slices.Clone(in.Services)
	slices.SortFunc(services, func(a, b Service) int {
		if c := a.Created.Compare(b.Created); c != 0 {
			return c
		}
		return strings.Compare(a.String(), b.String())
	})
	if len(in.Pool) > 0 {
		return fromPool(services, in)
	}
	return fromNodes(services, in.Nodes)
}

// families returns which families a Service has: false is IPv4.
func (s *Service) families() (out []bool) {
	if s.IPv4 {
		out = append(out, false)
	}
	if s.IPv6 {
		out = append(out, true)
	}
	return out
}

// wants returns the address of a family that the user asks for.
func (s *Service) wants(ipv6 bool) (netip.Addr, bool) {
	i := slices.IndexFunc(s.Wanted, func(a netip.Addr) bool { return a.Is6() == ipv6 })
	if i < 0 {
		return netip.Addr{}, false
	}
	return s.Wanted[i], true
}

// fromPool assigns addresses of the pool: first those that Services have, then the requested ones, then
// free ones. Older Services come first.
//
//nolint:gocyclo // one case after another, each on its own
func fromPool(services []Service, in Input) map[Name]Assignment {
	owner := map[netip.Addr]Name{}
	nodeAddress := map[netip.Addr]string{}
	for _, n := range in.Nodes {
		for _, a := range n.Addresses {
			nodeAddress[a] = n.Name
		}
	}
	valid := func(s *Service, a netip.Addr) bool {
		w, asked := s.wants(a.Is6())
		return in.Pool.Contains(a) && nodeAddress[a] == "" && (!asked || w == a)
	}
	assigned := map[Name]*[2]netip.Addr{}
	take := func(s *Service, a netip.Addr) bool {
		list := assigned[s.Name]
		if _, taken := owner[a]; taken || list[family(a)].IsValid() {
			return false
		}
		owner[a], list[family(a)] = s.Name, a
		return true
	}
	for i := range services {
		s := &services[i]
		assigned[s.Name] = &[2]netip.Addr{}
		for _, a := range s.Current {
			if slices.Contains(s.families(), a.Is6()) && valid(s, a) {
				take(s, a)
			}
		}
	}
	for i := range services {
		s := &services[i]
		for _, ipv6 := range s.families() {
			if w, asked := s.wants(ipv6); asked && valid(s, w) {
				take(s, w)
			}
		}
	}
	out := make(map[Name]Assignment, len(services))
	for i := range services {
		s := &services[i]
		var problems []string
		for _, ipv6 := range s.families() {
			if assigned[s.Name][familyIndex(ipv6)].IsValid() {
				continue
			}
			if w, asked := s.wants(ipv6); asked {
				problems = append(problems, unavailable(w, in.Pool, nodeAddress, owner))
				continue
			}
			a, ok := in.Pool.free(ipv6, func(a netip.Addr) bool {
				_, taken := owner[a]
				return taken || nodeAddress[a] != ""
			})
			if !ok || !take(s, a) {
				problems = append(problems, noneLeft(in.Pool, ipv6))
			}
		}
		out[s.Name] = s.result(assigned[s.Name], in.Pool, problems)
	}
	return out
}

// result returns the assignment from the pool. A family that the pool does not have is a problem only
// if the Service would have no address.
func (s *Service) result(list *[2]netip.Addr, pool Pool, problems []string) (a Assignment) {
	for _, ipv6 := range s.families() {
		if address := list[familyIndex(ipv6)]; address.IsValid() {
			a.Addresses = append(a.Addresses, address)
		}
	}
	if len(a.Addresses) > 0 {
		problems = slices.DeleteFunc(problems, func(p string) bool {
			return p == noneLeft(pool, false) && !pool.hasFamily(false) ||
				p == noneLeft(pool, true) && !pool.hasFamily(true)
		})
	}
	a.Problem = strings.Join(problems, "; ")
	return a
}

func family(a netip.Addr) int { return familyIndex(a.Is6()) }

func familyIndex(ipv6 bool) int {
	if ipv6 {
		return 1
	}
	return 0
}

func familyName(ipv6 bool) string {
	if ipv6 {
		return "IPv6"
	}
	return "IPv4"
}

func noneLeft(pool Pool, ipv6 bool) string {
	if !pool.hasFamily(ipv6) {
		return "the load balancer pool has no " + familyName(ipv6) + " addresses"
	}
	return "the load balancer pool has no free " + familyName(ipv6) + " address"
}

// unavailable returns why a requested address cannot be assigned.
func unavailable(a netip.Addr, pool Pool, nodes map[netip.Addr]string, owner map[netip.Addr]Name) string {
	switch other, taken := owner[a]; {
	case !pool.Contains(a):
		return fmt.Sprintf("requested address %s is not in the load balancer pool", a)
	case nodes[a] != "":
		return fmt.Sprintf("requested address %s is an address of node %s", a, nodes[a])
	case taken:
		return fmt.Sprintf("requested address %s belongs to Service %s", a, other)
	}
	return fmt.Sprintf("requested address %s is not available", a)
}
