package validation_test

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	storagemigrationv1 "k8s.io/api/storagemigration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"berth/control/validation"
)

var start = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func newKey(t *testing.T) ed25519.PrivateKey {
	t.Helper()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// newCertificate returns a certificate in PEM that is valid for an hour and a minute, changed by a function.
func newCertificate(t *testing.T, key crypto.Signer, change func(*x509.Certificate)) string {
	t.Helper()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: start, NotAfter: start.Add(61 * time.Minute),
		BasicConstraintsValid: true,
	}
	if change != nil {
		change(template)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}

// requireError checks that the errors are one that contains a text, or none if it is empty.
func requireError(t *testing.T, name string, errs field.ErrorList, want string) {
	t.Helper()
	if want == "" && len(errs) > 0 || want != "" && (len(errs) != 1 || !strings.Contains(errs[0].Error(), want)) {
		t.Errorf("%s: got %v, want %q", name, errs, want)
	}
}

// TestTrustAnchors checks the certificates of ClusterTrustBundles.
func TestTrustAnchors(t *testing.T) {
	t.Parallel()
	r, _ := tested.RulesFor(schema.GroupKind{Group: certificatesv1.GroupName, Kind: "ClusterTrustBundle"})
	authority := func(c *x509.Certificate) { c.IsCA = true }
	one, two := newCertificate(t, newKey(t), authority), newCertificate(t, newKey(t), authority)
	bundle := func(text string) *certificatesv1.ClusterTrustBundle {
		return &certificatesv1.ClusterTrustBundle{
			ObjectMeta: metav1.ObjectMeta{Name: "example.com:a:b", ResourceVersion: "1"},
			Spec:       certificatesv1.ClusterTrustBundleSpec{SignerName: "example.com/a", TrustBundle: text},
		}
	}
	block := strings.Replace(one, "-----\n", "-----\na: b\n\n", 1)
	for name, row := range map[string]struct{ text, want string }{
		"two certificates": {"comment\n" + one + two, ""},
		"a duplicate":      {one + two + one, "duplicate trust anchor (indices [0 2])"},
		"headers":          {block, "entry 0 has PEM block headers"},
		"no authority":     {one + newCertificate(t, newKey(t), nil), "entry 1 does not have the CA bit set"},
		"another block":    {strings.ReplaceAll(one, "CERTIFICATE", "X"), "entry 0 has bad block type: X"},
		"not a certificate": {"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
			"does not parse as X.509"},
		"too long": {strings.Repeat(" ", 1<<20+1), "Too long"},
	} {
		requireError(t, name, r.Validate(bundle(row.text)), row.want)
		requireError(t, name+" in an update", r.ValidateUpdate(bundle(row.text), bundle(two)), row.want)
		requireError(t, name+", unchanged", r.ValidateUpdate(bundle(row.text), bundle(row.text)), "")
	}
}

// TestCertificateKindsAreImmutable checks the signer of ClusterTrustBundles and the spec of PodCertificateRequests.
func TestCertificateKindsAreImmutable(t *testing.T) {
	t.Parallel()
	r, _ := tested.RulesFor(schema.GroupKind{Group: certificatesv1.GroupName, Kind: "ClusterTrustBundle"})
	bundle := &certificatesv1.ClusterTrustBundle{ObjectMeta: metav1.ObjectMeta{Name: "a:b:c", ResourceVersion: "1"},
		Spec: certificatesv1.ClusterTrustBundleSpec{SignerName: "a/b"}}
	changed := bundle.DeepCopy()
	changed.Spec.SignerName = ""
	if got := r.ValidateUpdate(changed, bundle).ToAggregate(); got == nil || !strings.Contains(got.Error(),
		"spec.signerName: Invalid value: \"\": field is immutable") {
		t.Errorf("signer of a bundle: got %v", got)
	}
	r, _ = tested.RulesFor(schema.GroupKind{Group: certificatesv1.GroupName, Kind: "PodCertificateRequest"})
	request := newPodCertificateRequest(t, newKey(t))
	next := request.DeepCopy()
	next.Spec.PodName = "q"
	requireError(t, "pod of a request", r.ValidateUpdate(next, request), "spec: Invalid value")
}

// newPodCertificateRequest returns a request with the key.
func newPodCertificateRequest(t *testing.T, key crypto.Signer) *certificatesv1.PodCertificateRequest {
	t.Helper()
	stub, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		t.Fatal(err)
	}
	return &certificatesv1.PodCertificateRequest{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "r", ResourceVersion: "1"},
		Spec: certificatesv1.PodCertificateRequestSpec{
			SignerName: "example.com/a", PodName: "p", PodUID: "u", ServiceAccountName: "s", ServiceAccountUID: "u",
			NodeName: "n", NodeUID: "u", MaxExpirationSeconds: new(int32(86400)), StubPKCS10Request: stub,
		},
	}
}

