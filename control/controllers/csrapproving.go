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
	returningPrefix = "berth.dev:returning-node:"
	returningNodes  = "berth.dev:returning-nodes"

	// MachineID is the annotation of a node's request for its first certificate:
	// the host's /etc/machine-id, by which two hosts of one name are told apart.
	MachineID = "berth.dev/machine-id"
)

// reviewAgain is when an asker whose rights did not do is looked at again: they may be
// given later.
const reviewAgain = 5 * time.Second

// approver approves the requests that nodes make for themselves.
type approver struct {
	Config

	requests certlisters.CertificateSigningRequestLister
	nodes    corelisters.NodeLister
}

func csrApproving(c Config) ([]*worker, error) {
	requests, nodes := c.Informers.Certificates().V1().CertificateSigningRequests(), c.Informers.Core().V1().Nodes()
	a := &approver{Config: c, requests: requests.Lister(), nodes: nodes.Lister()}
	w := c.worker(a.look)
	w.needs(nodes.Informer())
	return []*worker{w}, w.watch(requests.Informer(), itself)
}

// verdict on a request: nothing (not ours to judge), approved, or denied.
type verdict struct {
	as     certificatesv1.RequestConditionType
	reason string
	text   string
}

func (a *approver) look(ctx context.Context, name string) (time.Duration, error) {
	csr, err := a.requests.Get(name)
	if err != nil {
		return 0, ignoreGone(err)
	}
	if len(csr.Status.Conditions) > 0 || len(csr.Status.Certificate) > 0 {
		return 0, nil
	}
	var v verdict
	var again time.Duration
	switch csr.Spec.SignerName {
	case certificatesv1.KubeAPIServerClientKubeletSignerName:
		v, again, err = a.judgeClient(ctx, csr)
	case certificatesv1.KubeletServingSignerName:
		v, again = a.judgeServing(csr)
	}
	if err != nil || v.as == "" {
		return again, err
	}
	out := csr.DeepCopy()
	now := metav1.Now()
	out.Status.Conditions = append(out.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
		Type: v.as, Status: corev1.ConditionTrue, Reason: v.reason, Message: v.text, LastUpdateTime: now, LastTransitionTime: now,
	})
	if _, err := a.Client.CertificatesV1().CertificateSigningRequests().UpdateApproval(ctx, name, out, metav1.UpdateOptions{}); apierrors.IsNotFound(err) {
		return 0, nil
	} else if err != nil {
		return 0, fmt.Errorf("judge certificate request %s: %w", name, err)
	}
	a.Log.Info("certificate request is judged", "request", name, "by", csr.Spec.Username, "verdict", v.as, "why", v.text)
	return 0, nil
}

// judgeClient: a node may ask anew for itself, also with a certificate that has
// expired while it was off, as long as its Node is there, and whoever joins for a new
// node, unless a node of that name is alive on another host. Who may is for the
// cluster's policy to say: whoever may create the certificatesigningrequests'
// subresource selfnodeclient, and nodeclient.
func (a *approver) judgeClient(ctx context.Context, csr *certificatesv1.CertificateSigningRequest) (verdict, time.Duration, error) {
	req, err := parseRequest(csr.Spec.Request)
	if err != nil || nodeClientFlaw(csr, req) != "" {
		return verdict{}, 0, nil //nolint:nilerr // it is not ours to judge
	}
	node := strings.TrimPrefix(req.Subject.CommonName, nodePrefix)
	returning := csr.Spec.Username == returningPrefix+node && slices.Contains(csr.Spec.Groups, returningNodes)
	running := csr.Spec.Username == req.Subject.CommonName && slices.Contains(csr.Spec.Groups, nodesGroup)
	if returning {
		if _, err := a.nodes.Get(node); apierrors.IsNotFound(err) {
			return verdict{certificatesv1.CertificateDenied, "NodeRemoved", fmt.Sprintf("node %q is not of this cluster any more: join it anew, with a token of berth-control token create", node)}, 0, nil
		} else if err != nil {
			return verdict{}, 0, err
		}
	}
	right, what := "nodeclient", "kubelet client certificate"
	if returning || running {
		right, what = "selfnodeclient", "self kubelet client certificate"
	}
	if ok, err := a.may(ctx, csr, right); err != nil || !ok {
		return verdict{}, reviewAgain, err
	}
	if clash := a.clash(node, csr.Annotations[MachineID]); clash != "" && !running {
		return verdict{certificatesv1.CertificateDenied, "NodeNameInUse", clash}, 0, nil
	}
	return verdict{certificatesv1.CertificateApproved, "AutoApproved", "Auto approving " + what + " after SubjectAccessReview."}, 0, nil
}

// may asks whether who made the request has the right to have such approved.
func (a *approver) may(ctx context.Context, csr *certificatesv1.CertificateSigningRequest, subresource string) (bool, error) {
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

// clash says that a living node of this name is another host; empty: none is.
// Who does not tell a machine id (the kubelet does not) is not asked.
func (a *approver) clash(name, machineID string) string {
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

// judgeServing: a node gets a certificate for the addresses that it has by its own word:
// also for the server's, which are those of a node on the same host. It makes nobody
// the server; see Config.NodesCA.
func (a *approver) judgeServing(csr *certificatesv1.CertificateSigningRequest) (verdict, time.Duration) {
	req, err := parseRequest(csr.Spec.Request)
	if err != nil || nodeServingFlaw(csr, req) != "" || csr.Spec.Username != req.Subject.CommonName {
		return verdict{}, 0
	}
	node, err := a.nodes.Get(strings.TrimPrefix(req.Subject.CommonName, nodePrefix))
	if apierrors.IsNotFound(err) || err == nil && len(node.Status.Addresses) == 0 {
		return verdict{}, time.Second // the node may ask before it has said where it is
	}
	if err != nil {
		return verdict{}, 0
	}
	if foreign := foreignNames(req, node); len(foreign) > 0 {
		return verdict{certificatesv1.CertificateDenied, "ForeignAddress", fmt.Sprintf("%s: not among the addresses in the status of node %s", strings.Join(foreign, ", "), node.Name)}, 0
	}
	return verdict{certificatesv1.CertificateApproved, "AutoApproved", "the names and addresses are the node's own"}, 0
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

// nodeClientFlaw says why a request is not one for a node's client certificate.
func nodeClientFlaw(csr *certificatesv1.CertificateSigningRequest, req *x509.CertificateRequest) string {
	switch {
	case !slices.Equal(req.Subject.Organization, []string{nodesGroup}):
		return "organization must be " + nodesGroup
	case !strings.HasPrefix(req.Subject.CommonName, nodePrefix) || req.Subject.CommonName == nodePrefix:
		return "common name must be " + nodePrefix + "NAME"
	case len(req.DNSNames)+len(req.IPAddresses)+len(req.EmailAddresses)+len(req.URIs) > 0:
		return "subject alternative names are not allowed"
	}
	return usageFlaw(csr.Spec.Usages, certificatesv1.UsageClientAuth)
}

// nodeServingFlaw says why a request is not one for a node's serving certificate.
func nodeServingFlaw(csr *certificatesv1.CertificateSigningRequest, req *x509.CertificateRequest) string {
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
	return usageFlaw(csr.Spec.Usages, certificatesv1.UsageServerAuth)
}

// usageFlaw: the usage itself and a digital signature, perhaps key encipherment.
func usageFlaw(usages []certificatesv1.KeyUsage, of certificatesv1.KeyUsage) string {
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
