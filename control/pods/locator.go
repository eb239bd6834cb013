package pods

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/proxy"
	"k8s.io/apiserver/pkg/registry/rest"

	"berth/control/registry"
)

// defaultKubeletPort is used if the node status has no kubelet port.
const defaultKubeletPort = 10250

// Timeouts of connections to nodes and pods.
const (
	dialTimeout         = 10 * time.Second
	tlsHandshakeTimeout = 10 * time.Second
	idleConnTimeout     = 90 * time.Second
)

// podLocator finds a pod and the kubelet of its node.
type podLocator struct {
	Options
	pods *registry.Store
}

func (r *podLocator) pod(ctx context.Context, name string) (*corev1.Pod, error) {
	obj, err := r.pods.Get(ctx, name, &metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	return registry.MustCast[*corev1.Pod](obj), nil
}

// kubeletURL returns the URL of the kubelet of a node.
func (r *podLocator) kubeletURL(ctx context.Context, node string) (*url.URL, error) {
	n, err := r.GetNode(ctx, node)
	if err != nil {
		return nil, err
	}
	return KubeletURL(n)
}

// addressOrder is the order of preference: cluster-internal addresses first, and IP addresses
// before names, which the server may not be able to resolve.
var addressOrder = []corev1.NodeAddressType{
	corev1.NodeInternalIP,
	corev1.NodeInternalDNS,
	corev1.NodeHostName,
	corev1.NodeExternalIP,
	corev1.NodeExternalDNS,
}

// KubeletURL returns the URL of a node's kubelet, from the node status.
func KubeletURL(n *corev1.Node) (*url.URL, error) {
	port := int(n.Status.DaemonEndpoints.KubeletEndpoint.Port)
	if port == 0 {
		port = defaultKubeletPort
	}
	for _, kind := range addressOrder {
		for _, a := range n.Status.Addresses {
			if a.Type == kind && a.Address != "" {
				return &url.URL{Scheme: "https", Host: net.JoinHostPort(a.Address, strconv.Itoa(port))}, nil
			}
		}
	}
	return nil, apierrors.NewServiceUnavailable(fmt.Sprintf("node %s has no address yet", n.Name))
}

// container returns the name of the requested container, or of the only one if none is requested.
func container(pod *corev1.Pod, name string) (string, error) {
	var main, initial, ephemeral []string
	for i := range pod.Spec.Containers {
		main = append(main, pod.Spec.Containers[i].Name)
	}
	for i := range pod.Spec.InitContainers {
		initial = append(initial, pod.Spec.InitContainers[i].Name)
	}
	for i := range pod.Spec.EphemeralContainers {
		ephemeral = append(ephemeral, pod.Spec.EphemeralContainers[i].Name)
	}
	if name != "" {
		for _, list := range [][]string{main, initial, ephemeral} {
			if slices.Contains(list, name) {
				return name, nil
			}
		}
		return "", apierrors.NewBadRequest(fmt.Sprintf("container %s is not valid for pod %s", name, pod.Name))
	}
	switch len(main) {
	case 0:
		return "", apierrors.NewBadRequest(fmt.Sprintf("a container name must be specified for pod %s", pod.Name))
	case 1:
		return main[0], nil
	}
	message := fmt.Sprintf(
		"a container name must be specified for pod %s, choose one of: [%s]",
		pod.Name,
		strings.Join(main, " "),
	)
	if len(initial) > 0 {
		message += fmt.Sprintf(" or one of the init containers: [%s]", strings.Join(initial, " "))
	}
	if len(ephemeral) > 0 {
		message += fmt.Sprintf(" or one of the ephemeral containers: [%s]", strings.Join(ephemeral, " "))
	}
	return "", apierrors.NewBadRequest(message)
}

// KubeletTransports has a transport for each node. It accepts only serving certificates that name the node in
// their common name, system:node:NAME: another node that takes over the address of a node receives no request.
type KubeletTransports struct {
	base *http.Transport

	mu     sync.Mutex
	byNode map[string]*http.Transport
}

// NewKubeletTransports returns transports that call client for the client certificate at each connection and
// verify serving certificates with roots.
func NewKubeletTransports(roots *x509.CertPool, client func() (*tls.Certificate, error)) *KubeletTransports {
	return &KubeletTransports{base: newKubeletTransport(roots, client), byNode: map[string]*http.Transport{}}
}

// To returns the transport to the kubelet of a Node that exists: transports are kept.
func (k *KubeletTransports) To(node string) http.RoundTripper { return k.transportTo(node) }

func (k *KubeletTransports) transportTo(node string) *http.Transport {
	k.mu.Lock()
	defer k.mu.Unlock()
	t, ok := k.byNode[node]
	if !ok {
		t = k.base.Clone()
		t.TLSClientConfig.VerifyConnection = func(s tls.ConnectionState) error {
			return verifyNodeName(s.PeerCertificates[0], node) // a server always has one
		}
		k.byNode[node] = t
	}
	return t
}

// verifyNodeName checks the common name of a verified serving certificate.
func verifyNodeName(leaf *x509.Certificate, node string) error {
	if name := leaf.Subject.CommonName; name != nodeUserPrefix+node {
		return fmt.Errorf("x509: the serving certificate is of %q, not that of node %q", name, node)
	}
	return nil
}

// CloseIdleConnections closes the idle connections to all nodes.
func (k *KubeletTransports) CloseIdleConnections() {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, t := range k.byNode {
		t.CloseIdleConnections()
	}
}

const nodeUserPrefix = "system:node:"

// NewUnverifiedKubeletTransport returns a transport to kubelets that does not verify their serving certificates.
func NewUnverifiedKubeletTransport(client func() (*tls.Certificate, error)) *http.Transport {
	return newKubeletTransport(nil, client)
}

func newKubeletTransport(roots *x509.CertPool, client func() (*tls.Certificate, error)) *http.Transport {
	t := plainTransport()
	t.TLSClientConfig = &tls.Config{
		MinVersion: tls.VersionTLS12,
		NextProtos: []string{"http/1.1"}, // connections are hijacked, which HTTP/2 does not support
		RootCAs:    roots,
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			return client()
		},
		InsecureSkipVerify: roots == nil, //nolint:gosec // only for logs, if the client requests it
	}
	return t
}

