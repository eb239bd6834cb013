package cis

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	restclient "k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// clients are the connections of the administrator.
type clients struct {
	config   *restclient.Config
	client   kubernetes.Interface
	metadata metadata.Interface
}

func newClients(kubeconfig string) (*clients, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig %s: %w", kubeconfig, err)
	}
	config.QPS = -1
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig %s: %w", kubeconfig, err)
	}
	objects, err := metadata.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig %s: %w", kubeconfig, err)
	}
	return &clients{config, client, objects}, nil
}

// readServer observes what the server does with requests and connections.
func (c *clients) readServer(ctx context.Context) (*Server, error) {
	s := &Server{URL: c.config.Host, Anonymous: map[string]int{}}
	administrator, err := restclient.HTTPClientFor(c.config)
	if err != nil {
		return nil, err
	}
	defer administrator.CloseIdleConnections()
	if s.Profiling, err = status(ctx, administrator, s.URL+"/debug/pprof/"); err != nil {
		return nil, err
	}
	anonymous, err := restclient.HTTPClientFor(restclient.AnonymousClientConfig(c.config))
	if err != nil {
		return nil, err
	}
	defer anonymous.CloseIdleConnections()
	for _, path := range slices.Concat(protectedPaths, publicPaths) {
		if s.Anonymous[path], err = status(ctx, anonymous, s.URL+path); err != nil {
			return nil, err
		}
	}
	if err := c.readTLS(ctx, s); err != nil {
		return nil, err
	}
	if err := c.readAuthorizers(ctx, s); err != nil {
		return nil, err
	}
	return s, nil
}

// status returns the status code of a request.
func status(ctx context.Context, client *http.Client, url string) (int, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, err
	}
	response, err := client.Do(r)
	if err != nil {
		return 0, err
	}
	defer func() { _ = response.Body.Close() }()
	_, _ = io.Copy(io.Discard, io.LimitReader(response.Body, 1<<20)) // to reuse the connection
	return response.StatusCode, nil
}

// readTLS tries to connect with old versions and with weak cipher suites.
func (c *clients) readTLS(ctx context.Context, s *Server) error {
	config, err := restclient.TLSConfigFor(c.config)
	if err != nil {
		return err
	}
	if config == nil {
		return errors.New("the server has no TLS")
	}
	target, err := url.Parse(s.URL)
	if err != nil {
		return err
	}
	config.Certificates, config.GetClientCertificate = nil, nil
	old := config.Clone()
	old.MinVersion, old.MaxVersion = tls.VersionTLS10, tls.VersionTLS11
	if state, err := handshake(ctx, target.Host, old); err != nil {
		return err
	} else if state != nil {
		s.OldTLS = tls.VersionName(state.Version)
	}
	weak := config.Clone()
	weak.MinVersion, weak.MaxVersion, weak.CipherSuites = tls.VersionTLS12, tls.VersionTLS12, weakSuites()
	state, err := handshake(ctx, target.Host, weak)
	if err == nil && state != nil {
		s.WeakCipher = tls.CipherSuiteName(state.CipherSuite)
	}
	return err
}

// strongSuites are those of TLS 1.2 that the benchmark recommends.
var strongSuites = []uint16{
	tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
	tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384, tls.TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
	tls.TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256, tls.TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
}

// weakSuites returns the other suites of TLS 1.2 that Go supports.
func weakSuites() (out []uint16) {
	for _, suite := range slices.Concat(tls.CipherSuites(), tls.InsecureCipherSuites()) {
		if slices.Contains(suite.SupportedVersions, tls.VersionTLS12) && !slices.Contains(strongSuites, suite.ID) {
			out = append(out, suite.ID)
		}
	}
	return out
}

// handshake returns the state of a TLS connection, or nil if the server rejects the handshake. An error means that
// there was no connection.
func handshake(ctx context.Context, address string, config *tls.Config) (*tls.ConnectionState, error) {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		host, address = address, net.JoinHostPort(address, "443")
	}
	if config.ServerName == "" {
		config.ServerName = host
	}
	connection, err := new(net.Dialer).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	defer func() { _ = connection.Close() }()
	secure := tls.Client(connection, config)
	if err := secure.HandshakeContext(ctx); err != nil {
		return nil, ctx.Err() // rejected
	}
	state := secure.ConnectionState()
	return &state, nil
}

// reviewedNode is the node in a SubjectAccessReview. It does not have to exist.
const reviewedNode = "berth-cis-check"

// readAuthorizers reviews the access of a node and of a user.
func (c *clients) readAuthorizers(ctx context.Context, s *Server) error {
	var err error
	if s.Node, err = c.review(ctx, authorizationv1.SubjectAccessReviewSpec{
		User: "system:node:" + reviewedNode, Groups: []string{user.NodesGroup, user.AllAuthenticated},
		ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: "get", Version: "v1", Resource: "secrets",
			Namespace: metav1.NamespaceSystem, Name: reviewedNode},
	}); err != nil {
		return err
	}
	s.RBAC, err = c.review(ctx, authorizationv1.SubjectAccessReviewSpec{
		User: reviewedNode, Groups: []string{user.AllAuthenticated},
		NonResourceAttributes: &authorizationv1.NonResourceAttributes{Verb: "get", Path: "/api"},
	})
	return err
}

func (c *clients) review(ctx context.Context, spec authorizationv1.SubjectAccessReviewSpec) (Review, error) {
	r, err := c.client.AuthorizationV1().SubjectAccessReviews().Create(ctx,
		&authorizationv1.SubjectAccessReview{Spec: spec}, metav1.CreateOptions{})
	if err != nil {
		return Review{}, fmt.Errorf("review access: %w", err)
	}
	return Review{r.Status.Allowed, r.Status.Reason}, nil
}
