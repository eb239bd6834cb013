package tokens

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"log/slog"
	"math/big"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	authenticationv1 "k8s.io/api/authentication/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/kubernetes/fake"
)

// fakeGetter returns fixed objects.
type fakeGetter struct {
	account *corev1.ServiceAccount
	pod     *corev1.Pod
	secret  *corev1.Secret
	node    *corev1.Node
}

func orNotFound[T any](o *T, resource string) (*T, error) {
	if o == nil {
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: resource}, resource)
	}
	return o, nil
}

func (s *fakeGetter) ServiceAccount(context.Context, string, string) (*corev1.ServiceAccount, error) {
	return orNotFound(s.account, "serviceaccounts")
}
func (s *fakeGetter) Pod(context.Context, string, string) (*corev1.Pod, error) {
	return orNotFound(s.pod, "pods")
}
func (s *fakeGetter) Secret(context.Context, string, string) (*corev1.Secret, error) {
	return orNotFound(s.secret, "secrets")
}
func (s *fakeGetter) Node(context.Context, string) (*corev1.Node, error) {
	return orNotFound(s.node, "nodes")
}

func newFakeGetter() *fakeGetter {
	named := func(name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name + "-1")}
	}
	return &fakeGetter{
		&corev1.ServiceAccount{ObjectMeta: named("app")},
		&corev1.Pod{ObjectMeta: named("pod"), Spec: corev1.PodSpec{ServiceAccountName: "app", NodeName: "node"}},
		&corev1.Secret{ObjectMeta: named("secret")}, &corev1.Node{ObjectMeta: named("node")},
	}
}

const testIssuer = "https://us.example"

func testKeyrings(t *testing.T) map[string]*Keyring {
	t.Helper()
	ec, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	rs, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]*Keyring{}
	for name, key := range map[string]crypto.Signer{"ES256": ec, "RS256": rs} {
		if out[name], err = NewKeyring(key); err != nil {
			t.Fatal(err)
		}
	}
	return out
}

// TestTokenIsInvalidWithoutBoundObjects checks invariant K1 with keys of both types.
func TestTokenIsInvalidWithoutBoundObjects(t *testing.T) {
	t.Parallel()
	for name, ring := range testKeyrings(t) {
		for _, row := range []struct {
			name   string
			change func(*fakeGetter)
			want   string // "": the token is valid
		}{
			{"no change", func(*fakeGetter) {}, ""},
			{"account deleted", func(s *fakeGetter) { s.account = nil }, "service account app not found"},
			{"account recreated", func(s *fakeGetter) {
				s.account.UID = "app-2"
			}, "UID of service account app has changed"},
			{"pod deleted", func(s *fakeGetter) { s.pod = nil }, "pod pod not found"},
			{"pod recreated", func(s *fakeGetter) { s.pod.UID = "pod-2" }, "UID of pod pod has changed"},
			{"pod terminating", func(s *fakeGetter) { s.pod.DeletionTimestamp = &metav1.Time{Time: time.Now()} }, ""},
			{"pod terminating for too long", func(s *fakeGetter) {
				s.pod.DeletionTimestamp = &metav1.Time{Time: time.Now().Add(-2 * time.Minute)}
			}, "pod pod has been deleted"},
			{"node deleted", func(s *fakeGetter) { s.node = nil }, ""}, // the pod decides
		} {
			s := newFakeGetter()
			token, _, _, err := (&Signer{Issuer: testIssuer, Keys: ring}).Issue(Spec{Account: s.account.DeepCopy(),
				Pod: s.pod.DeepCopy(), Node: s.node.DeepCopy(), Audiences: []string{testIssuer}, TTL: time.Hour})
			if err != nil {
				t.Fatal(err)
			}
			row.change(s)
			r, ok, err := (&Verifier{Issuer: testIssuer, Audiences: []string{testIssuer}, Keys: ring,
				Objects: s}).AuthenticateToken(t.Context(), token)
			if ok != (row.want == "") || err != nil && !strings.Contains(err.Error(), row.want) {
				t.Errorf("%s, %s: got %v, %v", name, row.name, ok, err)
			}
			if ok && (r.User.GetName() != "system:serviceaccount:ns:app" ||
				r.User.GetExtra()["authentication.kubernetes.io/pod-uid"][0] != "pod-1") {
				t.Errorf("%s, %s: got %+v", name, row.name, r.User)
			}
		}
	}
}

