package apiclient

import (
	"context"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	certsv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// CertificateRequest describes a certificate to request.
type CertificateRequest struct {
	Subject pkix.Name
	DNS     []string
	IPs     []net.IP
	Signer  string
	Usages  []certsv1.KeyUsage
	// MachineID, if known, distinguishes hosts with the same name.
	MachineID string
}

// MachineIDAnnotation is the annotation of a request with the machine ID. The approver of
// berth-control reads it, others ignore it.
const MachineIDAnnotation = "berth.dev/machine-id"

// NodeClientRequest describes the client certificate of a node.
func NodeClientRequest(name, machineID string) CertificateRequest {
	return CertificateRequest{
		Subject:   nodeSubject(name),
		Signer:    certsv1.KubeAPIServerClientKubeletSignerName,
		Usages:    clientUsages,
		MachineID: machineID,
	}
}

// NodeServingRequest describes the serving certificate of a node.
func NodeServingRequest(name string, ips []netip.Addr) CertificateRequest {
	a := CertificateRequest{
		Subject: nodeSubject(name),
		DNS:     []string{name},
		Signer:  certsv1.KubeletServingSignerName,
		Usages:  serverUsages,
	}
	for _, ip := range ips {
		a.IPs = append(a.IPs, ip.AsSlice())
	}
	return a
}

func nodeSubject(name string) pkix.Name {
	return pkix.Name{CommonName: "system:node:" + name, Organization: []string{"system:nodes"}}
}

// errDenied reports that a request was denied or has failed.
var errDenied = errors.New("request denied")

const (
	issueTimeout    = 15 * time.Minute // the approval may be manual
	minPollInterval = 50 * time.Millisecond
	maxPollInterval = 2 * time.Second
)

// request requests a certificate for the key, and waits until it is issued. The same key results in
// the same request object.
func (a CertificateRequest) request(ctx context.Context, c *Client, key *ecdsa.PrivateKey) (chain []byte, err error) {
	ctx, cancel := context.WithTimeout(ctx, issueTimeout)
	defer cancel()
	text, err := x509.CreateCertificateRequest(
		rand.Reader,
		&x509.CertificateRequest{Subject: a.Subject, DNSNames: a.DNS, IPAddresses: a.IPs},
		key,
	)
	if err != nil {
		return nil, fmt.Errorf("create certificate request: %w", err)
	}
	csr := &certsv1.CertificateSigningRequest{Spec: certsv1.CertificateSigningRequestSpec{
		Request:    pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: text}),
		SignerName: a.Signer, Usages: slices.Clone(a.Usages), // csr is overwritten by the response
	}}
	if csr.Name, err = a.name(key); err != nil {
		return nil, err
	}
	if a.MachineID != "" {
		csr.Annotations = map[string]string{MachineIDAnnotation: a.MachineID}
	}
	err = c.Create(ctx, CertificateSigningRequests, "", csr, csr)
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return nil, fmt.Errorf("submit certificate request: %w", err)
	}
	for wait := minPollInterval; ; wait = min(2*wait, maxPollInterval) {
		if chain, err := issued(csr); chain != nil || err != nil {
			return chain, err
		}
		sleep(ctx, wait)
		if ctx.Err() != nil {
			return nil, fmt.Errorf("certificate request %s is not approved: %w", csr.Name, ctx.Err())
		}
		now := &certsv1.CertificateSigningRequest{}
		switch err := c.Get(ctx, CertificateSigningRequests, "", csr.Name, now); {
		case apierrors.IsNotFound(err):
			return nil, fmt.Errorf("certificate request %s was deleted: %w", csr.Name, errDenied)
		case err == nil:
			csr = now
		}
	}
}

// issued returns the issued certificate, or nil if it is pending.
func issued(csr *certsv1.CertificateSigningRequest) ([]byte, error) {
	for _, c := range csr.Status.Conditions {
		if (c.Type == certsv1.CertificateDenied || c.Type == certsv1.CertificateFailed) &&
			c.Status != corev1.ConditionFalse {
			return nil, fmt.Errorf(
				"certificate request %s: %w (%s): %s: %s",
				csr.Name,
				errDenied,
				c.Type,
				c.Reason,
				c.Message,
			)
		}
	}
	if len(csr.Status.Certificate) == 0 {
		return nil, nil
	}
	return csr.Status.Certificate, nil
}

// name is derived from the key and the request.
func (a CertificateRequest) name(key *ecdsa.PrivateKey) (string, error) {
	public, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	if err != nil {
		return "", fmt.Errorf("name a certificate request: %w", err)
	}
	h := sha256.New()
	_, _ = fmt.Fprintln(h, a.Subject, a.DNS, a.IPs, a.Signer, a.Usages)
	h.Write(public)
	return "node-csr-" + hex.EncodeToString(h.Sum(nil)), nil
}

func encodeKey(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encode key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), nil
}

func parseKey(text []byte) (*ecdsa.PrivateKey, error) {
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, errors.New("no PEM block")
	}
	return x509.ParseECPrivateKey(block.Bytes)
}
