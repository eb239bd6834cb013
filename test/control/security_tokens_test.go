package control

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"berth/control/authz"
	"berth/control/tokens"
)

// statusCode returns the status code of a request that every authenticated user may make.
func statusCode(t *testing.T, client kubernetes.Interface) int {
	t.Helper()
	code := 0
	err := client.CoreV1().RESTClient().Get().AbsPath("/api").Do(t.Context()).StatusCode(&code).Error()
	if code == 0 {
		t.Logf("no response: %v", err)
	}
	return code
}

// TestInvalidTokensAreRejected uses expired, modified and foreign service account tokens, and tokens of
// deleted pods and service accounts.
func TestInvalidTokensAreRejected(t *testing.T) {
	t.Parallel()
	s := newTwoNodeCluster(t)
	ctx := t.Context()
	good := s.podToken(t, "on-x", 3600)
	if code := statusCode(t, s.clientWithToken(t, good)); code != http.StatusOK {
		t.Fatalf("valid token: got status %d, want 200", code)
	}
	who, err := s.clientWithToken(t, good).AuthenticationV1().SelfSubjectReviews().Create(ctx,
		&authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil || who.Status.UserInfo.Username != "system:serviceaccount:shop:app" ||
		who.Status.UserInfo.Extra["authentication.kubernetes.io/node-name"][0] != "x" {
		t.Errorf("valid token: got user %+v, %v", who, err)
	}
	parts := strings.Split(good, ".")
	claims, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		t.Fatal(err)
	}
	b64 := base64.RawURLEncoding.EncodeToString
	master := b64([]byte(strings.ReplaceAll(string(claims), "shop", "kube-system")))
	none := b64([]byte(`{"alg":"none","typ":"JWT"}`))
	account, err := s.Client.CoreV1().ServiceAccounts("shop").Get(ctx, "app", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	signed := func(ring *tokens.Keyring, issuer string, now time.Time) string {
		signer := &tokens.Signer{Issuer: issuer, Keys: ring, Now: func() time.Time { return now }}
		out, _, _, err := signer.Issue(tokens.Spec{Account: account, Audiences: []string{s.ServiceAccountIssuer},
			TTL: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	current, _, err := s.Authority.ServiceAccountKeys()
	if err != nil {
		t.Fatal(err)
	}
	serverKeys, err := tokens.NewKeyring(current)
	if err != nil {
		t.Fatal(err)
	}
	otherKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	otherKeys, err := tokens.NewKeyring(otherKey)
	if err != nil {
		t.Fatal(err)
	}
	if code := statusCode(t, s.clientWithToken(t, signed(serverKeys, s.ServiceAccountIssuer,
		time.Now()))); code != http.StatusOK {
		t.Fatalf("token of the server's key: got status %d, want 200", code)
	}
	changedSignature := []byte(parts[2])
	changedSignature[5] ^= 1
	for _, row := range []struct{ what, token string }{
		{"expired", signed(serverKeys, s.ServiceAccountIssuer, time.Now().Add(-2*time.Hour))},
		{"not yet valid", signed(serverKeys, s.ServiceAccountIssuer, time.Now().Add(time.Hour))},
		{"of another issuer", signed(serverKeys, "https://elsewhere.example", time.Now())},
		{"of an unknown key", signed(otherKeys, s.ServiceAccountIssuer, time.Now())},
		{"with changed claims", parts[0] + "." + master + "." + parts[2]},
		{"with a changed signature", parts[0] + "." + parts[1] + "." + string(changedSignature)},
		{"without a signature", parts[0] + "." + parts[1] + "."},
		{"with algorithm none", none + "." + parts[1] + "."},
		{"with algorithm none and changed claims", none + "." + master + "."},
		{"for another audience", s.podToken(t, "on-x", 3600, "vault")},
		{"truncated", good[:len(good)/2]},
		{"repeated", good + good},
	} {
		if code := statusCode(t, s.clientWithToken(t, row.token)); code != http.StatusUnauthorized {
			t.Errorf("token %s: got status %d, want 401", row.what, code)
		}
	}
	if code := statusCode(t, s.clientWithToken(t, " ")); code != http.StatusForbidden {
		t.Errorf("empty token: got status %d, want 403 as for a request without credentials", code)
	}
	if r, err := s.Client.AuthenticationV1().TokenReviews().Create(t.Context(), &authenticationv1.TokenReview{
		Spec: authenticationv1.TokenReviewSpec{Token: " x"}}, metav1.CreateOptions{}); err != nil ||
		r.Status.Authenticated {
		t.Errorf("review of a token with a space: got %+v, %v", r, err)
	}
	review := func(audiences ...string) *authenticationv1.TokenReview {
		r, err := s.Client.AuthenticationV1().TokenReviews().Create(ctx, &authenticationv1.TokenReview{
			Spec: authenticationv1.TokenReviewSpec{Token: s.podToken(t, "on-x", 3600, "vault"), Audiences: audiences}},
			metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	if r := review(); r.Status.Authenticated {
		t.Errorf("review without audiences: got status %+v, want unauthenticated", r.Status)
	}
	if r := review("vault", "bank"); !r.Status.Authenticated || len(r.Status.Audiences) != 1 ||
		r.Status.Audiences[0] != "vault" {
		t.Errorf("review with the token's audience: got status %+v", r.Status)
	}

	// A token is invalid after deletion of its pod.
	if err := s.Client.CoreV1().Pods("shop").Delete(ctx, "on-x", *metav1.NewDeleteOptions(0)); err != nil {
		t.Fatal(err)
	}
	waitForResult(t, "status for a token of a deleted pod", func() string {
		return fmt.Sprint(statusCode(t, s.clientWithToken(t,
			good)))
	}, "401")
	// A token is invalid after its service account is recreated with the same name.
	old := signed(serverKeys, s.ServiceAccountIssuer, time.Now())
	if err := s.Client.CoreV1().ServiceAccounts("shop").Delete(ctx, "app", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Client.CoreV1().ServiceAccounts("shop").Create(ctx, &corev1.ServiceAccount{
		ObjectMeta: metav1.ObjectMeta{Name: "app"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	waitForResult(t, "status for a token of the previous service account", func() string {
		return fmt.Sprint(statusCode(t,
			s.clientWithToken(t, old)))
	},
		"401")
}

// TestServiceAccountTokenSecret checks that the token in a secret is valid while the service account
// exists, and that the secret is deleted with it.
func TestServiceAccountTokenSecret(t *testing.T) {
	t.Parallel()
	s := Shared(t)
	s.Apply(t, `{apiVersion: v1, kind: ServiceAccount, metadata: {name: robot}}
---
{apiVersion: v1, kind: Secret, metadata: {name: for-robot, annotations: {kubernetes.io/service-account.name: robot}},
  type: kubernetes.io/service-account-token}`)
	var data map[string][]byte
	eventually(t, "a token in the secret", func() (bool, string) {
		secret, err := s.Client.CoreV1().Secrets(s.Namespace).Get(t.Context(), "for-robot", metav1.GetOptions{})
		if err != nil {
			return false, err.Error()
		}
		data = secret.Data
		return len(data["token"]) > 0, fmt.Sprint(secret.Annotations)
	})
	if string(data["namespace"]) != s.Namespace || string(data["ca.crt"]) != string(s.Authority.PEM()) {
		t.Errorf("got namespace %q and a CA bundle of %d bytes", data["namespace"], len(data["ca.crt"]))
	}
	client := s.clientWithToken(t, string(data["token"]))
	who, err := client.AuthenticationV1().SelfSubjectReviews().Create(t.Context(),
		&authenticationv1.SelfSubjectReview{},
		metav1.CreateOptions{})
	if err != nil || who.Status.UserInfo.Username != "system:serviceaccount:"+s.Namespace+":robot" {
		t.Fatalf("got user %+v, %v", who, err)
	}
	s.Kubectl(t, "delete", "serviceaccount", "robot")
	waitForDeletion(t, s, "secret", "for-robot", "-n", s.Namespace)
	waitForResult(t, "status for a token of a deleted service account", func() string {
		return fmt.Sprint(statusCode(t, client))
	}, "401")
}

// TestBootstrapTokenSingleUse joins twice with a single-use token, and once with expired, wrong and
// unsuitable tokens.
func TestBootstrapTokenSingleUse(t *testing.T) {
	t.Parallel()
	s := Shared(t)
	ctx := t.Context()
	store := func(change func(*tokens.BootstrapToken)) tokens.BootstrapToken {
		b, err := tokens.NewBootstrapToken()
		if err != nil {
			t.Fatal(err)
		}
		b.Expires, b.Groups = time.Now().Add(time.Hour), []string{authz.NodeBootstrapGroup}
		if change != nil {
			change(&b)
		}
		if _, err := s.Client.CoreV1().Secrets("kube-system").Create(ctx, b.ToSecret(),
			metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		if change == nil || b.SingleUse {
			s.WaitForBootstrapToken(t, b.Token())
		}
		return b
	}
	request := func(token string, key *ecdsa.PrivateKey, node string) error {
		_, err := s.clientWithToken(t, token).CertificatesV1().CertificateSigningRequests().Create(ctx,
			requestOf(t, key, certificatesv1.KubeAPIServerClientKubeletSignerName, "system:node:"+node, "system:nodes"),
			metav1.CreateOptions{})
		return err
	}
	one, two := newKey(t), newKey(t)
	once := store(func(b *tokens.BootstrapToken) { b.SingleUse = true })
	waitForResult(t, "request of the first node", func() string {
		return fmt.Sprint(request(once.Token(), one, "a"))
	}, "<nil>")
	if err := request(once.Token(), one, "a"); err != nil {
		t.Errorf("repeated request of the same node: %v", err)
	}
	for what, err := range map[string]error{
		"another node":               request(once.Token(), two, "b"),
		"another key with this name": request(once.Token(), two, "a"),
		"another name for this key":  request(once.Token(), one, "b"),
	} {
		if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "has already been used") {
			t.Errorf("second use of a token by %s: got %v, want Forbidden", what, err)
		}
	}
	// One of ten concurrent joins with a single-use token succeeds.
	race := store(func(b *tokens.BootstrapToken) { b.SingleUse = true })
	var joined atomic.Int32
	var all sync.WaitGroup
	for i := range 10 {
		all.Go(func() {
			if err := request(race.Token(), newKey(t), fmt.Sprintf("concurrent-%d", i)); err == nil {
				joined.Add(1)
			} else if !apierrors.IsForbidden(err) {
				t.Errorf("concurrent request %d: got %v, want Forbidden", i, err)
			}
		})
	}
	all.Wait()
	if joined.Load() != 1 {
		t.Errorf("got %d of ten joins with a single-use token, want 1", joined.Load())
	}
	many := store(nil)
	for node, key := range map[string]*ecdsa.PrivateKey{"c": one, "d": two} {
		if err := request(many.Token(), key, node); err != nil {
			t.Errorf("reusable token, %s: %v", node, err)
		}
	}
	if _, err := s.clientWithToken(t, many.Token()).CoreV1().Secrets("kube-system").List(ctx,
		metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("list of secrets with a bootstrap token: got %v, want Forbidden", err)
	}
	// The tokens below are never valid. The server knows them before a later one.
	expired := store(func(b *tokens.BootstrapToken) { b.Expires = time.Now().Add(-time.Minute) })
	groups := store(func(b *tokens.BootstrapToken) { b.Groups = []string{"system:masters"} })
	store(nil)
	for what, token := range map[string]string{
		"expired": expired.Token(), "with a wrong secret": many.ID + ".0123456789abcdef",
		"unknown": "zzzzzz.0123456789abcdef", "with group system:masters": groups.Token(),
	} {
		if code := statusCode(t, s.clientWithToken(t, token)); code != http.StatusUnauthorized {
			t.Errorf("bootstrap token %s: got status %d, want 401", what, code)
		}
	}
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}
