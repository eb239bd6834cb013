package admission

import (
	"context"
	"strings"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	corelisters "k8s.io/client-go/listers/core/v1"

	"berth/control/authz"
)

// Annotations with the IDs of client certificates of a node. See the controller that approves certificate signing
// requests in package controllers.
const (
	issuedCertificate = "berth.dev/issued-client-certificate" // of the Node
	usedCertificate   = "berth.dev/used-client-certificate"   // of its Lease
)

// nodeCertificates records on the Node and the Lease of a node which certificates it uses, and prevents that a node
// changes these records. It decides whether a node with an expired certificate may renew it.
type nodeCertificates struct {
	*admission.Handler

	nodes corelisters.NodeLister
}

func newNodeCertificates(c Config) (admission.Interface, error) {
	return &nodeCertificates{admission.NewHandler(admission.Create, admission.Update),
		c.Informers.Core().V1().Nodes().Lister()}, nil
}

// Admit sets the annotations of objects that a node writes.
func (n *nodeCertificates) Admit(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	name, ok := authz.NodeName(a.GetUserInfo())
	if !ok {
		return nil
	}
	presented := certificateOf(a.GetUserInfo())
	switch object := a.GetObject().(type) {
	case *corev1.Node:
		old, _ := a.GetOldObject().(*corev1.Node)
		if old == nil {
			setAnnotation(object, issuedCertificate, presented)
			return nil
		}
		setAnnotation(object, issuedCertificate, old.Annotations[issuedCertificate])
	case *coordinationv1.Lease:
		used := ""
		if old, _ := a.GetOldObject().(*coordinationv1.Lease); old != nil {
			used = old.Annotations[usedCertificate]
		}
		issued := used // while the Node is not in the cache, the record does not change
		if node, err := n.nodes.Get(name); err == nil {
			issued = node.Annotations[issuedCertificate]
		}
		setAnnotation(object, usedCertificate, nextUsedCertificate(used, issued, presented))
	}
	return nil
}

// nextUsedCertificate returns the newest certificate that a node has used, from the one recorded so far, the last
// issued one and the one it presents. An older certificate than the recorded one does not replace it.
func nextUsedCertificate(used, issued, presented string) string {
	switch {
	case presented == "":
		return used
	case used == "", issued == "", presented == issued:
		return presented
	}
	return used
}

// certificateOf returns the ID of the client certificate of a user, or "".
func certificateOf(u user.Info) string {
	for _, id := range u.GetExtra()[user.CredentialIDKey] {
		if strings.HasPrefix(id, "X509SHA256=") {
			return id
		}
	}
	return ""
}

// setAnnotation sets an annotation, or removes it if the value is "".
func setAnnotation(object metav1.Object, key, value string) {
	annotations := object.GetAnnotations()
	if annotations[key] == value {
		return
	}
	if value == "" {
		delete(annotations, key)
		return
	}
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[key] = value
	object.SetAnnotations(annotations)
}
