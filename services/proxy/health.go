package proxy

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"runtime"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/vishvananda/netns"

	corev1 "k8s.io/api/core/v1"

	"berth/services"
	"berth/services/proxy/ruleset"
)

// healthServers answer on the health check node ports of Services with external traffic policy
// Local. The goroutine of Run owns them.
type healthServers struct {
	*Proxy
	servers map[services.Name]*healthServer
	healthy *atomic.Bool // the last sync succeeded
}

// healthServer answers for one Service.
type healthServer struct {
	name      services.Name
	port      uint16
	endpoints atomic.Int64
	healthy   *atomic.Bool
	servers   []*http.Server
}

// healthTimeout limits how long a client may take for its request.
const healthTimeout = 5 * time.Second

func newHealthServers(p *Proxy) *healthServers {
	return &healthServers{Proxy: p, servers: map[services.Name]*healthServer{}, healthy: &atomic.Bool{}}
}

// update starts, changes and stops servers for changed Services.
func (h *healthServers) update(updates []ruleset.Update, node *Node) {
	for _, u := range updates {
		port := healthPort(u.Service)
		old := h.servers[u.Name]
		if old != nil && old.port != port {
			old.close()
			delete(h.servers, u.Name)
			old = nil
		}
		if port == 0 {
			continue
		}
		if old == nil {
			old = &healthServer{name: u.Name, port: port, healthy: h.healthy}
			h.servers[u.Name] = old
		}
		old.endpoints.Store(int64(ruleset.LocalReady(u.Service, u.Slices, node)))
		if len(old.servers) == 0 {
			h.listen(old, node)
		}
	}
}

// healthPort returns the health check node port, or 0 if the Service has none.
func healthPort(svc *services.Service) uint16 {
	if svc == nil || svc.Type != corev1.ServiceTypeLoadBalancer || !svc.ExternalLocal || !ruleset.Proxied(svc) {
		return 0
	}
	return svc.HealthCheckNodePort
}

// listen opens the port on all addresses for NodePorts. A failure is tried again when the Service
// changes or all rules are compared.
func (h *healthServers) listen(s *healthServer, node *Node) {
	for _, a := range node.NodePortAddresses {
		l, err := listenAt(h.opt.NetNS, netip.AddrPortFrom(a, s.port))
		if err != nil {
			s.close()
			h.opt.Log.Warn("health check node port could not be opened",
				"service", s.name.String(), "port", s.port, "err", err)
			if f := h.opt.OnHealthCheckFailure; f != nil {
				f(s.name, fmt.Errorf("node %s failed to start healthcheck %q on port %d: %w",
					node.Name, s.name.String(), s.port, err))
			}
			return
		}
		server := &http.Server{Handler: s, ReadHeaderTimeout: healthTimeout, IdleTimeout: healthTimeout}
		s.servers = append(s.servers, server)
		go func() { _ = server.Serve(l) }() // ends with Close
	}
}

// retry opens ports that could not be opened.
func (h *healthServers) retry(node *Node) {
	for _, s := range h.servers {
		if len(s.servers) == 0 {
			h.listen(s, node)
		}
	}
}

// closeAll closes the ports. The next update of a Service opens its port again.
func (h *healthServers) closeAll() {
	for _, s := range h.servers {
		s.close()
	}
}

func (h *healthServers) stop() { h.closeAll() }

func (s *healthServer) close() {
	for _, server := range s.servers {
		_ = server.Close()
	}
	s.servers = nil
}

// health is the answer, as load balancers know it from kube-proxy.
type health struct {
	Service struct {
		Namespace string `json:"namespace"`
		Name      string `json:"name"`
	} `json:"service"`
	LocalEndpoints      int64 `json:"localEndpoints"`
	ServiceProxyHealthy bool  `json:"serviceProxyHealthy"`
}

// ServeHTTP answers 200 if the node has endpoints of the Service and its rules are in sync.
func (s *healthServer) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	var answer health
	answer.Service.Namespace, answer.Service.Name = s.name.Namespace, s.name.Name
	answer.LocalEndpoints, answer.ServiceProxyHealthy = s.endpoints.Load(), s.healthy.Load()
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("X-Load-Balancing-Endpoint-Weight", strconv.FormatInt(answer.LocalEndpoints, 10))
	if answer.LocalEndpoints == 0 || !answer.ServiceProxyHealthy {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	e := json.NewEncoder(w)
	e.SetIndent("", "\t")
	_ = e.Encode(answer) // the client is gone
}

// listenAt opens a TCP port in a network namespace, or in that of the process.
func listenAt(ns netns.NsHandle, at netip.AddrPort) (net.Listener, error) {
	listen := func() (net.Listener, error) {
		return (&net.ListenConfig{}).Listen(context.Background(), "tcp", at.String())
	}
	if !ns.IsOpen() {
		return listen()
	}
	type result struct {
		net.Listener
		error
	}
	out := make(chan result)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		if err := netns.Set(ns); err != nil {
			out <- result{nil, err}
			return
		}
		l, err := listen()
		out <- result{l, err}
	}()
	r := <-out
	return r.Listener, r.error
}
