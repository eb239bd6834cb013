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
	corelisters "k8s.io/client-go/listers/core/v1"
)

const (
	nodePrefix   = "system:node:"
	nodesGroup   = "system:nodes"
	mastersGroup = "system:masters"
	// A node whose certificate has expired while it was off; see authn.
	returningNodePrefix = "berth.dev:returning-node:"
	returningNodesGroup = "berth.dev:returning-nodes"

	// MachineIDAnnotation is the annotation of a node's request for its first certificate:
	// the host's /etc/machine-id, by which two hosts of one name are told apart.
	MachineIDAnnotation = "berth.dev/machine-id"
)

// reviewRetryPeriod is when an asker whose rights did not do is looked at again: they may be
// given later.
const reviewRetryPeriod = 5 * time.Second

// csrApprovingController approves the requests that nodes make for themselves.
type csrApprovingController struct {
	Config

	requests certlisters.CertificateSigningRequestLister
	nodes    corelisters.NodeLister
}

func newCSRApprovingController(c Config) ([]*controller, error) {
	requests, nodes := c.Informers.Certificates().V1().CertificateSigningRequests(), c.Informers.Core().V1().Nodes()
	a := &csrApprovingController{Config: c, requests: requests.Lister(), nodes: nodes.Lister()}
	w := c.newController(a.sync)
	w.waitFor(nodes.Informer())
	return []*controller{w}, w.watch(requests.Informer(), objectKey)
}

// csrDecision on a request: nothing (not ours to judge), approved, or denied.
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
	var v csrDecision
	var again time.Duration
	switch csr.Spec.SignerName {
	case certificatesv1.KubeAPIServerClientKubeletSignerName:
		v, again, err = a.decideClient(ctx, csr)
	case certificatesv1.KubeletServingSignerName:
		v, again = a.decideServing(csr)
	}
	if err != nil || v.condition == "" {
		return again, err
	}
	out := csr.DeepCopy()
	now := metav1.Now()
	out.Status.Conditions = append(out.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
		Type: v.condition, Status: corev1.ConditionTrue, Reason: v.reason, Message: v.message, LastUpdateTime: now, LastTransitionTime: now,
	})
	if _, err := a.Client.CertificatesV1().CertificateSigningRequests().UpdateApproval(ctx, name, out, metav1.UpdateOptions{}); apierrors.IsNotFound(err) {
		return 0, nil
	} else if err != nil {
		return 0, fmt.Errorf("judge certificate request %s: %w", name, err)
	}
	a.Log.Info("certificate request is judged", "request", name, "by", csr.Spec.Username, "verdict", v.condition, "why", v.message)
	return 0, nil
}

// decideClient: a node may ask anew for itself, also with a certificate that has
// expired while it was off, as long as its Node is there, and whoever joins for a new
// node, unless a node of that name is alive on another host. Who may is for the
// cluster's policy to say: whoever may create the certificatesigningrequests'
// subresource selfnodeclient, and nodeclient.
func (a *csrApprovingController) decideClient(ctx context.Context, csr *certificatesv1.CertificateSigningRequest) (csrDecision, time.Duration, error) {
	req, err := parseRequest(csr.Spec.Request)
	if err != nil || validateNodeClient(csr, req) != "" {
		return csrDecision{}, 0, nil //nolint:nilerr // it is not ours to judge
	}
	node := strings.TrimPrefix(req.Subject.CommonName, nodePrefix)
	returning := csr.Spec.Username == returningNodePrefix+node && slices.Contains(csr.Spec.Groups, returningNodesGroup)
	running := csr.Spec.Username == req.Subject.CommonName && slices.Contains(csr.Spec.Groups, nodesGroup)
	if returning {
		if _, err := a.nodes.Get(node); apierrors.IsNotFound(err) {
			return csrDecision{certificatesv1.CertificateDenied, "NodeRemoved", fmt.Sprintf("node %q is not of this cluster any more: join it anew, with a token of berth-control token create", node)}, 0, nil
		} else if err != nil {
			return csrDecision{}, 0, err
		}
	}
	right, what := "nodeclient", "kubelet client certificate"
	if returning || running {
		right, what = "selfnodeclient", "self kubelet client certificate"
	}
	if ok, err := a.authorized(ctx, csr, right); err != nil || !ok {
		return csrDecision{}, reviewRetryPeriod, err
	}
	if clash := a.nameConflict(node, csr.Annotations[MachineIDAnnotation]); clash != "" && !running {
		return csrDecision{certificatesv1.CertificateDenied, "NodeNameInUse", clash}, 0, nil
	}
	return csrDecision{certificatesv1.CertificateApproved, "AutoApproved", "Auto approving " + what + " after SubjectAccessReview."}, 0, nil
}

