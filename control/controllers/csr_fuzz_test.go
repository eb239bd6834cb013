package controllers

import (
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"net"
	"slices"
	"strings"
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// FuzzNodeRequests checks that requests that are valid for a node have the subject of a node, and contain only names
// and addresses of the node.
func FuzzNodeRequests(f *testing.F) {
	key := newKey(f)
	for _, template := range []*x509.CertificateRequest{
		{Subject: pkix.Name{CommonName: "system:node:n", Organization: []string{nodesGroup}}},
		{Subject: pkix.Name{CommonName: "system:node:n", Organization: []string{nodesGroup}}, DNSNames: []string{"n"},
			IPAddresses: []net.IP{net.IPv4(192, 0, 2, 1)}},
		{Subject: pkix.Name{CommonName: "system:node:", Organization: []string{nodesGroup, "system:masters"}}},
		{DNSNames: []string{"kubernetes"}},
	} {
		der, err := x509.CreateCertificateRequest(rand.Reader, template, key)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}))
	}
	f.Add([]byte("-----BEGIN CERTIFICATE REQUEST-----\n-----END CERTIFICATE REQUEST-----\n"))
	f.Add([]byte{})
	csr := func(usage certificatesv1.KeyUsage) *certificatesv1.CertificateSigningRequest {
		return &certificatesv1.CertificateSigningRequest{Spec: certificatesv1.CertificateSigningRequestSpec{
			Usages: []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, usage}}}
	}
	client, serving := csr(certificatesv1.UsageClientAuth), csr(certificatesv1.UsageServerAuth)
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}, Status: corev1.NodeStatus{
		Addresses: []corev1.NodeAddress{{Address: "192.0.2.1"}}}}
	f.Fuzz(func(t *testing.T, text []byte) {
		req, err := parseRequest(text)
		if err != nil {
			return
		}
		asClient, asServer := validateNodeClient(client, req) == "", validateNodeServing(serving, req) == ""
		if asClient && asServer {
			t.Error("valid for both signers")
		}
		if (asClient || asServer) && (!slices.Equal(req.Subject.Organization, []string{nodesGroup}) ||
			strings.TrimPrefix(req.Subject.CommonName, nodePrefix) == "" ||
			!strings.HasPrefix(req.Subject.CommonName, nodePrefix) || len(req.URIs)+len(req.EmailAddresses) > 0) {
			t.Errorf("valid for a node: %q %q", req.Subject.CommonName, req.Subject.Organization)
		}
		if asServer && len(foreignNames(req, node)) == 0 {
			for _, name := range req.DNSNames {
				if name != "n" && name != "192.0.2.1" {
					t.Errorf("name %q is not foreign", name)
				}
			}
			for _, ip := range req.IPAddresses {
				if ip.String() != "192.0.2.1" && !ip.IsLoopback() {
					t.Errorf("address %s is not foreign", ip)
				}
			}
		}
	})
}
