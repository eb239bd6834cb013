package main

import (
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"

	"berth/control/loadbalancer"
)

// cidrList is a flag value: a comma-separated list of CIDRs, at most one per IP family.
type cidrList struct{ to *[]netip.Prefix }

// String returns the current value.
func (r *cidrList) String() string {
	if r.to == nil {
		return ""
	}
	texts := make([]string, 0, len(*r.to))
	for _, p := range *r.to {
		texts = append(texts, p.String())
	}
	return strings.Join(texts, ",")
}

// Set replaces the value.
func (r *cidrList) Set(text string) error {
	var out []netip.Prefix
	families := map[bool]bool{}
	for part := range strings.SplitSeq(text, ",") {
		if part == "" {
			continue
		}
		p, err := netip.ParsePrefix(part)
		if err != nil {
			return fmt.Errorf("%q is not a CIDR such as 10.42.0.0/16", part)
		}
		if p != p.Masked() {
			return fmt.Errorf("%q: did you mean %s?", part, p.Masked())
		}
		if families[p.Addr().Is4()] {
			return fmt.Errorf("%q: only one CIDR per IP family is allowed", part)
		}
		families[p.Addr().Is4()] = true
		out = append(out, p)
	}
	*r.to = out
	return nil
}

// Type returns the placeholder for the help text.
func (r *cidrList) Type() string { return "CIDR" }

// listenAddress is a flag value: the IP address in ADDRESS:PORT.
type listenAddress struct{ to *string }

// String returns the current value.
func (l listenAddress) String() string {
	if l.to == nil {
		return ""
	}
	host, _, _ := net.SplitHostPort(*l.to)
	return host
}

// Set replaces the address.
func (l listenAddress) Set(text string) error {
	address, err := netip.ParseAddr(text)
	if err != nil {
		return fmt.Errorf("%q is not an IP address", text)
	}
	_, port, err := net.SplitHostPort(*l.to)
	if err != nil {
		return err
	}
	*l.to = net.JoinHostPort(address.String(), port)
	return nil
}

// Type returns the placeholder for the help text.
func (l listenAddress) Type() string { return "ip" }

// listenPort is a flag value: the port in ADDRESS:PORT.
type listenPort struct{ to *string }

// String returns the current value.
func (l listenPort) String() string {
	if l.to == nil {
		return ""
	}
	_, port, _ := net.SplitHostPort(*l.to)
	return port
}

// Set replaces the port.
func (l listenPort) Set(text string) error {
	port, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return fmt.Errorf("%q is not a port number", text)
	}
	host, _, err := net.SplitHostPort(*l.to)
	if err != nil {
		return err
	}
	*l.to = net.JoinHostPort(host, strconv.FormatUint(port, 10))
	return nil
}

// Type returns the placeholder for the help text.
func (l listenPort) Type() string { return "int" }

// poolFlag is a flag value: a comma-separated list of CIDRs and ranges of addresses.
type poolFlag struct{ to *loadbalancer.Pool }

// String returns the current value.
func (p *poolFlag) String() string {
	if p.to == nil {
		return ""
	}
	texts := make([]string, 0, len(*p.to))
	for _, r := range *p.to {
		texts = append(texts, r.String())
	}
	return strings.Join(texts, ",")
}

// Set replaces the value.
func (p *poolFlag) Set(text string) error {
	if text == "" {
		*p.to = nil
		return nil
	}
	pool, err := loadbalancer.ParsePool(strings.Split(text, ","))
	if err == nil {
		*p.to = pool
	}
	return err
}

// Type returns the placeholder for the help text.
func (p *poolFlag) Type() string { return "pool" }