// authorized asks whether who made the request has the right to have such approved.
func (a *csrApprovingController) authorized(ctx context.Context, csr *certificatesv1.CertificateSigningRequest, subresource string) (bool, error) {
	extra := map[string]authorizationv1.ExtraValue{}
	for k, v := range csr.Spec.Extra {
		extra[k] = authorizationv1.ExtraValue(v)
	}
	review, err := a.Client.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: csr.Spec.Username, UID: csr.Spec.UID, Groups: csr.Spec.Groups, Extra: extra,
		ResourceAttributes: &authorizationv1.ResourceAttributes{
			Verb: "create", Group: certificatesv1.GroupName, Version: "*", Resource: "certificatesigningrequests", Subresource: subresource,
		},
	}}, metav1.CreateOptions{})
	if err != nil {
		return false, fmt.Errorf("review the rights of %s: %w", csr.Spec.Username, err)
	}
	return review.Status.Allowed, nil
}

// nameConflict says that a living node of this name is another host; empty: none is.
// Who does not tell a machine id (the kubelet does not) is not asked.
func (a *csrApprovingController) nameConflict(name, machineID string) string {
	node, err := a.nodes.Get(name)
	if err != nil || machineID == "" || node.Status.NodeInfo.MachineID == "" || node.Status.NodeInfo.MachineID == machineID {
		return ""
	}
	ready := nodeCondition(node, corev1.NodeReady)
	if ready == nil || ready.Status == corev1.ConditionUnknown {
		return ""
	}
	return fmt.Sprintf("node %q is alive on another host (machine id %s, this one has %s): join under another name with --hostname-override=NAME, or, if that host is gone for good, run \"kubectl delete node %s\" first; hosts cloned from one image need an /etc/machine-id each (systemd-machine-id-setup)",
		name, node.Status.NodeInfo.MachineID, machineID, name)
}

// decideServing: a node gets a certificate for the addresses that it has by its own word:
// also for the server's, which are those of a node on the same host. It makes nobody
// the server; see Config.NodesCA.
func (a *csrApprovingController) decideServing(csr *certificatesv1.CertificateSigningRequest) (csrDecision, time.Duration) {
	req, err := parseRequest(csr.Spec.Request)
	if err != nil || validateNodeServing(csr, req) != "" || csr.Spec.Username != req.Subject.CommonName {
		return csrDecision{}, 0
	}
	node, err := a.nodes.Get(strings.TrimPrefix(req.Subject.CommonName, nodePrefix))
	if apierrors.IsNotFound(err) || err == nil && len(node.Status.Addresses) == 0 {
		return csrDecision{}, time.Second // the node may ask before it has said where it is
	}
	if err != nil {
		return csrDecision{}, 0
	}
	if foreign := foreignNames(req, node); len(foreign) > 0 {
		return csrDecision{certificatesv1.CertificateDenied, "ForeignAddress", fmt.Sprintf("%s: not among the addresses in the status of node %s", strings.Join(foreign, ", "), node.Name)}, 0
	}
	return csrDecision{certificatesv1.CertificateApproved, "AutoApproved", "the names and addresses are the node's own"}, 0
}

// foreignNames are the names and addresses in the request that are not the node's.
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
		return nil, errors.New("spec.request is no PEM block of type CERTIFICATE REQUEST")
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

// validateNodeClient says why a request is not one for a node's client certificate.
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

// validateNodeServing says why a request is not one for a node's serving certificate.
func validateNodeServing(csr *certificatesv1.CertificateSigningRequest, req *x509.CertificateRequest) string {
	switch {
	case !slices.Equal(req.Subject.Organization, []string{nodesGroup}):
		return "organization must be " + nodesGroup
	case !strings.HasPrefix(req.Subject.CommonName, nodePrefix) || req.Subject.CommonName == nodePrefix:
		return "common name must be " + nodePrefix + "NAME"
	case len(req.EmailAddresses)+len(req.URIs) > 0:
		return "e-mail and URI subject alternative names are not allowed"
	case len(req.DNSNames)+len(req.IPAddresses) == 0:
		return "a DNS name or an IP address is required"
	}
	return validateUsages(csr.Spec.Usages, certificatesv1.UsageServerAuth)
}

// validateUsages: the usage itself and a digital signature, perhaps key encipherment.
func validateUsages(usages []certificatesv1.KeyUsage, of certificatesv1.KeyUsage) string {
	for _, u := range usages {
		if u != of && u != certificatesv1.UsageDigitalSignature && u != certificatesv1.UsageKeyEncipherment {
			return fmt.Sprintf("usage %q is not allowed", u)
		}
	}
	if !slices.Contains(usages, of) || !slices.Contains(usages, certificatesv1.UsageDigitalSignature) {
		return fmt.Sprintf("usages must be %q and %q", certificatesv1.UsageDigitalSignature, of)
	}
	return ""
}
