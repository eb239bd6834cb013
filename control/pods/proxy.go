package pods

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apiserver/pkg/registry/rest"
)

// proxyMethods are the HTTP methods that are proxied to pods, Services and nodes.
var proxyMethods = []string{
	http.MethodGet,
	http.MethodPost,
	http.MethodPut,
	http.MethodPatch,
	http.MethodDelete,
	http.MethodHead,
	http.MethodOptions,
}

var (
	_ rest.Connecter = (*Proxy)(nil)
	_ rest.Connecter = (*NodeProxy)(nil)
)

// Proxy implements pods/[SCHEME:]NAME[:PORT]/proxy.
type Proxy struct{ *podLocator }

// New returns empty options: their kind is that of the subresource.
func (p *Proxy) New() runtime.Object { return &corev1.PodProxyOptions{} }

// Destroy does nothing: there is no storage.
func (p *Proxy) Destroy() {}

// ConnectMethods returns all HTTP methods.
func (p *Proxy) ConnectMethods() []string { return append([]string(nil), proxyMethods...) }

// NewConnectOptions returns empty options with the rest of the path.
func (p *Proxy) NewConnectOptions() (runtime.Object, bool, string) {
	return &corev1.PodProxyOptions{}, true, "path"
}

// Connect returns the proxy handler.
func (p *Proxy) Connect(
	ctx context.Context,
	id string,
	options runtime.Object,
	respond rest.Responder,
) (http.Handler, error) {
	o, ok := options.(*corev1.PodProxyOptions)
	if !ok {
		return nil, fmt.Errorf("invalid options object: %#v", options)
	}
	scheme, name, port, valid := utilnet.SplitSchemeNamePort(id)
	if !valid {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("invalid pod request %q", id))
	}
	pod, err := p.pod(ctx, name)
	if err != nil {
		return nil, err
	}
	ip := pod.Status.PodIP
	if len(pod.Status.PodIPs) > 0 {
		ip = pod.Status.PodIPs[0].IP
	}
	if err := validateProxyAddress(ip); err != nil {
		return nil, err
	}
	to := &url.URL{Scheme: scheme, Host: net.JoinHostPort(ip, resolvePort(pod, port))}
	if to.Scheme == "" {
		to.Scheme = "http"
	}
	to.Path = utilnet.JoinPreservingTrailingSlash(to.Path, o.Path)
	return newProxyHandler(to, p.PodTransport, false, respond), nil
}

// resolvePort resolves a port name to its number. Without a port it returns the first port of the
// pod, or 80.
func resolvePort(pod *corev1.Pod, port string) string {
	for i := range pod.Spec.Containers {
		for _, p := range pod.Spec.Containers[i].Ports {
			if port == "" || port == p.Name {
				return strconv.Itoa(int(p.ContainerPort))
			}
		}
	}
	if port == "" {
		return "80"
	}
	return port
}

// NodeProxy implements nodes/NAME[:PORT]/proxy, which proxies to the kubelet.
type NodeProxy struct{ Options }

// New returns empty options: their kind is that of the subresource.
func (p *NodeProxy) New() runtime.Object { return &corev1.NodeProxyOptions{} }

// Destroy does nothing: there is no storage.
func (p *NodeProxy) Destroy() {}

// ConnectMethods returns all HTTP methods.
func (p *NodeProxy) ConnectMethods() []string { return append([]string(nil), proxyMethods...) }

// NewConnectOptions returns empty options with the rest of the path.
func (p *NodeProxy) NewConnectOptions() (runtime.Object, bool, string) {
	return &corev1.NodeProxyOptions{}, true, "path"
}

// Connect returns the proxy handler. It does not use the server's client certificate for other
// ports than the kubelet's.
func (p *NodeProxy) Connect(
	ctx context.Context,
	id string,
	options runtime.Object,
	respond rest.Responder,
) (http.Handler, error) {
	o, ok := options.(*corev1.NodeProxyOptions)
	if !ok {
		return nil, fmt.Errorf("invalid options object: %#v", options)
	}
	scheme, name, port, valid := utilnet.SplitSchemeNamePort(id)
	if !valid {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("invalid node request %q", id))
	}
	node, err := p.GetNode(ctx, name)
	if err != nil {
		return nil, err
	}
	to, err := KubeletURL(node)
	if err != nil {
		return nil, err
	}
	by := p.KubeletTransport(name)
	if port != "" && port != to.Port() {
		if err := validateProxyAddress(to.Hostname()); err != nil {
			return nil, err
		}
		by, to.Host, to.Scheme = p.PodTransport, net.JoinHostPort(to.Hostname(), port), scheme
		if to.Scheme == "" {
			to.Scheme = "http"
		}
	}
	to.Path = utilnet.JoinPreservingTrailingSlash("/", strings.TrimPrefix(o.Path, "/"))
	return newProxyHandler(to, by, false, respond), nil
}
