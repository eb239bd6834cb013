package apiclient

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// CAHash is the hash by which a certificate authority is pinned: sha256: and the hash of its public
// key in hexadecimal digits, as in kubeadm.
func CAHash(ca *x509.Certificate) string {
	sum := sha256.Sum256(ca.RawSubjectPublicKeyInfo)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// Discover finds the certificate authority of a server by its hash, and verifies that the authority
// issued the certificate of the server. Neither a token nor a name is sent to an unverified server.
//
// A berth-control presents the authority in its certificate chain. Other servers publish it in
// ConfigMap kube-public/cluster-info.
func Discover(ctx context.Context, server, hash string) (*rest.Config, error) {
	at, err := url.Parse(server)
	switch {
	case err != nil:
		return nil, fmt.Errorf("--server: %w", err)
	case at.Scheme != "https" || at.Host == "":
		return nil, fmt.Errorf("--server: %q must be https://HOST:PORT", server)
	case !strings.HasPrefix(hash, "sha256:") || len(hash) != len("sha256:")+sha256.Size*2:
		return nil, fmt.Errorf("--discovery-token-ca-cert-hash: must be sha256: and %d hexadecimal digits",
			sha256.Size*2)
	}
	hash = strings.ToLower(hash)
	shown, err := presentedBy(ctx, at)
	if err != nil {
		return nil, fmt.Errorf("--server: %w", err)
	}
	ca := pinned(shown, hash)
	if ca == nil {
		published, err := publishedBy(ctx, at)
		if err != nil {
			return nil, fmt.Errorf(
				"server %s neither presents nor publishes a certificate authority with hash %s: %w",
				server,
				hash,
				err,
			)
		}
		if ca = pinned(published, hash); ca == nil {
			return nil, fmt.Errorf(
				"server %s has another certificate authority than the one with hash %s: check the address and the hash",
				server,
				hash,
			)
		}
	}
	if err := verifyChain(ca, shown, at.Hostname()); err != nil {
		return nil, fmt.Errorf("server %s: %w", server, err)
	}
	c := &rest.Config{Host: server}
	c.CAData = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: ca.Raw})
	return c, nil
}

// ErrTokenRejected reports that a server does not accept a token.
var ErrTokenRejected = errors.New(
	"the server rejected the token: it has expired, was used by a node, or belongs to another server",
)

// CheckToken checks whether a server found by Discover accepts a token. Only a rejection is an
// error. Other failures may be temporary.
func CheckToken(ctx context.Context, found *rest.Config, token string) error {
	config := rest.CopyConfig(found)
	config.BearerToken = token
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return err
	}
	defer client.CloseIdleConnections()
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(found.Host, "/")+"/api", nil)
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil // not rejected
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusUnauthorized {
		return ErrTokenRejected
	}
	return nil
}

func pinned(all []*x509.Certificate, hash string) *x509.Certificate {
	for _, c := range all {
		if c.IsCA && CAHash(c) == hash {
			return c
		}
	}
	return nil
}

// verifyChain verifies that the authority issued the first presented certificate for that name.
func verifyChain(ca *x509.Certificate, shown []*x509.Certificate, name string) error {
	o := x509.VerifyOptions{
		DNSName:       name,
		Roots:         x509.NewCertPool(),
		Intermediates: x509.NewCertPool(),
		KeyUsages:     []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	o.Roots.AddCert(ca)
	for _, c := range shown[1:] {
		o.Intermediates.AddCert(c)
	}
	_, err := shown[0].Verify(o)
	return err
}

// unverified is used to look at the certificates of a server. No credentials are sent.
var unverified = &tls.Config{
	InsecureSkipVerify: true, //nolint:gosec // the pin is checked afterwards
	MinVersion:         tls.VersionTLS12,
}

// presentedBy returns the certificate chain that a server presents.
func presentedBy(ctx context.Context, at *url.URL) ([]*x509.Certificate, error) {
	address := at.Host
	if at.Port() == "" {
		address = net.JoinHostPort(at.Hostname(), "443")
	}
	conf := unverified.Clone()
	if net.ParseIP(at.Hostname()) == nil {
		conf.ServerName = at.Hostname()
	}
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	conn, err := (&tls.Dialer{Config: conf}).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", address, err)
	}
	defer conn.Close()
	t, ok := conn.(*tls.Conn)
	if !ok || len(t.ConnectionState().PeerCertificates) == 0 {
		return nil, fmt.Errorf("%s presents no certificate", address)
	}
	return t.ConnectionState().PeerCertificates, nil
}

// publishedBy returns the authorities that a server publishes.
func publishedBy(ctx context.Context, at *url.URL) ([]*x509.Certificate, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	to := at.JoinPath("/api/v1/namespaces/kube-public/configmaps/cluster-info").String()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, to, nil)
	if err != nil {
		return nil, err
	}
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: unverified.Clone(), DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("ConfigMap kube-public/cluster-info: %s", resp.Status)
	}
	var cm corev1.ConfigMap
	if err := json.Unmarshal(text, &cm); err != nil {
		return nil, fmt.Errorf("ConfigMap kube-public/cluster-info: %w", err)
	}
	config, err := clientcmd.Load([]byte(cm.Data["kubeconfig"]))
	if err != nil {
		return nil, fmt.Errorf("ConfigMap kube-public/cluster-info: %w", err)
	}
	var all []*x509.Certificate
	for _, c := range config.Clusters {
		all = append(all, certificates(c.CertificateAuthorityData)...)
	}
	if len(all) == 0 {
		return nil, errors.New("ConfigMap kube-public/cluster-info has no certificate authority")
	}
	return all, nil
}

func certificates(text []byte) (all []*x509.Certificate) {
	for block, rest := pem.Decode(bytes.TrimSpace(text)); block != nil; block, rest = pem.Decode(rest) {
		if c, err := x509.ParseCertificate(block.Bytes); err == nil {
			all = append(all, c)
		}
	}
	return all
}
