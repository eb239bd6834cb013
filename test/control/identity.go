package control

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"maps"
	"net"
	"net/http"
	"path/filepath"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"google.golang.org/grpc"
	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	kmsapi "k8s.io/kms/apis/v2"
	kms "k8s.io/kms/pkg/service"
)

// oidcIssuer is an OpenID Connect issuer on a loopback address.
type oidcIssuer struct {
	*webhookServer
	key *ecdsa.PrivateKey
}

func startIssuer(t testing.TB) *oidcIssuer {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	i := &oidcIssuer{key: key}
	mux := http.NewServeMux()
	respond := func(path string, document func() any) {
		mux.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(document()) // the client may have disconnected
		})
	}
	public, err := key.PublicKey.Bytes() // 4, x, y
	if err != nil {
		t.Fatal(err)
	}
	number := func(b []byte) string { return base64.RawURLEncoding.EncodeToString(b) }
	respond("/keys", func() any {
		return map[string]any{"keys": []any{map[string]any{"kty": "EC", "crv": "P-256", "alg": "ES256", "use": "sig",
			"kid": "k", "x": number(public[1:33]), "y": number(public[33:])}}}
	})
	ready := make(chan struct{})
	respond("/.well-known/openid-configuration", func() any {
		<-ready
		return map[string]any{"issuer": i.url(), "jwks_uri": i.url() + "/keys",
			"id_token_signing_alg_values_supported": []string{"ES256"}}
	})
	i.webhookServer = startWebhook(t, mux)
	close(ready)
	return i
}

// token returns a token that is valid for an hour, with further claims.
func (i *oidcIssuer) token(t testing.TB, claims map[string]any) string {
	t.Helper()
	all := jwt.MapClaims{"iss": i.url(), "aud": "berth", "exp": time.Now().Add(time.Hour).Unix()}
	maps.Copy(all, claims)
	token := jwt.NewWithClaims(jwt.SigningMethodES256, all)
	token.Header["kid"] = "k"
	text, err := token.SignedString(i.key)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// startTokenWebhook starts a webhook that knows one token, and returns its kubeconfig.
func startTokenWebhook(t testing.TB, known, user string) (kubeconfig string) {
	t.Helper()
	server := startWebhook(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		review := &authenticationv1.TokenReview{}
		if err := json.NewDecoder(r.Body).Decode(review); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		if review.Spec.Token == known {
			review.Status = authenticationv1.TokenReviewStatus{Authenticated: true,
				User: authenticationv1.UserInfo{Username: user}}
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(review) // the client may have disconnected
	}))
	config := clientcmdapi.NewConfig()
	config.Clusters["webhook"] = &clientcmdapi.Cluster{Server: server.url() + "/review",
		CertificateAuthorityData: server.caBundle}
	config.Contexts["webhook"] = &clientcmdapi.Context{Cluster: "webhook"}
	config.CurrentContext = "webhook"
	kubeconfig = filepath.Join(t.TempDir(), "webhook.kubeconfig")
	if err := clientcmd.WriteToFile(*config, kubeconfig); err != nil {
		t.Fatal(err)
	}
	return kubeconfig
}

// kmsPlugin is a KMS v2 plugin. It inverts bytes.
type kmsPlugin struct{}

func inverted(b []byte) []byte {
	out := bytes.Clone(b)
	for i := range out {
		out[i] ^= 0xff
	}
	return out
}

// Decrypt returns the data of a ciphertext.
func (kmsPlugin) Decrypt(_ context.Context, _ string, r *kms.DecryptRequest) ([]byte, error) {
	if r.KeyID != "first" {
		return nil, errors.New("unknown key")
	}
	return inverted(r.Ciphertext), nil
}

// Encrypt returns a ciphertext.
func (kmsPlugin) Encrypt(_ context.Context, _ string, data []byte) (*kms.EncryptResponse, error) {
	return &kms.EncryptResponse{Ciphertext: inverted(data), KeyID: "first"}, nil
}

// Status reports the only key.
func (kmsPlugin) Status(context.Context) (*kms.StatusResponse, error) {
	return &kms.StatusResponse{Version: "v2", Healthz: "ok", KeyID: "first"}, nil
}

// startKMS starts a plugin and returns its endpoint.
func startKMS(t testing.TB) (endpoint string) {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "kms.sock")
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	kmsapi.RegisterKeyManagementServiceServer(server, kms.NewGRPCService(socket, 10*time.Second, kmsPlugin{}))
	done := make(chan error, 1)
	go func() { done <- server.Serve(listener) }()
	t.Cleanup(func() {
		server.Stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return "unix://" + socket
}
