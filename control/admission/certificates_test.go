package admission

import (
	"context"
	"strings"
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/kubernetes/fake"
)

// permitting returns a Config whose authorizer permits "verb signer" only.
func permitting(permission string) Config {
	return Config{Authorizer: authorizer.AuthorizerFunc(func(_ context.Context, a authorizer.Attributes) (
		authorizer.Decision, string, error) {
		if a.GetResource() == "signers" && a.GetVerb()+" "+a.GetName() == permission {
			return authorizer.DecisionAllow, "", nil
		}
		return authorizer.DecisionNoOpinion, "", nil
	})}
}

func certificateWrite(resource, subresource string, now, old runtime.Object, u user.Info) admission.Attributes {
	verb, options := admission.Update, runtime.Object(&metav1.UpdateOptions{})
	if old == nil {
		verb, options = admission.Create, &metav1.CreateOptions{}
	}
	return admission.NewAttributesRecord(now, old, certificatesv1.SchemeGroupVersion.WithKind("X"), "ns", "x",
		certificatesv1.SchemeGroupVersion.WithResource(resource), subresource, verb, options, false, u)
}

// TestTrustBundleAttest checks who may write ClusterTrustBundles.
func TestTrustBundleAttest(t *testing.T) {
	t.Parallel()
	bundle := func(signer, text string, owners ...metav1.OwnerReference) *certificatesv1.ClusterTrustBundle {
		return &certificatesv1.ClusterTrustBundle{ObjectMeta: metav1.ObjectMeta{Name: "x", OwnerReferences: owners},
			Spec: certificatesv1.ClusterTrustBundleSpec{SignerName: signer, TrustBundle: text}}
	}
	for name, row := range map[string]struct {
		permission string
		now        runtime.Object
		old        runtime.Object
		allowed    bool
	}{
		"without a signer":            {"", bundle("", "a"), nil, true},
		"without permission":          {"sign example.com/a", bundle("example.com/a", "a"), nil, false},
		"with permission":             {"attest example.com/a", bundle("example.com/a", "a"), nil, true},
		"for all signers of a domain": {"attest example.com/*", bundle("example.com/a", "a"), nil, true},
		"for another signer":          {"attest example.com/b", bundle("example.com/a", "a"), nil, false},
		"a change":                    {"", bundle("example.com/a", "b"), bundle("example.com/a", "a"), false},
		"a change of owners": {"", bundle("example.com/a", "a", metav1.OwnerReference{Name: "o"}),
			bundle("example.com/a", "a"), true},
	} {
		p := newTestPlugin(t, newTrustBundleAttest, permitting(row.permission)).(admission.ValidationInterface)
		err := p.Validate(t.Context(), certificateWrite("clustertrustbundles", "", row.now, row.old,
			&user.DefaultInfo{Name: "ann"}), nil)
		if (err == nil) != row.allowed || err != nil && !strings.Contains(err.Error(),
			`user not permitted to attest for signerName "example.com/a"`) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

// TestPodCertificateSigning checks who may write the status of PodCertificateRequests.
func TestPodCertificateSigning(t *testing.T) {
	t.Parallel()
	old := &certificatesv1.PodCertificateRequest{Spec: certificatesv1.PodCertificateRequestSpec{
		SignerName: "example.com/a"}}
	now := old.DeepCopy()
	now.Status.Conditions = []metav1.Condition{{Type: "Denied"}}
	for name, row := range map[string]struct {
		permission string
		now        *certificatesv1.PodCertificateRequest
		allowed    bool
	}{
		"with permission":    {"sign example.com/a", now, true},
		"without permission": {"approve example.com/a", now, false},
		"without a change":   {"", old, true},
	} {
		p := newTestPlugin(t, newSigning, permitting(row.permission)).(admission.ValidationInterface)
		err := p.Validate(t.Context(), certificateWrite("podcertificaterequests", "status", row.now, old,
			&user.DefaultInfo{Name: "ann"}), nil)
		if (err == nil) != row.allowed {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

// TestNodeRestrictionOfPodCertificates: a node requests certificates for its pods only.
func TestNodeRestrictionOfPodCertificates(t *testing.T) {
	t.Parallel()
	pod := func(name, node string, mirror bool) *corev1.Pod {
		out := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: "p1"},
			Spec: corev1.PodSpec{NodeName: node, ServiceAccountName: "app"}}
		if mirror {
			out.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "1"}
		}
		return out
	}
	c := Config{Client: fake.NewClientset(pod("web", "n", false), pod("far", "m", false), pod("mirror", "n", true),
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "n1"}},
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "app", UID: "s1"}})}
	c.GetPod = func(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
		return c.Client.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
	}
	p := newTestPlugin(t, newNodeRestriction, c).(admission.ValidationInterface)
	node := &user.DefaultInfo{Name: "system:node:n", Groups: []string{"system:nodes"}}
	type spec = certificatesv1.PodCertificateRequestSpec
	for name, row := range map[string]struct {
		change func(*spec)
		want   string // in the error
	}{
		"own pod":                    {func(*spec) {}, ""},
		"another node":               {func(s *spec) { s.NodeName = "m" }, "which is not the requesting node"},
		"another node UID":           {func(s *spec) { s.NodeUID = "n2" }, "contains NodeUID"},
		"pod of another node":        {func(s *spec) { s.PodName = "far" }, "is not running on node"},
		"missing pod":                {func(s *spec) { s.PodName = "none" }, "retrieve pod ns/none"},
		"another pod UID":            {func(s *spec) { s.PodUID = "p2" }, "contains PodUID"},
		"mirror pod":                 {func(s *spec) { s.PodName = "mirror" }, "is a mirror pod"},
		"another account":            {func(s *spec) { s.ServiceAccountName = "root" }, "contains ServiceAccountName"},
		"another UID of the account": {func(s *spec) { s.ServiceAccountUID = "s2" }, "contains ServiceAccountUID"},
	} {
		r := &certificatesv1.PodCertificateRequest{Spec: spec{PodName: "web", PodUID: "p1", NodeName: "n",
			NodeUID: "n1", ServiceAccountName: "app", ServiceAccountUID: "s1"}}
		row.change(&r.Spec)
		err := p.Validate(t.Context(), certificateWrite("podcertificaterequests", "", r, nil, node), nil)
		if row.want == "" && err != nil || row.want != "" && (err == nil || !strings.Contains(err.Error(), row.want)) {
			t.Errorf("%s: got %v, want %q", name, err, row.want)
		}
	}
	r := &certificatesv1.PodCertificateRequest{}
	status := certificateWrite("podcertificaterequests", "status", r, r, node)
	if err := p.Validate(t.Context(), status, nil); err == nil {
		t.Error("a node may write the status of a request")
	}
}
