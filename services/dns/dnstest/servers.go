package dnstest

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"syscall"

	"github.com/miekg/dns"

	"berth/services"
	agentdns "berth/services/dns"
)

// Serve starts the DNS server of the agent on loopback. It forwards to a server on a port of 127.0.0.1. dir
// is for its files. stop ends it.
func Serve(store *services.Store, upstream uint16, dir string, log *slog.Logger) (address string, stop func() error,
	err error) {
	path := filepath.Join(dir, "resolv.conf")
	if err := os.WriteFile(path, []byte("nameserver 127.0.0.1\n"), 0o600); err != nil {
		return "", nil, err
	}
	sockets, err := listen()
	if err != nil {
		return "", nil, err
	}
	forward := agentdns.NewForwarder(agentdns.ForwardOptions{ResolvConf: path, Port: upstream, Log: log,
		Own: func(netip.Addr) bool { return false }})
	server := agentdns.NewServer(agentdns.Options{Domain: "cluster.local", Store: store, Forward: forward, Log: log,
		Addresses: []netip.Addr{sockets.Addresses()[0].Addr()}})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- server.Serve(ctx, sockets) }()
	return sockets.Addresses()[0].String(), func() error {
		cancel()
		err := <-done
		server.Close()
		forward.Close()
		return err
	}, nil
}

// StartUpstream starts the server that both servers forward to, over UDP and TCP. stop ends it.
func StartUpstream() (port uint16, stop func(), err error) {
	sockets, err := listen()
	if err != nil {
		return 0, nil, err
	}
	port = sockets.Addresses()[0].Port()
	packets, listeners := sockets.Conns()
	servers := []*dns.Server{{PacketConn: packets[0]}, {Listener: listeners[0]}}
	var running sync.WaitGroup
	for _, server := range servers {
		server.Handler = dns.HandlerFunc(answerUpstream)
		started := make(chan struct{})
		server.NotifyStartedFunc = func() { close(started) }
		running.Go(func() {
			_ = server.ActivateAndServe() // ends with stop
		})
		<-started
	}
	return port, func() {
		for _, server := range servers {
			_ = server.Shutdown() // it was started
		}
		running.Wait()
	}, nil
}

// listen opens sockets on loopback. The free port that UDP gets may be in use for TCP: then it tries again.
func listen() (s *agentdns.Sockets, err error) {
	for range 20 {
		s, err = agentdns.Open([]netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:0")}, nil)
		if !errors.Is(err, syscall.EADDRINUSE) {
			break
		}
	}
	return s, err
}
