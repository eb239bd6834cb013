package dns

import (
	"bytes"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/miekg/dns"

	"berth/services"
)

// Reverse finds Services by the addresses of themselves and of their endpoints. It is safe for
// concurrent use. It brings itself up to date at each call.
type Reverse struct {
	store *services.Store
	sub   *services.Subscription

	mu        sync.Mutex
	indexed   map[services.Name]*indexed
	byAddress map[addressKey]*indexed
	// more are the further Services of an address that several have.
	more map[addressKey][]*indexed
}

// addressKey is an address in its form of 16 bytes, which needs less memory than a netip.Addr.
type addressKey [16]byte

func (k addressKey) compare(o addressKey) int { return bytes.Compare(k[:], o[:]) }

// indexed is a Service in the index.
type indexed struct {
	name      services.Name
	addresses []addressKey // sorted
}

// NewReverse returns an index of a store. Close ends its subscription.
func NewReverse(store *services.Store) *Reverse {
	return &Reverse{
		store: store, sub: store.Subscribe(), indexed: map[services.Name]*indexed{},
		byAddress: map[addressKey]*indexed{}, more: map[addressKey][]*indexed{},
	}
}

// Close ends the subscription. The index keeps what it has.
func (r *Reverse) Close() { r.sub.Close() }

// Changed is signaled when Refresh has something to do.
func (r *Reverse) Changed() <-chan struct{} { return r.sub.Changed() }

// Refresh brings the index up to date with the store. It reports whether something changed.
func (r *Reverse) Refresh() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.refresh()
}

func (r *Reverse) refresh() bool {
	names := r.sub.Take()
	for name := range names {
		svc, endpoints := r.store.Service(name)
		r.set(name, addressesOf(svc, endpoints))
	}
	return len(names) > 0
}

// addressesOf returns the addresses that lead to a Service, sorted.
func addressesOf(svc *services.Service, endpoints []*services.Slice) (out []addressKey) {
	if svc == nil {
		return nil
	}
	count := len(svc.ClusterIPs)
	for _, slice := range endpoints {
		count += len(slice.Endpoints)
	}
	out = make([]addressKey, 0, count)
	for _, ip := range svc.ClusterIPs {
		out = append(out, ip.As16())
	}
	for _, slice := range endpoints {
		for i := range slice.Endpoints {
			if e := &slice.Endpoints[i]; ready(svc, e) {
				out = append(out, e.Address.As16())
			}
		}
	}
	slices.SortFunc(out, addressKey.compare)
	return slices.Compact(out)
}

// set replaces the addresses of a Service.
func (r *Reverse) set(name services.Name, addresses []addressKey) {
	old := r.indexed[name]
	if old == nil {
		if len(addresses) == 0 {
			return
		}
		old = &indexed{name: name}
		r.indexed[name] = old
	}
	has := func(list []addressKey, a addressKey) bool {
		_, found := slices.BinarySearchFunc(list, a, addressKey.compare)
		return found
	}
	for _, a := range old.addresses {
		if !has(addresses, a) {
			r.remove(a, old)
		}
	}
	for _, a := range addresses {
		switch {
		case has(old.addresses, a):
		case r.byAddress[a] == nil:
			r.byAddress[a] = old
		default:
			r.more[a] = append(r.more[a], old)
		}
	}
	if old.addresses = addresses; len(addresses) == 0 {
		delete(r.indexed, name)
	}
}

// remove removes a Service from an address.
func (r *Reverse) remove(a addressKey, svc *indexed) {
	more := r.more[a]
	if r.byAddress[a] != svc {
		more = slices.DeleteFunc(more, func(o *indexed) bool { return o == svc })
	} else if len(more) == 0 {
		delete(r.byAddress, a)
		return
	} else {
		r.byAddress[a] = more[0]
		more = slices.Delete(more, 0, 1)
	}
	if r.more[a] = more; len(more) == 0 {
		delete(r.more, a)
	}
}

// Services returns the Services that an address leads to, sorted.
func (r *Reverse) Services(a netip.Addr) (out []services.Name) {
	r.read(a, func(_ services.View, names []services.Name) { out = names })
	return out
}

// read calls f with the state of the store and the Services that an address leads to, sorted. Services that
// have changed meanwhile are among them.
func (r *Reverse) read(a netip.Addr, f func(v services.View, names []services.Name)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.refresh()
	r.store.View(func(v services.View) {
		names := slices.Collect(maps.Keys(v.Pending(r.sub)))
		if first := r.byAddress[a.As16()]; first != nil {
			names = append(names, first.name)
		}
		for _, svc := range r.more[a.As16()] {
			names = append(names, svc.name)
		}
		slices.SortFunc(names, services.Name.Compare)
		f(v, slices.Compact(names))
	})
}

// AnswerPTR answers a PTR question about an address with the Service that has the address, or with
// all endpoints that have it. It returns no records if the cluster does not have the address.
func (z *Zone) AnswerPTR(q dns.Question, address netip.Addr, r *Reverse) (a Answer) {
	r.read(address, func(v services.View, names []services.Name) { a = z.answerPTR(v, q, address, names) })
	return a
}

func (z *Zone) answerPTR(st state, q dns.Question, address netip.Addr, names []services.Name) (a Answer) {
	seen := map[string]bool{}
	for _, name := range names {
		svc, endpoints := st.Service(name)
		if svc == nil {
			continue
		}
		if slices.Contains(svc.ClusterIPs, address) {
			return Answer{Services: []services.Name{name}, Answer: []dns.RR{
				&dns.PTR{Hdr: header(q.Name, dns.TypePTR, zoneTTL), Ptr: z.serviceName(name)}}}
		}
		before := len(a.Answer)
		for _, slice := range endpoints {
			for i := range slice.Endpoints {
				e := &slice.Endpoints[i]
				if e.Address != address || !ready(svc, e) {
					continue
				}
				if host := hostname(e) + "." + z.serviceName(name); !seen[host] {
					seen[host] = true
					a.Answer = append(a.Answer, &dns.PTR{Hdr: header(q.Name, dns.TypePTR, zoneTTL), Ptr: host})
				}
			}
		}
		if len(a.Answer) > before {
			a.Services = append(a.Services, name)
		}
	}
	return a
}

// reverseAddress returns the address that a name in lower case below in-addr.arpa or ip6.arpa stands
// for, or the zero Addr.
func reverseAddress(qname string) netip.Addr {
	if rest, ok := strings.CutSuffix(qname, ".in-addr.arpa."); ok {
		labels := strings.Split(rest, ".")
		slices.Reverse(labels)
		if a, err := netip.ParseAddr(strings.Join(labels, ".")); err == nil && len(labels) == 4 && a.Is4() {
			return a
		}
		return netip.Addr{}
	}
	rest, ok := strings.CutSuffix(qname, ".ip6.arpa.")
	if !ok || len(rest) != 63 {
		return netip.Addr{}
	}
	var bytes [16]byte
	for i := range 32 {
		digit, err := strconv.ParseUint(rest[2*i:2*i+1], 16, 8)
		if err != nil || i < 31 && rest[2*i+1] != '.' {
			return netip.Addr{}
		}
		bytes[15-i/2] |= byte(digit) << (4 * (i % 2))
	}
	return netip.AddrFrom16(bytes)
}
