package nodeapi

import (
	"context"
	"net/http"
	"net/url"
)

// NodeServices are the Services that this node knows, and what routes them.
type NodeServices struct {
	// Proxy is on, off or unknown, which it is until the API server has answered for the first time.
	Proxy string `json:"proxy"`
	// ProxyError is why the rules are not up to date; empty: they are.
	ProxyError string `json:"proxyError,omitempty"`
	// DNS is on, off or unknown. DNSAddresses are where pods reach it.
	DNS          string    `json:"dns"`
	DNSAddresses []string  `json:"dnsAddresses,omitempty"`
	Services     []Service `json:"services"`
}

// Service is a Service as this node routes it.
type Service struct {
	Namespace  string   `json:"namespace"`
	Name       string   `json:"name"`
	Type       string   `json:"type"`
	ClusterIPs []string `json:"clusterIPs,omitempty"`
	// ExternalIPs are the addresses of the load balancer and spec.externalIPs.
	ExternalIPs []string `json:"externalIPs,omitempty"`
	// Summary is one sentence about what the node does with the Service.
	Summary string `json:"summary"`
	// Problems are sentences that say why nothing answers at some addresses; empty: all answer.
	Problems []string `json:"problems,omitempty"`
	// NotRouted is why this node does not route the Service; empty if it does.
	NotRouted string            `json:"notRouted,omitempty"`
	Frontends []ServiceFrontend `json:"frontends,omitempty"`
	Ports     []ServicePort     `json:"ports,omitempty"`
}

// ServiceFrontend is an address and port of a Service.
type ServiceFrontend struct {
	Kind     string `json:"kind"` // ClusterIP, NodePort, LoadBalancer or ExternalIP
	Address  string `json:"address"`
	Protocol string `json:"protocol"`
	Action   string `json:"action"` // what happens to its traffic
	// AnnouncedBy is the node that announces the address of a load balancer by ARP or NDP.
	AnnouncedBy string `json:"announcedBy,omitempty"`
}

// ServicePort is a port of a Service with its endpoints of one address family.
type ServicePort struct {
	Name      string            `json:"name,omitempty"`
	Port      uint16            `json:"port"`
	Protocol  string            `json:"protocol"`
	Topology  string            `json:"topology,omitempty"` // hints that restrict the endpoints
	Endpoints []ServiceEndpoint `json:"endpoints"`
}

// ServiceEndpoint is an endpoint of a Service.
type ServiceEndpoint struct {
	Address string `json:"address"`
	Pod     string `json:"pod,omitempty"`
	Node    string `json:"node,omitempty"`
	Used    bool   `json:"used"`             // by this node
	Reason  string `json:"reason,omitempty"` // why it is not used
}

// DNSAnswer says what the DNS server of this node answers to a question of a pod, and where it comes from.
type DNSAnswer struct {
	Name    string   `json:"name"` // the name that has been found, or the first one that was searched
	Type    string   `json:"type"`
	Rcode   string   `json:"rcode"`
	Source  string   `json:"source"` // kubernetes, forward or cache
	Answers []string `json:"answers,omitempty"`
	// Reason is why there is no answer.
	Reason string `json:"reason,omitempty"`
	// Searched are names of the search path without records.
	Searched  []string             `json:"searched,omitempty"`
	Upstream  string               `json:"upstream,omitempty"`
	Stale     bool                 `json:"stale,omitempty"`
	Seconds   float64              `json:"seconds"`
	Endpoints []DNSServiceEndpoint `json:"endpoints,omitempty"`
}

// DNSServiceEndpoint is an endpoint of a Service that the answer comes from.
type DNSServiceEndpoint struct {
	Service string `json:"service"` // NAMESPACE/NAME
	Address string `json:"address"`
	Pod     string `json:"pod,omitempty"`
	Ready   bool   `json:"ready"`
}

// DNSQuery is a question of a pod in a namespace.
type DNSQuery struct{ Name, Namespace, Type string }

func (s *server) services(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	answer, err := s.h.Services(r.Context(), q.Get("namespace"), q.Get("name"))
	reply(w, answer, err)
}

func (s *server) dns(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	answer, err := s.h.DNS(r.Context(), DNSQuery{q.Get("name"), q.Get("namespace"), q.Get("type")})
	reply(w, answer, err)
}

// Services returns the Services of a namespace, or of all if it is empty. A name selects one of them.
func (c *Client) Services(ctx context.Context, namespace, name string) (NodeServices, error) {
	return fetch[NodeServices](ctx, c, request{method: http.MethodGet, path: "/v1/services", query: url.Values{
		"namespace": {namespace}, "name": {name},
	}})
}

// DNS returns what the DNS server of the node answers.
func (c *Client) DNS(ctx context.Context, q DNSQuery) (DNSAnswer, error) {
	return fetch[DNSAnswer](ctx, c, request{method: http.MethodGet, path: "/v1/dns", query: url.Values{
		"name": {q.Name}, "namespace": {q.Namespace}, "type": {q.Type},
	}})
}
