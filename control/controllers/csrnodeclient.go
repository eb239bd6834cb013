package controllers

import (
	"fmt"
	"slices"
	"strings"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
)

const (
	// IssuedCertificateAnnotation of a Node is the ID of the last client certificate that was issued for it. The
	// admission plugin NodeCertificates protects it, and sets it when a node registers.
	IssuedCertificateAnnotation = "berth.dev/issued-client-certificate"
	// UsedCertificateAnnotation of a node's Lease is the ID of the newest client certificate with which the node has
	// renewed it. It is the last issued one, or its predecessor while the last one was never used. The admission
	// plugin NodeCertificates sets it.
	UsedCertificateAnnotation = "berth.dev/used-client-certificate"
	// forNodeKey is the key in the extra fields of a user with a bootstrap token for a node that may exist. See
	// package tokens.
	forNodeKey = "berth.dev/for-node"
	// credentialIDKey is user.CredentialIDKey of k8s.io/apiserver.
	credentialIDKey = "authentication.kubernetes.io/credential-id"
)

// nodeRequester is who requests a client certificate for a node.
type nodeRequester int

const (
	joiningNode   nodeRequester = iota // a bootstrap token, or any other user
	runningNode                        // the node itself
	returningNode                      // the node itself with an expired certificate, see package authn
)

// nodeClientRequest is what the decision about a client certificate for a node depends on.
type nodeClientRequest struct {
	name       string // of the node
	requester  nodeRequester
	machineID  string // of the requesting host; "": counts as another host than that of any node
	credential string // ID of the certificate of a returning node
	forNode    string // node whose name the operator lets the requester take; "": none
	node       *corev1.Node
	lease      *coordinationv1.Lease // of node; node and lease may be nil
	now        time.Time
}

// requesterOf returns who has made a request for a certificate of the named node.
func requesterOf(csr *certificatesv1.CertificateSigningRequest, name string) nodeRequester {
	switch {
	case csr.Spec.Username == returningNodePrefix+name && slices.Contains(csr.Spec.Groups, returningNodesGroup):
		return returningNode
	case csr.Spec.Username == nodePrefix+name && slices.Contains(csr.Spec.Groups, nodesGroup):
		return runningNode
	}
	return joiningNode
}

// extraOf returns the first value of an extra field of the requesting user, which the API server has recorded.
func extraOf(csr *certificatesv1.CertificateSigningRequest, key string) string {
	if values := csr.Spec.Extra[key]; len(values) > 0 {
		return values[0]
	}
	return ""
}

// permission returns the subresource that the requester must be allowed to create, and the kind of certificate.
func (r *nodeClientRequest) permission() (subresource, kind string) {
	if r.requester == joiningNode {
		return "nodeclient", "kubelet client certificate"
	}
	return "selfnodeclient", "self kubelet client certificate"
}

// decide returns the decision on a request whose requester has the permission. The zero value means that it is too
// early to decide. Nothing depends on what a client can choose, except that a machine ID can only restrict.
func (r *nodeClientRequest) decide() csrDecision {
	switch r.requester {
	case returningNode:
		return r.decideReturning()
	case joiningNode:
		return r.decideJoining()
	case runningNode:
	}
	return r.approve()
}

// decideJoining denies the name of an existing node, unless the operator lets the requester take it and no other host
// is running under this name.
func (r *nodeClientRequest) decideJoining() csrDecision {
	switch {
	case r.forNode != "" && r.forNode != r.name:
		return denied("TokenForOtherNode", "the token is for node %q only", r.forNode)
	case r.node == nil:
		return r.approve()
	case r.isAlive() && !r.isSameMachine():
		is, this := r.node.Status.NodeInfo.MachineID, "this host has "+r.machineID
		if r.machineID == "" {
			this = "the request of this host has none"
		}
		return denied("NodeNameInUse", "node %q is running on another host (machine ID %s, %s). Join with another "+
			"name (--hostname-override=NAME). If the other host no longer exists, run \"kubectl delete node %s\" "+
			"first. Hosts cloned from one image need different /etc/machine-id files (systemd-machine-id-setup).",
			r.name, is, this, r.name)
	case r.forNode == "":
		return denied("NodeExists", "node %q exists. To let this host take its name, join with a token from "+
			"\"berth-control token create --for %s\", or run \"kubectl delete node %s\" first. Otherwise join with "+
			"another name (--hostname-override=NAME).", r.name, r.name, r.name)
	}
	return r.approve()
}

// decideReturning approves the renewal of an expired certificate if it is the last one of the node, the node still
// exists, and nothing is running with a newer one. While the lease is alive, it is too early.
func (r *nodeClientRequest) decideReturning() csrDecision {
	const rejoin = `join it again with a token from "berth-control token create`
	switch {
	case r.node == nil:
		return denied("NodeRemoved", "node %q was removed from this cluster: "+rejoin+`"`, r.name)
	case !r.isSameMachine():
		return denied("OtherMachine", "node %q was running on another host (machine ID %q, this host has %q): "+rejoin+
			" --for %s\"", r.name, r.node.Status.NodeInfo.MachineID, r.machineID, r.name)
	case !r.isLastCertificate():
		return denied("CertificateSuperseded", "the expired certificate is not the last one that was issued for node "+
			"%q: "+rejoin+" --for %s\"", r.name, r.name)
	case r.isAlive():
		return csrDecision{}
	}
	return r.approve()
}

func (r *nodeClientRequest) approve() csrDecision {
	_, kind := r.permission()
	return csrDecision{certificatesv1.CertificateApproved, "AutoApproved", "Auto approving " + kind +
		" after SubjectAccessReview."}
}

func denied(reason, format string, args ...any) csrDecision {
	return csrDecision{certificatesv1.CertificateDenied, reason, fmt.Sprintf(format, args...)}
}

// isSameMachine reports whether the requesting host is that of the node. A missing machine ID is that of no host.
func (r *nodeClientRequest) isSameMachine() bool {
	return r.machineID != "" && r.machineID == r.node.Status.NodeInfo.MachineID
}

// isLastCertificate reports whether a returning node has used its last certificate, or the predecessor of one that was
// never used.
func (r *nodeClientRequest) isLastCertificate() bool {
	if r.credential == "" {
		return false
	}
	return r.credential == r.node.Annotations[IssuedCertificateAnnotation] ||
		r.lease != nil && r.credential == r.lease.Annotations[UsedCertificateAnnotation]
}

// isAlive reports whether a node renews its lease. The node lifecycle controller measures that by the server's clock
// and sets the condition Ready to Unknown, but later than the lease shows that a node is back. The time in the lease
// is of the node's clock: a time far in the future proves nothing.
func (r *nodeClientRequest) isAlive() bool {
	if ready := nodeCondition(r.node, corev1.NodeReady); ready != nil && ready.Status != corev1.ConditionUnknown {
		return true
	}
	if r.lease == nil || r.lease.Spec.RenewTime == nil || r.lease.Spec.LeaseDurationSeconds == nil {
		return false
	}
	duration := time.Duration(*r.lease.Spec.LeaseDurationSeconds) * time.Second
	return r.now.Sub(r.lease.Spec.RenewTime.Time).Abs() < duration
}

// nodeNameOf returns the node of a valid request.
func nodeNameOf(commonName string) string { return strings.TrimPrefix(commonName, nodePrefix) }
