package admission

import (
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
)

func TestNextUsedCertificate(t *testing.T) {
	t.Parallel()
	for _, row := range []struct{ name, used, issued, presented, want string }{
		{"first renewal", "", "a", "a", "a"},
		{"first renewal with an unknown certificate", "", "b", "a", "a"},
		{"no change", "a", "a", "a", "a"},
		{"the issued certificate is not used yet", "a", "b", "a", "a"},
		{"first use of the issued certificate", "a", "b", "b", "b"},
		{"an older certificate is used again", "b", "b", "a", "b"},
		{"nothing is recorded on the Node", "a", "", "b", "b"},
		{"no certificate", "a", "b", "", "a"},
	} {
		if got := nextUsedCertificate(row.used, row.issued, row.presented); got != row.want {
			t.Errorf("%s: got %q, want %q", row.name, got, row.want)
		}
	}
}

func TestNodeCertificatesAreRecorded(t *testing.T) {
	t.Parallel()
	const a, b, forged = "X509SHA256=a", "X509SHA256=b", "X509SHA256=forged"
	f := informers.NewSharedInformerFactory(fake.NewClientset(), 0)
	if err := f.Core().V1().Nodes().Informer().GetIndexer().Add(annotatedNode(issuedCertificate, b)); err != nil {
		t.Fatal(err)
	}
	plugin, err := newNodeCertificates(Config{Informers: f})
	if err != nil {
		t.Fatal(err)
	}
	node := func(credential string) user.Info { return nodeUser("n", credential) }
	admin := &user.DefaultInfo{Name: "admin", Extra: map[string][]string{user.CredentialIDKey: {a}}}
	for _, row := range []struct {
		name     string
		user     user.Info
		old, now metav1.Object
		key      string
		want     string
	}{
		{"registration", node(a), nil, annotatedNode("", ""), issuedCertificate, a},
		{"registration with a forged record", node(a), nil, annotatedNode(issuedCertificate, forged), issuedCertificate,
			a},
		{"registration with a token", node("JTI=x"), nil, annotatedNode(issuedCertificate, forged), issuedCertificate,
			""},
		{"change of the record by the node", node(a), annotatedNode(issuedCertificate, b),
			annotatedNode(issuedCertificate, forged), issuedCertificate, b},
		{"removal of the record by the node", node(a), annotatedNode(issuedCertificate, b), annotatedNode("", ""),
			issuedCertificate, b},
		{"addition of a record by the node", node(a), annotatedNode("", ""), annotatedNode(issuedCertificate, forged),
			issuedCertificate, ""},
		{"change by the administrator", admin, annotatedNode(issuedCertificate, b),
			annotatedNode(issuedCertificate, forged), issuedCertificate, forged},
		{"new lease", node(a), nil, annotatedLease("", ""), usedCertificate, a},
		{"new lease with a forged record", node(a), nil, annotatedLease(usedCertificate, forged), usedCertificate, a},
		{"renewal with the certificate that was issued last", node(b), annotatedLease(usedCertificate, a),
			annotatedLease(usedCertificate, a), usedCertificate, b},
		{"renewal with an older one", node(a), annotatedLease(usedCertificate, b), annotatedLease(usedCertificate, b),
			usedCertificate, b},
		{"renewal with a forged record", node(a), annotatedLease(usedCertificate, b),
			annotatedLease(usedCertificate, forged), usedCertificate, b},
		{"renewal while the Node is not cached", nodeUser("uncached", a), annotatedLease(usedCertificate, b),
			annotatedLease(usedCertificate, b), usedCertificate, b},
		{"new lease while the Node is not cached", nodeUser("uncached", a), nil, annotatedLease("", ""),
			usedCertificate, a},
	} {
		operation, old := admission.Update, runtime.Object(nil)
		if row.old == nil {
			operation = admission.Create
		} else {
			old = row.old.(runtime.Object)
		}
		attributes := admission.NewAttributesRecord(row.now.(runtime.Object), old, corev1.SchemeGroupVersion.
			WithKind("X"), "", "n", corev1.SchemeGroupVersion.WithResource("x"), "", operation, nil, false, row.user)
		if err := plugin.(admission.MutationInterface).Admit(t.Context(), attributes, nil); err != nil {
			t.Fatal(err)
		}
		if got := row.now.GetAnnotations()[row.key]; got != row.want {
			t.Errorf("%s: got %q, want %q", row.name, got, row.want)
		}
	}
}

// nodeUser returns the user of a node with a certificate.
func nodeUser(name, credential string) user.Info {
	return &user.DefaultInfo{Name: "system:node:" + name, Groups: []string{"system:nodes"},
		Extra: map[string][]string{user.CredentialIDKey: {credential}}}
}

func annotated(key, value string) metav1.ObjectMeta {
	m := metav1.ObjectMeta{Name: "n"}
	if key != "" {
		m.Annotations = map[string]string{key: value}
	}
	return m
}

func annotatedNode(key, value string) *corev1.Node {
	return &corev1.Node{ObjectMeta: annotated(key, value)}
}

func annotatedLease(key, value string) *coordinationv1.Lease {
	return &coordinationv1.Lease{ObjectMeta: annotated(key, value)}
}