// TestKeyDeterminesAlgorithm checks invariant K2: a token cannot use a public key as a shared
// secret or refer to a key of another type.
func TestKeyDeterminesAlgorithm(t *testing.T) {
	t.Parallel()
	all, s := testKeyrings(t), newFakeGetter()
	ec := all["ES256"]
	both, err := NewKeyring(ec.signer, all["RS256"].signer.Public())
	if err != nil {
		t.Fatal(err)
	}
	v := &Verifier{Issuer: testIssuer, Audiences: []string{testIssuer}, Keys: both, Objects: s}
	good := claims{
		RegisteredClaims: jwt.RegisteredClaims{
			Issuer: testIssuer, Subject: "system:serviceaccount:ns:app", Audience: []string{testIssuer}, ID: "1",
			ExpiresAt: jwt.NewNumericDate(time.Now().Add(time.Hour)),
		},
		Kubernetes: kubernetesClaims{Namespace: "ns", ServiceAccount: objectReference{"app", "app-1"}},
	}
	sign := func(method jwt.SigningMethod, kid string, key any, c claims) string {
		token := jwt.NewWithClaims(method, c)
		token.Header["kid"] = kid
		out, err := token.SignedString(key)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	public, err := x509.MarshalPKIXPublicKey(ec.signer.Public())
	if err != nil {
		t.Fatal(err)
	}
	changed := func(f func(*claims)) claims { c := good; f(&c); return c }
	for _, row := range []struct {
		name, token string
		want        bool
	}{
		{"signing key", sign(jwt.SigningMethodES256, ec.kid, ec.signer, good), true},
		{"verification key", sign(jwt.SigningMethodRS256, all["RS256"].kid, all["RS256"].signer, good), true},
		{"public key as shared secret", sign(jwt.SigningMethodHS256, ec.kid, public, good), false},
		{"no algorithm", sign(jwt.SigningMethodNone, ec.kid, jwt.UnsafeAllowNoneSignatureType, good), false},
		{"wrong key ID", sign(jwt.SigningMethodRS256, ec.kid, all["RS256"].signer, good), false},
		{"no key ID", sign(jwt.SigningMethodES256, "", ec.signer, good), false},
		{"another padding", sign(jwt.SigningMethodPS256, all["RS256"].kid, all["RS256"].signer, good), false},
		{"no expiry", sign(jwt.SigningMethodES256, ec.kid, ec.signer, changed(func(c *claims) {
			c.ExpiresAt = nil
		})), false},
		{"no audience", sign(jwt.SigningMethodES256, ec.kid, ec.signer, changed(func(c *claims) { c.Audience = nil })),
			false},
		{"another subject", sign(jwt.SigningMethodES256, ec.kid, ec.signer,
			changed(func(c *claims) { c.Subject = "system:serviceaccount:ns:root" })), false},
	} {
		if _, ok, err := v.AuthenticateToken(t.Context(), row.token); ok != row.want {
			t.Errorf("%s: got %v, %v", row.name, ok, err)
		} else if err != nil && strings.Contains(err.Error(), row.token[:20]) {
			t.Errorf("%s: the error contains the token", row.name)
		}
	}
}

func TestTokenRequestBinding(t *testing.T) {
	t.Parallel()
	ring := testKeyrings(t)["ES256"]
	s := newFakeGetter()
	r := &TokenRequestStorage{Signer: &Signer{Issuer: testIssuer, Keys: ring}, Objects: s,
		Audiences: []string{testIssuer},
		MaxTTL:    24 * time.Hour}
	ctx := genericapirequest.WithNamespace(t.Context(), "ns")
	request := func(kind, name, uid string, seconds int64) (*authenticationv1.TokenRequest, error) {
		req := &authenticationv1.TokenRequest{}
		if seconds != 0 {
			req.Spec.ExpirationSeconds = &seconds
		}
		if kind != "" {
			req.Spec.BoundObjectRef = &authenticationv1.BoundObjectReference{Kind: kind, APIVersion: "v1", Name: name,
				UID: types.UID(uid)}
		}
		out, err := r.Create(ctx, "app", req, nil, &metav1.CreateOptions{})
		if err != nil {
			return nil, err
		}
		return out.(*authenticationv1.TokenRequest), nil
	}
	for _, row := range []struct {
		kind, name, uid string
		seconds         int64
		want            string
	}{
		{"", "", "", 0, ""},
		{"Pod", "pod", "", 600, ""},
		{"Pod", "pod", "pod-1", 3600, ""},
		{"Pod", "pod", "pod-2", 3600, "does not match the UID in record"},
		{"Secret", "secret", "", 3600, ""},
		{"Node", "node", "node-1", 3600, ""},
		{"ConfigMap", "x", "", 3600, "cannot bind token to object of type"},
		{"", "", "", 599, "may not specify a duration less than 10 minutes"},
		{"", "", "", 1<<32 + 1, "may not specify a duration larger than 2^32 seconds"},
		{"", "", "", 1 << 30, ""}, // limited to MaxTTL
	} {
		out, err := request(row.kind, row.name, row.uid, row.seconds)
		if (err == nil) != (row.want == "") || err != nil && !strings.Contains(err.Error(), row.want) {
			t.Errorf("%+v: got error %v", row, err)
			continue
		}
		if err == nil && (out.Status.Token == "" ||
			out.Status.ExpirationTimestamp.After(time.Now().Add(25*time.Hour))) {
			t.Errorf("%+v: got expiration %+v", row, out.Status.ExpirationTimestamp)
		}
	}
	s.pod.Spec.ServiceAccountName = "other"
	if _, err := request("Pod", "pod", "", 0); !apierrors.IsBadRequest(err) {
		t.Errorf("pod of another account: %v", err)
	}
}

// TestInjectedTokenLifetimeIsExtended checks that the reported lifetime is not extended, and that
// no other token's lifetime is.
func TestInjectedTokenLifetimeIsExtended(t *testing.T) {
	t.Parallel()
	ring, start := testKeyrings(t)["ES256"], time.Unix(1e9, 0)
	const injected, day, year = 3607 * time.Second, 24 * time.Hour, 365 * 24 * time.Hour
	for name, row := range map[string]struct {
		off       bool
		longest   time.Duration
		pod       bool
		audiences []string
		requested time.Duration
		good      time.Duration
	}{
		"injected":                        {false, 0, true, nil, injected, year},
		"injected, with MaxTTL":           {false, day, true, nil, injected, day},
		"injected, with a smaller MaxTTL": {false, time.Hour, true, nil, injected, time.Hour},
		"extension disabled":              {true, 0, true, nil, injected, injected},
		"one hour":                        {false, 0, true, nil, time.Hour, time.Hour},
		"not bound to a pod":              {false, 0, false, nil, injected, injected},
		"for other audiences":             {false, 0, true, []string{testIssuer, "vault"}, injected, injected},
	} {
		now, s := start, newFakeGetter()
		clock := func() time.Time { return now }
		r := &TokenRequestStorage{Signer: &Signer{Issuer: testIssuer, Keys: ring, Now: clock}, Objects: s,
			Audiences: []string{testIssuer}, MaxTTL: row.longest, ExtendInjected: !row.off}
		seconds := int64(row.requested / time.Second)
		req := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &seconds,
			Audiences: row.audiences}}
		if row.pod {
			req.Spec.BoundObjectRef = &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: "pod"}
		}
		obj, err := r.Create(genericapirequest.WithNamespace(t.Context(), "ns"), "app", req, nil,
			&metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		out := obj.(*authenticationv1.TokenRequest)
		if reported := out.Status.ExpirationTimestamp.Sub(start); reported != min(row.requested, row.good) ||
			*out.Spec.ExpirationSeconds != int64(reported/time.Second) {
			t.Errorf("%s: got reported lifetime %v, %d s", name, reported, *out.Spec.ExpirationSeconds)
		}
		verifier := &Verifier{Issuer: testIssuer, Audiences: []string{testIssuer}, Keys: ring, Objects: s, Now: clock}
		for _, at := range []time.Duration{row.good - time.Second, row.good + time.Second} {
			now = start.Add(at)
			if _, ok, err := verifier.AuthenticateToken(t.Context(), out.Status.Token); ok != (at < row.good) {
				t.Errorf("%s: after %v: %v, %v", name, at, ok, err)
			}
		}
	}
}

