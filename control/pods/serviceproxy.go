package pods

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apiserver/pkg/registry/rest"
)

// ServiceProxy implements services/[SCHEME:]NAME[:PORT]/proxy. It selects one of the ready
// endpoints.
type ServiceProxy struct {
	// GetService and GetEndpoints return the object of that name in the namespace of the context.
	GetService func(ctx context.Context, name string) (*corev1.Service, error)
	//nolint:staticcheck // served as long as upstream serves it
	GetEndpoints func(ctx context.Context, name string) (*corev1.Endpoints, error)
	PodTransport http.RoundTripper
}

var _ rest.Connecter = (*ServiceProxy)(nil)

// New returns empty options: their kind is that of the subresource.
func (p *ServiceProxy) New() runtime.Object { return &corev1.ServiceProxyOptions{} }

// Destroy does nothing: there is no storage.
func (p *ServiceProxy) Destroy() {}

// ConnectMethods returns all HTTP methods.
func (p *ServiceProxy) ConnectMethods() []string { return append([]string(nil), proxyMethods...) }

// NewConnectOptions returns empty options with the rest of the path.
func (p *ServiceProxy) NewConnectOptions() (runtime.Object, bool, string) {
	return &corev1.ServiceProxyOptions{}, true, "path"
}

// Connect returns the proxy handler.
func (p *ServiceProxy) Connect(
	ctx context.Context,
	id string,
	options runtime.Object,
	respond rest.Responder,
) (http.Handler, error) {
	o, ok := options.(*corev1.ServiceProxyOptions)
	if !ok {
		return nil, fmt.Errorf("invalid options object: %#v", options)
	}
	scheme, name, port, valid := utilnet.SplitSchemeNamePort(id)
	if !valid {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("invalid service request %q", id))
	}
	svc, err := p.GetService(ctx, name)
	if err != nil {
		return nil, err
	}
	named, err := servicePortName(svc, port)
	if err != nil {
		return nil, err
	}
	endpoints, err := p.GetEndpoints(ctx, name)
	if err != nil && !apierrors.IsNotFound(err) {
		return nil, err
	}
	host := randomEndpoint(endpoints, named)
	if host == "" {
		return nil, apierrors.NewServiceUnavailable(fmt.Sprintf("no endpoints available for service %q", id))
	}
	ip, _, err := net.SplitHostPort(host)
	if err != nil {
		return nil, err
	}
	if err := validateProxyAddress(ip); err != nil {
		return nil, err
	}
	if scheme == "" {
		scheme = "http"
	}
	to := &url.URL{Scheme: scheme, Host: host, Path: utilnet.JoinPreservingTrailingSlash("", o.Path)}
	return newProxyHandler(to, p.PodTransport, false, respond), nil
}

// servicePortName returns the name of the requested port, which is given by name or number, or of
// the only one.
func servicePortName(svc *corev1.Service, port string) (string, error) {
	if port == "" && len(svc.Spec.Ports) == 1 {
		return svc.Spec.Ports[0].Name, nil
	}
	for _, p := range svc.Spec.Ports {
		if port == p.Name || port == strconv.Itoa(int(p.Port)) {
			return p.Name, nil
		}
	}
	return "", apierrors.NewServiceUnavailable(fmt.Sprintf("no service port %q found for service %q", port, svc.Name))
}

// randomEndpoint returns the host and port of a random ready address, or "" if there is none.
func randomEndpoint(endpoints *corev1.Endpoints, port string) string { //nolint:staticcheck // as above
	var all []string
	if endpoints == nil {
		return ""
	}
	for _, s := range endpoints.Subsets {
		for _, p := range s.Ports {
			if p.Name != port {
				continue
			}
			for _, a := range s.Addresses {
				all = append(all, net.JoinHostPort(a.IP, strconv.Itoa(int(p.Port))))
			}
		}
	}
	if len(all) == 0 {
		return ""
	}
	return all[rand.IntN(len(all))]
}
