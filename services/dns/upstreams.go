package dns

import (
	"bufio"
	"bytes"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	// resolvedFile has the servers that systemd-resolved uses.
	resolvedFile = "/run/systemd/resolve/resolv.conf"
	// maxUpstreams is the number of servers that are used at most, as in CoreDNS.
	maxUpstreams = 15
	// checkEvery is how often the file with the upstream servers is checked.
	checkEvery = 5 * time.Second
	// failuresUntilDown is the number of failures in a row after which a server is queried last.
	failuresUntilDown = 2
	// maxDown limits how long a server is queried last without another try.
	maxDown = 30 * time.Second
)

// stubs are the addresses of systemd-resolved's own server, which may use this server.
var stubs = []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 53}), netip.AddrFrom4([4]byte{127, 0, 0, 54})}

// parseResolvConf returns the name servers of a resolv.conf, in their order.
func parseResolvConf(text []byte) (servers []netip.Addr) {
	lines := bufio.NewScanner(bytes.NewReader(text))
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 2 || fields[0] != "nameserver" {
			continue
		}
		if a, err := netip.ParseAddr(fields[1]); err == nil && !slices.Contains(servers, a) {
			servers = append(servers, a)
		}
	}
	return servers
}

// selectUpstreams returns the servers to forward to. It replaces the stub of systemd-resolved by the
// servers that resolved uses, and refuses addresses of this server itself.
func selectUpstreams(servers []netip.Addr, resolved func() []netip.Addr, own func(netip.Addr) bool) (
	use, refused []netip.Addr) {
	isStub := func(a netip.Addr) bool { return slices.Contains(stubs, a.Unmap()) }
	for i, a := range servers {
		if isStub(a) {
			rest := slices.DeleteFunc(slices.Clone(servers), isStub)
			servers = slices.Insert(rest, min(i, len(rest)), resolved()...)
			break
		}
	}
	for _, a := range servers {
		switch {
		case isStub(a) || a.IsUnspecified() || own(a.Unmap()):
			refused = append(refused, a)
		case !slices.Contains(use, a) && len(use) < maxUpstreams:
			use = append(use, a)
		}
	}
	return use, refused
}

// upstream is a server with its health. Upstreams are locked by their owner.
type upstream struct {
	address  netip.AddrPort
	failures int
	until    time.Time // it is queried last before this time
}

// upstreams are the servers of a resolv.conf. It is safe for concurrent use.
type upstreams struct {
	path string
	port uint16
	own  func(netip.Addr) bool
	// changed is called with the servers when they have changed.
	changed func(use, refused []netip.Addr, err error)

	mu      sync.Mutex
	checked time.Time
	content string
	list    []*upstream
}

// order returns the servers in the order in which to query them: the healthy ones as in the file, then
// the others. broken is true if none is healthy.
func (u *upstreams) order(now time.Time) (out []netip.AddrPort, broken bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.reload(now)
	var down []netip.AddrPort
	for _, s := range u.list {
		if now.Before(s.until) {
			down = append(down, s.address)
		} else {
			out = append(out, s.address)
		}
	}
	return append(out, down...), len(out) == 0
}

// has reports whether an address is that of a server.
func (u *upstreams) has(a netip.Addr) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return slices.ContainsFunc(u.list, func(s *upstream) bool { return s.address.Addr().Unmap() == a })
}

// reload reads the file again if it was not checked for some time. A file that cannot be read leaves
// the servers as they are.
func (u *upstreams) reload(now time.Time) {
	if !u.checked.IsZero() && now.Sub(u.checked) < checkEvery {
		return
	}
	first := u.checked.IsZero()
	u.checked = now
	text, err := os.ReadFile(u.path)
	if err != nil {
		if first {
			u.changed(nil, nil, err)
		}
		return
	}
	use, refused := selectUpstreams(parseResolvConf(text), func() []netip.Addr {
		text, err := os.ReadFile(resolvedFile)
		if err != nil {
			return nil
		}
		return parseResolvConf(text)
	}, u.own)
	list := make([]*upstream, 0, len(use))
	for _, a := range use {
		address := netip.AddrPortFrom(a, u.port)
		at := slices.IndexFunc(u.list, func(s *upstream) bool { return s.address == address })
		if at >= 0 {
			list = append(list, u.list[at])
		} else {
			list = append(list, &upstream{address: address})
		}
	}
	u.list = list
	content := joinAddresses(use) + " " + joinAddresses(refused)
	if first || content != u.content {
		u.content = content
		u.changed(use, refused, nil)
	}
}

func joinAddresses(list []netip.Addr) string {
	texts := make([]string, len(list))
	for i, a := range list {
		texts[i] = a.String()
	}
	return strings.Join(texts, ",")
}

// report records the outcome of a question to a server.
func (u *upstreams) report(address netip.AddrPort, ok bool, now time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, s := range u.list {
		if s.address != address {
			continue
		}
		if ok {
			s.failures, s.until = 0, time.Time{}
			return
		}
		if s.failures++; s.failures >= failuresUntilDown {
			s.until = now.Add(min(maxDown, time.Second<<min(s.failures-failuresUntilDown, 5)))
		}
	}
}