// TestSecretTokenRenewal also checks that an invalid token is renewed immediately.
func TestSecretTokenRenewal(t *testing.T) {
	t.Parallel()
	keys, s, now := testKeyrings(t)["ES256"], newFakeGetter(), time.Unix(1e9, 0)
	signer := &SecretTokenSigner{Signer: &Signer{Issuer: testIssuer, Keys: keys, Now: func() time.Time { return now }},
		Audiences: []string{testIssuer}, MaxTTL: 10 * time.Hour}
	token, err := signer.Sign(s.account, s.secret)
	if err != nil {
		t.Fatal(err)
	}
	verifier := &Verifier{Issuer: testIssuer, Audiences: []string{testIssuer}, Keys: keys, Objects: s,
		Now: signer.Signer.Now}
	if _, ok, err := verifier.AuthenticateToken(t.Context(), token); !ok {
		t.Errorf("token rejected: %v", err)
	}
	if got := signer.RenewAt(token, s.account, s.secret); !got.Equal(now.Add(8 * time.Hour)) {
		t.Errorf("got renewal time %v", got)
	}
	otherSecret := s.secret.DeepCopy()
	otherSecret.UID = "secret-2"
	otherAccount := s.account.DeepCopy()
	otherAccount.UID = "app-2"
	otherKey := &SecretTokenSigner{Signer: &Signer{Issuer: testIssuer, Keys: testKeyrings(t)["ES256"],
		Now: signer.Signer.Now}}
	for name, got := range map[string]time.Time{
		"no token":           signer.RenewAt("", s.account, s.secret),
		"of another secret":  signer.RenewAt(token, s.account, otherSecret),
		"of another account": signer.RenewAt(token, otherAccount, s.secret),
		"of an unknown key":  otherKey.RenewAt(token, s.account, s.secret),
	} {
		if !got.IsZero() {
			t.Errorf("%s: got renewal time %v", name, got)
		}
	}
	now = now.Add(11 * time.Hour)
	if got := signer.RenewAt(token, s.account, s.secret); !got.IsZero() {
		t.Errorf("expired: got renewal time %v", got)
	}
}

