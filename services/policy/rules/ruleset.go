package rules

import (
	"crypto/sha256"
	"encoding/base32"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"berth/services/policy/selection"
)

// Ruleset is the content of the table.
type Ruleset struct {
	Chains   map[string]*Chain
	Sets     map[string]*Set
	Counters map[string]struct{}
}

// Chain is a list of rules. It is never modified.
type Chain struct {
	Name string
	// Base is true for a chain that the kernel calls at the forward hook; chain egress comes before
	// chain ingress. An accepted packet goes on to the next base chain.
	Base  bool
	Rules []Rule
}

// Rule has a verdict on the packets that match all its conditions.
type Rule struct {
	Matches []Match
	// Counter is the name of a counter of the packets; empty if they are not counted.
	Counter string
	Verdict Verdict
	// Map is a set of type VerdictMap that has the verdict by the field Key. A packet whose key is not
	// in the map continues with the next rule. If Map is empty, the verdict is Verdict.
	Map *Set
	Key Field
}

// Verdict is what happens with a packet.
type Verdict struct {
	Kind  VerdictKind
	Chain string // of Jump and Goto
}

// VerdictKind is the kind of a verdict.
type VerdictKind uint8

const (
	None VerdictKind = iota
	Accept
	Drop
	Jump // return to the next rule at the end of the chain
	Goto // accept at the end of the chain
)

// Match is a condition on a packet.
type Match struct {
	Kind MatchKind
	// Set and Field belong to the kind InSet. Only the name and the type of the set are used.
	Set   *Set
	Field Field
	// First and Last are a range of ICMPv6 types.
	First, Last uint8
}

// MatchKind is the kind of a condition.
type MatchKind uint8

const (
	Established MatchKind = iota // belongs to a known connection, or is related to one
	IPv4
	IPv6
	ICMPv6Type
	InSet // the field is in the set
)

// Field is the part of a packet that is looked up in a set.
type Field uint8

const (
	Source            Field = iota // address
	Destination                    // address
	Port                           // protocol and destination port
	DestinationPort                // destination address, protocol and destination port
	SourceDestination              // source and destination address
	InputInterface                 // name
)

// Family is an address family.
type Family uint8

const (
	NoFamily Family = 0
	V4       Family = 4
	V6       Family = 6
)

// FamilyOf returns the family of an address.
func FamilyOf(a netip.Addr) Family {
	if a.Is4() {
		return V4
	}
	return V6
}

// SetType is the type of a set.
type SetType uint8

const (
	Addresses     SetType = iota // Element.First
	AddressRanges                // Element.First to Element.Last; never modified
	PortRanges                   // Element.Protocol, FirstPort to LastPort; never modified
	AddressPorts                 // Element.First, Protocol and FirstPort
	AddressPairs                 // Element.First and Last
	VerdictMap                   // Element.First
	Interfaces                   // Element.Interface; never modified
)

// Set is a set of elements, or a map from elements to verdicts.
type Set struct {
	Name     string
	Type     SetType
	Family   Family // of the addresses
	Elements map[Element]Verdict
}

// Element is an element of a set. Its type says which fields it uses.
type Element struct {
	First, Last         netip.Addr
	Protocol            selection.Protocol
	FirstPort, LastPort uint16
	Interface           string
}

// Transaction changes one ruleset into another. All changes take effect at once.
type Transaction struct {
	// Remove removes the table.
	Remove bool
	// Replace replaces the content of the table, or creates it. The other fields are empty then.
	Replace *Ruleset

	AddCounters, DeleteCounters []string
	AddSets                     []*Set
	DeleteSets                  []*Set
	// Elements are deleted before elements are added.
	DeleteElements, AddElements []*Set
	AddChains                   []*Chain
	// ReplaceRules are chains whose rules are replaced.
	ReplaceRules []*Chain
	DeleteChains []*Chain
}

// Empty reports whether the transaction changes nothing.
func (t *Transaction) Empty() bool {
	return !t.Remove && t.Replace == nil && len(t.AddCounters)+len(t.DeleteCounters)+len(t.AddSets)+
		len(t.DeleteSets)+len(t.DeleteElements)+len(t.AddElements)+len(t.AddChains)+len(t.ReplaceRules)+
		len(t.DeleteChains) == 0
}

// Equal reports whether two rules are the same.
func (r Rule) Equal(s Rule) bool {
	return r.Counter == s.Counter && r.Verdict == s.Verdict && r.Key == s.Key && r.Map.equalRef(s.Map) &&
		slices.EqualFunc(r.Matches, s.Matches, func(m, n Match) bool {
			return m.Kind == n.Kind && m.Field == n.Field && m.First == n.First && m.Last == n.Last &&
				m.Set.equalRef(n.Set)
		})
}

// equalRef reports whether both refer to the same set.
func (s *Set) equalRef(t *Set) bool {
	return s == t || s != nil && t != nil && s.Name == t.Name && s.Type == t.Type && s.Family == t.Family
}

// String returns the rule in the words of the nft program, as far as they exist.
func (r Rule) String() string {
	var words []string
	for _, m := range r.Matches {
		words = append(words, m.String())
	}
	if r.Counter != "" {
		words = append(words, "counter name "+r.Counter)
	}
	if r.Map != nil {
		words = append(words, r.Key.String()+" vmap @"+r.Map.Name)
	} else {
		words = append(words, r.Verdict.String())
	}
	return strings.Join(words, " ")
}

// String returns the condition in the words of the nft program.
func (m Match) String() string {
	switch m.Kind {
	case Established:
		return "ct state established,related"
	case IPv4:
		return "meta nfproto ipv4"
	case IPv6:
		return "meta nfproto ipv6"
	case ICMPv6Type:
		return fmt.Sprintf("icmpv6 type %d-%d", m.First, m.Last)
	case InSet:
		return m.Field.String() + " @" + m.Set.Name
	}
	return "unknown"
}

// String returns the field in the words of the nft program, without the family.
func (f Field) String() string {
	return [...]string{"ip saddr", "ip daddr", "meta l4proto . th dport", "ip daddr . meta l4proto . th dport",
		"ip saddr . ip daddr", "iifname"}[f]
}

// String returns the verdict in the words of the nft program.
func (v Verdict) String() string {
	return strings.TrimSpace([...]string{"", "accept", "drop", "jump", "goto"}[v.Kind] + " " + v.Chain)
}

// hash returns a short text that is different for different content, also if a user chooses the
// content to make it equal.
func hash(content string) string {
	sum := sha256.Sum256([]byte(content))
	return strings.ToLower(base32.StdEncoding.EncodeToString(sum[:10]))
}

// nameLength limits the length of names, which the kernel does at 255.
const nameLength = 120

// named returns the name of an object: its kind, the hash of what identifies it, and a readable part.
func named(kind, identity, readable string) string {
	name := kind + "-" + hash(identity)
	if readable != "" {
		name += "-" + readable
	}
	return name[:min(len(name), nameLength)]
}
