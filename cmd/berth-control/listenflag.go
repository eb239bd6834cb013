package main

import (
	"fmt"
	"net"
	"net/netip"
	"strconv"
)

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
