package controllers

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	certlisters "k8s.io/client-go/listers/certificates/v1"
	coordinationlisters "k8s.io/client-go/listers/coordination/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
)

const (
	nodePrefix   = "system:node:"
	nodesGroup   = "system:nodes"
	mastersGroup = "system:masters"
	// User and group of a node whose client certificate has expired. See package authn.
	returningNodePrefix = "berth.dev:returning-node:"
	returningNodesGroup = "berth.dev:returning-nodes"

	// MachineIDAnnotation is the annotation of a node's certificate signing request that holds the
	// host's /etc/machine-id. It distinguishes hosts with the same node name.
	MachineIDAnnotation = "berth.dev/machine-id"
)

// reviewRetryPeriod is how often a pending request is checked again, because permissions may be granted later and a
// lease expires.
const reviewRetryPeriod = 5 * time.Second

// csrApprovingController approves the certificate signing requests of nodes.
type csrApprovingController struct {
	Config

	requests certlisters.CertificateSigningRequestLister
	nodes    corelisters.NodeLister
	leases   coordinationlisters.LeaseLister
}

func newCSRApprovingController(c Config) ([]*controller, error) {
	requests, nodes := c.Informers.Certificates().V1().CertificateSigningRequests(), c.Informers.Core().V1().Nodes()
	leases := c.Informers.Coordination().V1().Leases()
	a := &csrApprovingController{Config: c, requests: requests.Lister(), nodes: nodes.Lister(), leases: leases.Lister()}
	ctrl := c.newController(a.sync)
	ctrl.waitFor(nodes.Informer(), leases.Informer())
	return []*controller{ctrl}, ctrl.watch(requests.Informer(), objectKey)
}

// csrDecision is the approval decision on a request. The zero value leaves the request pending.
type csrDecision struct {
	condition certificatesv1.RequestConditionType
	reason    string
	message   string
}

func (a *csrApprovingController) sync(ctx context.Context, name string) (time.Duration, error) {
	csr, err := a.requests.Get(name)
	if err != nil {
		return 0, ignoreNotFound(err)
	}
	if len(csr.Status.Conditions) > 0 || len(csr.Status.Certificate) > 0 {
		return 0, nil
	}
	var decision csrDecision
	var requeueAfter time.Duration
	switch csr.Spec.SignerName {
	case certificatesv1.KubeAPIServerClientKubeletSignerName:
		decision, requeueAfter, err = a.decideClient(ctx, csr)
	case certificatesv1.KubeletServingSignerName:
		decision, requeueAfter = a.decideServing(csr)
	}
	if err != nil || decision.condition == "" {
		return requeueAfter, err
	}
	out := csr.DeepCopy()
	now := metav1.Now()
	out.Status.Conditions = append(out.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
		Type: decision.condition, Status: corev1.ConditionTrue, Reason: decision.reason, Message: decision.message,
		LastUpdateTime: now, LastTransitionTime: now,
	})
	if _, err := a.Client.CertificatesV1().CertificateSigningRequests().UpdateApproval(ctx, name, out,
		metav1.UpdateOptions{}); apierrors.IsNotFound(err) {
		return 0, nil
	} else if err != nil {
		return 0, fmt.Errorf("update approval of certificate signing request %s: %w", name, err)
	}
	a.Log.Info("certificate signing request decided", "csr", name, "user", csr.Spec.Username, "condition",
		decision.condition, "message", decision.message)
	return 0, nil
}

// decideClient decides about client certificates for nodes. The requester needs the permission to create
// certificatesigningrequests/selfnodeclient or certificatesigningrequests/nodeclient, as with
// upstream's controller.
func (a *csrApprovingController) decideClient(ctx context.Context,
	csr *certificatesv1.CertificateSigningRequest) (csrDecision, time.Duration, error) {
	req, err := parseRequest(csr.Spec.Request)
	if err != nil || validateNodeClient(csr, req) != "" {
		return csrDecision{}, 0, nil //nolint:nilerr // left to other approvers
	}
	r, err := a.nodeClientRequest(csr, nodeNameOf(req.Subject.CommonName))
	if err != nil {
		return csrDecision{}, 0, err
	}
	subresource, _ := r.permission()
	if ok, err := a.authorized(ctx, csr, subresource); err != nil || !ok {
		return csrDecision{}, reviewRetryPeriod, err
	}
	return r.decide(), reviewRetryPeriod, nil
}

// nodeClientRequest reads what the decision depends on.
func (a *csrApprovingController) nodeClientRequest(csr *certificatesv1.CertificateSigningRequest,
	name string) (*nodeClientRequest, error) {
	node, err := a.nodes.Get(name)
	if ignoreNotFound(err) != nil {
		return nil, err
	}
	lease, err := a.leases.Leases(corev1.NamespaceNodeLease).Get(name)
	if ignoreNotFound(err) != nil {
		return nil, err
	}
	return &nodeClientRequest{
		name: name, requester: requesterOf(csr, name), machineID: csr.Annotations[MachineIDAnnotation],
		credential: extraOf(csr, credentialIDKey), forNode: extraOf(csr, forNodeKey), node: node, lease: lease,
		now: time.Now(),
	}, nil
}