// NewPodTransport returns a transport to pods, which dial connects to. It does not verify certificates: the server
// cannot know the name in a pod's certificate.
func NewPodTransport(dial func(ctx context.Context, network, address string) (net.Conn, error)) *http.Transport {
	t := plainTransport()
	t.DialContext = dial
	t.TLSClientConfig = &tls.Config{
		MinVersion:         tls.VersionTLS12,
		NextProtos:         []string{"http/1.1"},
		InsecureSkipVerify: true, //nolint:gosec // see the doc comment
	}
	return t
}

func directDialer() *net.Dialer {
	return &net.Dialer{Timeout: dialTimeout, KeepAlive: 30 * time.Second}
}

func plainTransport() *http.Transport {
	return &http.Transport{
		DialContext:         directDialer().DialContext,
		TLSHandshakeTimeout: tlsHandshakeTimeout,
		IdleConnTimeout:     idleConnTimeout,
		MaxIdleConnsPerHost: 8,
		TLSNextProto:        map[string]func(string, *tls.Conn) http.RoundTripper{},
	}
}

// newProxyHandler returns a handler that proxies a request, with connection upgrade if requested.
func newProxyHandler(
	to *url.URL,
	by http.RoundTripper,
	upgrade bool,
	respond rest.Responder,
) *proxy.UpgradeAwareHandler {
	h := proxy.NewUpgradeAwareHandler(to, by, !upgrade, upgrade, proxy.NewErrorResponder(respond))
	h.UseLocationHost = true
	return h
}

// validateProxyAddress rejects addresses by which the server would reach itself or its own link.
func validateProxyAddress(ip string) error {
	a, err := netip.ParseAddr(ip)
	if err != nil || a.IsUnspecified() || a.IsLoopback() || a.IsLinkLocalUnicast() || a.IsMulticast() {
		return apierrors.NewBadRequest("address not allowed")
	}
	return nil
}