// TestDiscoveryKeysVerifyTokens verifies a token with the published keys only.
func TestDiscoveryKeysVerifyTokens(t *testing.T) {
	t.Parallel()
	for name, ring := range testKeyrings(t) {
		d, err := NewDiscovery(testIssuer, "", ring)
		if err != nil {
			t.Fatal(err)
		}
		mux := http.NewServeMux()
		d.Install(mux)
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, ConfigurationPath, nil))
		if want := `"id_token_signing_alg_values_supported":["` + name + `"],"issuer":"` + testIssuer +
			`","jwks_uri":"` +
			testIssuer + `/openid/v1/jwks"`; !strings.Contains(w.Body.String(), want) {
			t.Errorf("got configuration %s", w.Body)
		}
		w = httptest.NewRecorder()
		mux.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, KeySetPath, nil))
		var set struct{ Keys []webKey }
		if err := json.Unmarshal(w.Body.Bytes(), &set); err != nil || len(set.Keys) != 1 ||
			w.Header().Get("Content-Type") != "application/jwk-set+json" {
			t.Fatalf("got keys %s, %v", w.Body, err)
		}
		token, _, _, err := (&Signer{Issuer: testIssuer, Keys: ring}).Issue(Spec{Account: newFakeGetter().account,
			Audiences: []string{"bank"}, TTL: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := jwt.Parse(token, func(*jwt.Token) (any, error) { return publicOf(t, set.Keys[0]), nil },
			jwt.WithAudience("bank")); err != nil {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

// TestDiscoveryKeySetURI publishes the keys at another URL.
func TestDiscoveryKeySetURI(t *testing.T) {
	t.Parallel()
	for _, ring := range testKeyrings(t) {
		d, err := NewDiscovery(testIssuer, "https://keys.example.com/jwks", ring)
		if err != nil || !strings.Contains(string(d.Configuration), `"jwks_uri":"https://keys.example.com/jwks"`) {
			t.Errorf("got %v, %v", d, err)
		}
		if _, err := NewDiscovery(testIssuer, "http://keys.example.com/jwks", ring); err == nil ||
			!strings.Contains(err.Error(), "service-account-jwks-uri requires https scheme") {
			t.Errorf("http: got %v", err)
		}
	}
}

func publicOf(t *testing.T, k webKey) crypto.PublicKey {
	t.Helper()
	decoded := func(s string) []byte {
		raw, err := base64.RawURLEncoding.DecodeString(s)
		if err != nil {
			t.Fatal(err)
		}
		return raw
	}
	if k.Kty == "RSA" {
		return &rsa.PublicKey{N: new(big.Int).SetBytes(decoded(k.N)),
			E: int(new(big.Int).SetBytes(decoded(k.E)).Int64())}
	}
	point := slices.Concat([]byte{4}, decoded(k.X), decoded(k.Y)) // uncompressed
	key, err := ecdsa.ParseUncompressedPublicKey(elliptic.P256(), point)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func TestBootstrapTokenAuthentication(t *testing.T) {
	t.Parallel()
	one, err := NewBootstrapToken()
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	for _, row := range []struct {
		name   string
		change func(*corev1.Secret)
		want   bool
	}{
		{"unchanged", func(*corev1.Secret) {}, true},
		{"before expiration", func(s *corev1.Secret) {
			s.Data[dataExpiration] = []byte(now.Add(time.Hour).Format(time.RFC3339))
		}, true},
		{"after expiration", func(s *corev1.Secret) {
			s.Data[dataExpiration] = []byte(now.Add(-time.Hour).Format(time.RFC3339))
		}, false},
		{"with an invalid expiration", func(s *corev1.Secret) { s.Data[dataExpiration] = []byte("tomorrow") }, false},
		{"of another type", func(s *corev1.Secret) { s.Type = corev1.SecretTypeOpaque }, false},
		{"not for authentication", func(s *corev1.Secret) { delete(s.Data, dataUsageAuth) }, false},
		{"with another id inside", func(s *corev1.Secret) { s.Data[dataID] = []byte("aaaaaa") }, false},
		{"with an empty secret", func(s *corev1.Secret) { s.Data[dataSecret] = nil }, false},
		{"with an invalid group", func(s *corev1.Secret) { s.Data[dataGroups] = []byte("system:masters") }, false},
		{"being deleted", func(s *corev1.Secret) { s.DeletionTimestamp = &metav1.Time{Time: now} }, false},
	} {
		s := one.ToSecret()
		row.change(s)
		s.Finalizers = []string{"x/y"}
		b := &BootstrapAuthenticator{Lookup: lookupIn(t, fake.NewClientset(s))}
		r, ok, err := b.AuthenticateToken(t.Context(), one.Token())
		if ok != row.want || err != nil {
			t.Errorf("%s: got %v, %v", row.name, ok, err)
		}
		if ok && (r.User.GetName() != "system:bootstrap:"+one.ID ||
			!slices.Equal(r.User.GetGroups(), []string{BootstrapGroup,
				NodeBootstrapGroup})) {
			t.Errorf("%s: got %+v", row.name, r.User)
		}
	}
	for _, bad := range []string{"", "abc", "abcdef.0123456789abcde", "ABCDEF.0123456789abcdef",
		"abcdef.0123456789abcdef\n", "../abc.0123456789abcdef"} {
		if _, _, ok := ParseBootstrapToken(bad); ok {
			t.Errorf("%q was parsed as a token", bad)
		}
	}
}

// lookupIn returns a lookup without a cache, whose results do not lag.
func lookupIn(t *testing.T, client *fake.Clientset) func(string) (*corev1.Secret, error) {
	return func(id string) (*corev1.Secret, error) {
		return client.CoreV1().Secrets(BootstrapNamespace).Get(t.Context(), BootstrapNamePrefix+id, metav1.GetOptions{})
	}
}

func TestUsedBootstrapTokenIsRetired(t *testing.T) {
	t.Parallel()
	one := BootstrapToken{ID: "abcdef", Secret: "0123456789abcdef", SingleUse: true}
	client := fake.NewClientset(one.ToSecret(), &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{Name: "r"}, Spec: certificatesv1.CertificateSigningRequestSpec{
			Username: "system:bootstrap:abcdef"},
		Status: certificatesv1.CertificateSigningRequestStatus{Certificate: []byte("x")},
	})
	now := time.Now()
	b := &BootstrapAuthenticator{Lookup: lookupIn(t, client), Secrets: client.CoreV1().Secrets(BootstrapNamespace),
		Now: func() time.Time { return now }}
	clean := func() {
		t.Helper()
		if err := (&BootstrapTokenCleaner{Tokens: b, Requests: client.CertificatesV1().CertificateSigningRequests(),
			Log: slog.New(slog.DiscardHandler)}).Clean(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	clean()
	if err := b.Claim(t.Context(), one.ID, "a", false); err != nil {
		t.Fatal(err)
	}
	clean()
	now = now.Add(fetchTime - time.Minute)
	if _, ok, _ := b.AuthenticateToken(t.Context(), one.Token()); !ok {
		t.Error("the token expired before the node could fetch its certificate")
	}
	clean()
	now = now.Add(2 * time.Minute)
	if _, ok, _ := b.AuthenticateToken(t.Context(), one.Token()); ok {
		t.Error("a used token is still valid")
	}
	clean()
	if left, err := b.Secrets.List(t.Context(), metav1.ListOptions{}); err != nil || len(left.Items) != 0 {
		t.Errorf("expired token not deleted: %v, %v", left, err)
	}
}