// TestStubRequests checks the keys and signatures of PodCertificateRequests.
func TestStubRequests(t *testing.T) {
	t.Parallel()
	r, _ := tested.RulesFor(schema.GroupKind{Group: certificatesv1.GroupName, Kind: "PodCertificateRequest"})
	requireError(t, "Ed25519", r.Validate(newPodCertificateRequest(t, newKey(t))), "")
	for curve, want := range map[elliptic.Curve]string{elliptic.P256(): "", elliptic.P521(): "",
		elliptic.P224(): "elliptic public keys must use curve P256, P384 or P521"} {
		key, err := ecdsa.GenerateKey(curve, rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		requireError(t, curve.Params().Name, r.Validate(newPodCertificateRequest(t, key)), want)
	}
	forged := newPodCertificateRequest(t, newKey(t))
	forged.Spec.StubPKCS10Request[len(forged.Spec.StubPKCS10Request)-1] ^= 1
	requireError(t, "another signature", r.Validate(forged), "could not verify the signature")
}

// TestPodCertificateStatus checks which changes of the status are valid.
func TestPodCertificateStatus(t *testing.T) {
	t.Parallel()
	r, _ := tested.RulesFor(schema.GroupKind{Group: certificatesv1.GroupName, Kind: "PodCertificateRequest"})
	key := newKey(t)
	pending := newPodCertificateRequest(t, key)
	ended := func(kind string) *certificatesv1.PodCertificateRequest {
		out := pending.DeepCopy()
		out.Status.Conditions = []metav1.Condition{{Type: kind, Status: metav1.ConditionTrue, Reason: "Test",
			LastTransitionTime: metav1.NewTime(start)}}
		return out
	}
	issued := ended("Issued")
	issued.Status.CertificateChain = newCertificate(t, key, nil)
	issued.Status.NotBefore = &metav1.Time{Time: start}
	issued.Status.NotAfter = &metav1.Time{Time: start.Add(61 * time.Minute)}
	issued.Status.BeginRefreshAt = &metav1.Time{Time: start.Add(40 * time.Minute)}
	changed := func(change func(*certificatesv1.PodCertificateRequest)) *certificatesv1.PodCertificateRequest {
		out := issued.DeepCopy()
		change(out)
		return out
	}
	chain := func(change func(*x509.Certificate)) func(*certificatesv1.PodCertificateRequest) {
		return func(r *certificatesv1.PodCertificateRequest) {
			r.Status.CertificateChain = newCertificate(t, key, change)
		}
	}
	type request = *certificatesv1.PodCertificateRequest
	for name, row := range map[string]struct {
		now, old request
		want     string
	}{
		"issued":                     {issued, pending, ""},
		"denied":                     {ended("Denied"), pending, ""},
		"unchanged":                  {issued, issued, ""},
		"denied after it was issued": {ended("Denied"), issued, "immutable after PodCertificateRequest is issued"},
		"another condition":          {ended("Ready"), pending, "status.conditions[0].type: Unsupported value"},
		"no condition": {changed(func(r request) { r.Status.Conditions = nil }), pending,
			"status is immutable unless transitioning"},
		"a condition that is false": {changed(func(r request) {
			r.Status.Conditions[0].Status = metav1.ConditionFalse
		}), pending, "status.conditions[0].status: Unsupported value"},
		"failed with a certificate": {changed(func(r request) { r.Status.Conditions[0].Type = "Failed" }), pending,
			"non-condition status fields must be empty"},
		"without a certificate": {changed(func(r request) { r.Status.CertificateChain = "" }), pending,
			"must contain at least one certificate"},
		"another key": {changed(func(r request) {
			r.Status.CertificateChain = newCertificate(t, newKey(t), nil)
		}), pending, "not issued to the requested public key"},
		"a broken chain": {changed(func(r request) {
			r.Status.CertificateChain += "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
		}), pending, "intermediate certificate does not parse"},
		"without a time": {changed(func(r request) { r.Status.NotAfter = nil }), pending,
			"status.notAfter: Required value"},
		"another time": {changed(chain(func(c *x509.Certificate) { c.NotBefore = start.Add(-time.Minute) })), pending,
			"must be set to the NotBefore time"},
		"too short": {changed(func(r request) {
			chain(func(c *x509.Certificate) { c.NotAfter = start.Add(time.Minute) })(r)
			r.Status.NotAfter.Time = start.Add(time.Minute)
		}), pending, "leaf certificate lifetime must be >= 1 hour"},
		"too long": {changed(func(r request) {
			chain(func(c *x509.Certificate) { c.NotAfter = start.Add(25 * time.Hour) })(r)
			r.Status.NotAfter.Time = start.Add(25 * time.Hour)
		}), pending, "must be <= spec.maxExpirationSeconds (86400)"},
		"a late refresh": {changed(func(r request) { r.Status.BeginRefreshAt = r.Status.NotAfter }), pending,
			"must be at least 10 minutes before status.notAfter"},
		"a DNS name": {changed(chain(func(c *x509.Certificate) { c.DNSNames = []string{"a..b"} })), pending,
			"should not contain '..'"},
	} {
		requireError(t, name, r.ValidateStatus(row.now, row.old), row.want)
	}
	requireError(t, "now", validation.IssuedNow(issued, pending, start.Add(4*time.Minute)), "")
	requireError(t, "later", validation.IssuedNow(issued, pending, start.Add(6*time.Minute)), "within 5 minutes")
	requireError(t, "unchanged later", validation.IssuedNow(issued, issued, start.Add(6*time.Minute)), "")
}

// TestMigrationStatus checks which changes of the status of a StorageVersionMigration are valid.
func TestMigrationStatus(t *testing.T) {
	t.Parallel()
	r, _ := tested.RulesFor(schema.GroupKind{Group: storagemigrationv1.GroupName, Kind: "StorageVersionMigration"})
	migration := func(version string, conditions ...string) *storagemigrationv1.StorageVersionMigration {
		out := &storagemigrationv1.StorageVersionMigration{}
		out.Name, out.ObjectMeta.ResourceVersion = "m", "1"
		out.Status.ResourceVersion = version
		for _, kind := range conditions {
			out.Status.Conditions = append(out.Status.Conditions, metav1.Condition{Type: kind,
				Status: metav1.ConditionTrue, Reason: "Test", LastTransitionTime: metav1.NewTime(start)})
		}
		return out
	}
	for name, row := range map[string]struct {
		now, old *storagemigrationv1.StorageVersionMigration
		want     string
	}{
		"running":             {migration("7", "Running"), migration(""), ""},
		"no number":           {migration("a"), migration(""), "status.resourceVersion: Invalid value"},
		"another version":     {migration("8"), migration("7"), "field is immutable"},
		"two ends":            {migration("7", "Succeeded", "Failed"), migration("7"), "cannot be true at the same"},
		"failed and running":  {migration("7", "Failed", "Running"), migration("7"), ""},
		"no longer succeeded": {migration("7"), migration("7", "Succeeded"), "Success condition cannot be set"},
	} {
		requireError(t, name, r.ValidateStatus(row.now, row.old), row.want)
	}
}