// authorized asks the API server whether the requester may have such a request approved
// automatically.
func (a *csrApprovingController) authorized(ctx context.Context, csr *certificatesv1.CertificateSigningRequest,
	subresource string) (bool, error) {
	extra := map[string]authorizationv1.ExtraValue{}
	for k, v := range csr.Spec.Extra {
		extra[k] = authorizationv1.ExtraValue(v)
	}
	review, err := a.Client.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{
		Spec: authorizationv1.SubjectAccessReviewSpec{
			User: csr.Spec.Username, UID: csr.Spec.UID, Groups: csr.Spec.Groups, Extra: extra,
			ResourceAttributes: &authorizationv1.ResourceAttributes{
				Verb: "create", Group: certificatesv1.GroupName, Version: "*", Resource: "certificatesigningrequests",
				Subresource: subresource,
			},
		}}, metav1.CreateOptions{})
	if err != nil {
		return false, fmt.Errorf("review access of %s: %w", csr.Spec.Username, err)
	}
	return review.Status.Allowed, nil
}

// decideServing approves serving certificates for the addresses in the node's status. These may
// include the API server's own addresses, because a node can run on the same host. Such a
// certificate does not identify the API server: see Config.ServingCA.
func (a *csrApprovingController) decideServing(
	csr *certificatesv1.CertificateSigningRequest) (csrDecision, time.Duration) {
	req, err := parseRequest(csr.Spec.Request)
	if err != nil || validateNodeServing(csr, req) != "" || csr.Spec.Username != req.Subject.CommonName {
		return csrDecision{}, 0
	}
	node, err := a.nodes.Get(strings.TrimPrefix(req.Subject.CommonName, nodePrefix))
	if apierrors.IsNotFound(err) || err == nil && len(node.Status.Addresses) == 0 {
		return csrDecision{}, time.Second // the request can arrive before the node has reported its addresses
	}
	if err != nil {
		return csrDecision{}, 0
	}
	if foreign := foreignNames(req, node); len(foreign) > 0 {
		return csrDecision{certificatesv1.CertificateDenied, "ForeignAddress",
			fmt.Sprintf("%s: not among the addresses in the status of node %s", strings.Join(foreign, ", "),
				node.Name)}, 0
	}
	return csrDecision{certificatesv1.CertificateApproved, "AutoApproved",
			"All names and addresses belong to the node."},
		0
}

// foreignNames returns the names and addresses in the request that do not belong to the node.
func foreignNames(req *x509.CertificateRequest, node *corev1.Node) (out []string) {
	own := map[string]bool{node.Name: true}
	for _, a := range node.Status.Addresses {
		own[a.Address] = true
	}
	for _, name := range req.DNSNames {
		if !own[name] {
			out = append(out, name)
		}
	}
	for _, ip := range req.IPAddresses {
		if !own[ip.String()] && !ip.IsLoopback() {
			out = append(out, ip.String())
		}
	}
	return out
}

func parseRequest(text []byte) (*x509.CertificateRequest, error) {
	block, _ := pem.Decode(text)
	if block == nil || block.Type != "CERTIFICATE REQUEST" {
		return nil, errors.New("spec.request is not a PEM block of type CERTIFICATE REQUEST")
	}
	req, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("spec.request: %w", err)
	}
	if err := req.CheckSignature(); err != nil {
		return nil, fmt.Errorf("spec.request: %w", err)
	}
	return req, nil
}

// validateNodeClient returns why the request is not valid for a node's client certificate, or "".
func validateNodeClient(csr *certificatesv1.CertificateSigningRequest, req *x509.CertificateRequest) string {
	switch {
	case !slices.Equal(req.Subject.Organization, []string{nodesGroup}):
		return "organization must be " + nodesGroup
	case !strings.HasPrefix(req.Subject.CommonName, nodePrefix) || req.Subject.CommonName == nodePrefix:
		return "common name must be " + nodePrefix + "NAME"
	case len(req.DNSNames)+len(req.IPAddresses)+len(req.EmailAddresses)+len(req.URIs) > 0:
		return "subject alternative names are not allowed"
	}
	return validateUsages(csr.Spec.Usages, certificatesv1.UsageClientAuth)
}

// validateNodeServing returns why the request is not valid for a node's serving certificate, or "".
func validateNodeServing(csr *certificatesv1.CertificateSigningRequest, req *x509.CertificateRequest) string {
	switch {
	case !slices.Equal(req.Subject.Organization, []string{nodesGroup}):
		return "organization must be " + nodesGroup
	case !strings.HasPrefix(req.Subject.CommonName, nodePrefix) || req.Subject.CommonName == nodePrefix:
		return "common name must be " + nodePrefix + "NAME"
	case len(req.EmailAddresses)+len(req.URIs) > 0:
		return "email and URI subject alternative names are not allowed"
	case len(req.DNSNames)+len(req.IPAddresses) == 0:
		return "a DNS name or an IP address is required"
	}
	return validateUsages(csr.Spec.Usages, certificatesv1.UsageServerAuth)
}

// validateUsages requires the given usage and digital signature. It also allows key encipherment.
func validateUsages(usages []certificatesv1.KeyUsage, required certificatesv1.KeyUsage) string {
	for _, u := range usages {
		if u != required && u != certificatesv1.UsageDigitalSignature && u != certificatesv1.UsageKeyEncipherment {
			return fmt.Sprintf("usage %q is not allowed", u)
		}
	}
	if !slices.Contains(usages, required) || !slices.Contains(usages, certificatesv1.UsageDigitalSignature) {
		return fmt.Sprintf("usages must be %q and %q", certificatesv1.UsageDigitalSignature, required)
	}
	return ""
}
