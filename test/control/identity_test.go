package control

import (
	"crypto/x509"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	encryptioncontroller "k8s.io/apiserver/pkg/server/options/encryptionconfig/controller"
	"k8s.io/client-go/kubernetes"
	restclient "k8s.io/client-go/rest"

	"berth/control"
	"berth/control/pki"
)

func init() {
	encryptioncontroller.EncryptionConfigFileChangePollDuration = 100 * time.Millisecond
}

// whoami returns the user name and the groups of a client.
func whoami(t *testing.T, c kubernetes.Interface) (name string, groups []string, err error) {
	t.Helper()
	r, err := c.AuthenticationV1().SelfSubjectReviews().Create(t.Context(), &authenticationv1.SelfSubjectReview{},
		metav1.CreateOptions{})
	if err != nil {
		return "", nil, err
	}
	return r.Status.UserInfo.Username, r.Status.UserInfo.Groups, nil
}

func writeText(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

const authenticationHead = "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\n"

// issuerConfiguration returns an element of jwt.
func issuerConfiguration(i *oidcIssuer, more string) string {
	ca := strings.ReplaceAll(strings.TrimSpace(string(i.caBundle)), "\n", "\n      ")
	return fmt.Sprintf("- issuer:\n    url: %s\n    audiences: [berth]\n    certificateAuthority: |\n      %s\n%s",
		i.url(), ca, more)
}

const admissionConfiguration = `apiVersion: apiserver.config.k8s.io/v1
kind: AdmissionConfiguration
plugins:
- name: PodSecurity
  configuration:
    apiVersion: pod-security.admission.config.k8s.io/v1
    kind: PodSecurityConfiguration
    defaults: {enforce: baseline}
    exemptions: {namespaces: [exempt]}
- name: EventRateLimit
  configuration:
    apiVersion: eventratelimit.admission.k8s.io/v1alpha1
    kind: Configuration
    limits: [{type: Namespace, qps: 1, burst: 5}]
`

func encryptionConfiguration(providers string) string {
	return "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\n" +
		"resources:\n- resources: [secrets]\n  providers:\n" + providers
}

// TestIdentityAndAdmissionFromFiles configures a server with all files that select identities, admission and
// encryption, and changes those that the server reads again.
func TestIdentityAndAdmissionFromFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	authentication := filepath.Join(dir, "authentication.yaml")
	encryptionFile := filepath.Join(dir, "encryption.yaml")
	admissionFile := filepath.Join(dir, "admission.yaml")
	proxyCA := filepath.Join(dir, "proxy-ca.crt")
	one, two := startIssuer(t), startIssuer(t)
	oneConfiguration := issuerConfiguration(one, `  claimValidationRules:
  - {expression: "claims.hd == 'corp'", message: wrong domain}
  claimMappings:
    username: {expression: "'corp:' + claims.sub"}
    groups: {expression: claims.roles}
  userValidationRules:
  - {expression: "!user.username.startsWith('corp:root')", message: reserved}
`)
	twoConfiguration := issuerConfiguration(two, `  claimMappings:
    username: {claim: sub, prefix: "two:"}
`)
	writeText(t, authentication, authenticationHead+"anonymous: {enabled: true, conditions: [{path: /readyz}]}\njwt:\n"+
		oneConfiguration+twoConfiguration)
	kmsProvider := fmt.Sprintf("  - kms: {apiVersion: v2, name: plugin, endpoint: %q, timeout: 10s}\n", startKMS(t))
	writeText(t, encryptionFile, encryptionConfiguration(kmsProvider))
	writeText(t, admissionFile, admissionConfiguration)
	proxies, err := pki.Open(filepath.Join(dir, "proxy-pki"), time.Now)
	if err != nil {
		t.Fatal(err)
	}
	writeText(t, proxyCA, string(proxies.PEM()))
	s := Start(t, withoutControllers, func(c *control.Config) {
		c.Authentication.ConfigFile = authentication
		c.Authentication.Webhook.ConfigFile = startTokenWebhook(t, "secret-of-hanna", "hanna")
		c.Authentication.RequestHeader.ClientCAFile = proxyCA
		c.Authentication.RequestHeader.AllowedNames = []string{"front-proxy"}
		c.Authentication.RequestHeader.UsernameHeaders = []string{"X-Remote-User"}
		c.Authentication.RequestHeader.GroupHeaders = []string{"X-Remote-Group"}
		c.ServiceAccountJWKSURI = "https://keys.example.com/jwks"
		c.EncryptionConfig, c.EncryptionConfigReload = encryptionFile, true
		c.AdmissionConfigFile = admissionFile
		c.EnabledAdmissionPlugins = []string{"AlwaysPullImages", "EventRateLimit"}
		c.DisabledAdmissionPlugins = []string{"RoleEscalation"} // ignored
	})
	f := &identityFixture{s: s, one: one, two: two, proxies: proxies}
	f.issuers(t)
	f.webhookAndProxy(t)
	f.admission(t)
	f.encryption(t, encryptionFile, kmsProvider)

	if code := s.rawStatusCode(t, "/version"); code != http.StatusUnauthorized {
		t.Errorf("anonymous request without a condition: got status %d", code)
	}
	if code := s.rawStatusCode(t, "/readyz"); code == http.StatusUnauthorized {
		t.Errorf("anonymous request with a condition: got status %d", code)
	}
	if got := f.get(t, "/.well-known/openid-configuration"); !strings.Contains(got,
		`"jwks_uri":"https://keys.example.com/jwks"`) {
		t.Errorf("got configuration of the issuer %s", got)
	}
	f.reload(t, authentication, oneConfiguration)
}

type identityFixture struct {
	s        *Server
	one, two *oidcIssuer
	proxies  *pki.Authority
}

// get returns the response to the administrator.
func (f *identityFixture) get(t *testing.T, path string) string {
	t.Helper()
	text, err := f.s.Client.CoreV1().RESTClient().Get().AbsPath(path).Do(t.Context()).Raw()
	if err != nil {
		t.Errorf("get %s: %v", path, err)
	}
	return string(text)
}

// issuers sends tokens of both issuers.
func (f *identityFixture) issuers(t *testing.T) {
	t.Helper()
	valid := map[string]any{"sub": "ann", "hd": "corp", "roles": []string{"dev"}}
	eventually(t, "the first issuer", func() (bool, string) {
		name, groups, err := whoami(t, f.s.clientWithToken(t, f.one.token(t, valid)))
		return name == "corp:ann" && slices.Contains(groups, "dev"), fmt.Sprint(name, groups, err)
	})
	eventually(t, "the second issuer", func() (bool, string) {
		name, _, err := whoami(t, f.s.clientWithToken(t, f.two.token(t, map[string]any{"sub": "bob"})))
		return name == "two:bob", fmt.Sprint(name, err)
	})
	for what, token := range map[string]string{
		"claim":    f.one.token(t, map[string]any{"sub": "ann", "hd": "other", "roles": []string{}}),
		"user":     f.one.token(t, map[string]any{"sub": "root", "hd": "corp", "roles": []string{}}),
		"audience": f.two.token(t, map[string]any{"sub": "bob", "aud": "other"}),
		"key": (&oidcIssuer{f.two.webhookServer, f.one.key}).token(t,
			map[string]any{"sub": "bob"}),
	} {
		if name, _, err := whoami(t, f.s.clientWithToken(t, token)); !apierrors.IsUnauthorized(err) {
			t.Errorf("token with an invalid %s: got %q, %v", what, name, err)
		}
	}
}

// headers adds headers to each request.
type headers struct {
	next http.RoundTripper
	add  map[string]string
}

func (h headers) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	for name, value := range h.add {
		r.Header.Set(name, value)
	}
	return h.next.RoundTrip(r)
}

// webhookAndProxy sends a token of the webhook, and requests through a front proxy.
func (f *identityFixture) webhookAndProxy(t *testing.T) {
	t.Helper()
	if name, _, err := whoami(t, f.s.clientWithToken(t, "secret-of-hanna")); name != "hanna" {
		t.Errorf("token of the webhook: got %q, %v", name, err)
	}
	if name, _, err := whoami(t, f.s.clientWithToken(t, "other")); !apierrors.IsUnauthorized(err) {
		t.Errorf("token that the webhook does not know: got %q, %v", name, err)
	}
	review, err := f.s.Client.AuthenticationV1().TokenReviews().Create(t.Context(), &authenticationv1.TokenReview{
		Spec: authenticationv1.TokenReviewSpec{Token: "secret-of-hanna"}}, metav1.CreateOptions{})
	if err != nil || review.Status.User.Username != "hanna" {
		t.Errorf("review of a token of the webhook: got %+v, %v", review, err)
	}
	through := func(cn string, add map[string]string) (string, []string, error) {
		cert, key, err := f.proxies.Issue(pki.Subject{Name: cn, Duration: time.Hour,
			ExtKeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
		if err != nil {
			t.Fatal(err)
		}
		return whoami(t, f.s.clientWith(t, func(c *restclient.Config) {
			c.CertData, c.KeyData = cert, key
			c.Wrap(func(next http.RoundTripper) http.RoundTripper { return headers{next, add} })
		}))
	}
	jane := map[string]string{"X-Remote-User": "jane", "X-Remote-Group": "red"}
	if name, groups, err := through("front-proxy", jane); name != "jane" || !slices.Contains(groups, "red") {
		t.Errorf("front proxy: got %q, %q, %v", name, groups, err)
	}
	if name, _, err := through("other", jane); !apierrors.IsUnauthorized(err) {
		t.Errorf("proxy with another name: got %q, %v", name, err)
	}
	if name, _, err := through("front-proxy", nil); !apierrors.IsUnauthorized(err) {
		t.Errorf("proxy without a user: got %q, %v", name, err)
	}
}

// admission creates objects that the plugins change or reject.
func (f *identityFixture) admission(t *testing.T) {
	t.Helper()
	for _, name := range []string{"plain", "exempt"} {
		f.createNamespace(t, name)
	}
	create := func(namespace string, hostNetwork bool) (*corev1.Pod, error) {
		return f.s.Client.CoreV1().Pods(namespace).Create(t.Context(), &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{GenerateName: "p-"},
			Spec: corev1.PodSpec{HostNetwork: hostNetwork, Containers: []corev1.Container{{Name: "c",
				Image: "example.com/a:1", ImagePullPolicy: corev1.PullIfNotPresent}}}}, metav1.CreateOptions{})
	}
	if pod, err := create("plain", false); err != nil ||
		pod.Spec.Containers[0].ImagePullPolicy != corev1.PullAlways {
		t.Errorf("pod with a pull policy: got %+v, %v", pod, err)
	}
	if _, err := create("plain", true); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "baseline") {
		t.Errorf("pod above the default level: got %v", err)
	}
	if _, err := create("exempt", true); err != nil {
		t.Errorf("pod in an exempt namespace: %v", err)
	}
	var limited atomic.Int32
	var senders sync.WaitGroup
	for range 40 { // at once: one more per second is accepted
		senders.Go(func() {
			_, err := f.s.Client.CoreV1().Events("plain").Create(t.Context(), &corev1.Event{
				ObjectMeta:     metav1.ObjectMeta{GenerateName: "e-"},
				InvolvedObject: corev1.ObjectReference{Namespace: "plain"}}, metav1.CreateOptions{})
			if apierrors.IsTooManyRequests(err) && strings.Contains(err.Error(), "limit reached on type Namespace") {
				limited.Add(1)
			} else if err != nil {
				t.Errorf("event: %v", err)
			}
		})
	}
	senders.Wait()
	if limited.Load() == 0 {
		t.Error("no event was rejected")
	}
	if _, err := f.s.Client.RbacV1().Roles("plain").Create(t.Context(), &rbacv1.Role{
		ObjectMeta: metav1.ObjectMeta{Name: "binder"},
		Rules: []rbacv1.PolicyRule{{Verbs: []string{"create"}, APIGroups: []string{rbacv1.GroupName},
			Resources: []string{"rolebindings"}}}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	bind := func(c kubernetes.Interface, kind, role, user string) error {
		_, err := c.RbacV1().RoleBindings("plain").Create(t.Context(), &rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{GenerateName: "b-"},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: kind, Name: role},
			Subjects:   []rbacv1.Subject{{Kind: "User", APIGroup: rbacv1.GroupName, Name: user}},
		}, metav1.CreateOptions{})
		return err
	}
	if err := bind(f.s.Client, "Role", "binder", "hanna"); err != nil {
		t.Fatal(err)
	}
	hanna := f.s.clientWithToken(t, "secret-of-hanna")
	eventually(t, "the role of hanna", func() (bool, string) {
		err := bind(hanna, "Role", "binder", "carl")
		return err == nil, fmt.Sprint(err)
	})
	if err := bind(hanna, "ClusterRole", "cluster-admin", "carl"); !apierrors.IsForbidden(err) {
		t.Errorf("escalation with a disabled RoleEscalation: got %v", err)
	}
}

func (f *identityFixture) createNamespace(t *testing.T, name string) {
	t.Helper()
	if _, err := f.s.Client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{
		ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the service account of "+name, func() (bool, string) {
		_, err := f.s.Client.CoreV1().ServiceAccounts(name).Get(t.Context(), "default", metav1.GetOptions{})
		return err == nil, fmt.Sprint(err)
	})
}

// encryption stores secrets with the KMS plugin and, after a change of the file, with a key.
func (f *identityFixture) encryption(t *testing.T, path, kmsProvider string) {
	t.Helper()
	create := func(name string) string {
		_, err := f.s.Client.CoreV1().Secrets("plain").Create(t.Context(), &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: name}, StringData: map[string]string{"a": "b"}}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return f.s.storedValue(t, "/registry/secrets/plain/"+name)
	}
	if value := create("of-kms"); !strings.HasPrefix(value, "k8s:enc:kms:v2:plugin:") {
		t.Errorf("got stored value %.40q", value)
	}
	if got := f.get(t, "/readyz/kms-providers"); got != "ok" {
		t.Errorf("health of the KMS plugin: got %q", got)
	}
	writeText(t, path, encryptionConfiguration("  - secretbox: {keys: ["+encryptionKey("one")+"]}\n"+kmsProvider))
	n := 0
	eventually(t, "the changed EncryptionConfiguration", func() (bool, string) {
		n++
		value := create(fmt.Sprintf("of-key-%d", n))
		return strings.HasPrefix(value, "k8s:enc:secretbox:v1:one:"), fmt.Sprintf("%.40q", value)
	})
	if s, err := f.s.Client.CoreV1().Secrets("plain").Get(t.Context(), "of-kms", metav1.GetOptions{}); err != nil ||
		string(s.Data["a"]) != "b" {
		t.Errorf("secret of the KMS plugin: got %v, %v", s, err)
	}
}

// reload writes a file with an error, and one without the second issuer and without anonymous requests.
func (f *identityFixture) reload(t *testing.T, path, first string) {
	t.Helper()
	writeText(t, path, authenticationHead+"jwt: [{}]\n")
	eventually(t, "the metric of a failed reload", func() (bool, string) {
		text := f.get(t, "/metrics")
		return strings.Contains(text, "apiserver_authentication_config_controller_automatic_reloads_total{") &&
			strings.Contains(text, `status="failure"`), "no metric"
	})
	second := f.s.clientWithToken(t, f.two.token(t, map[string]any{"sub": "bob"}))
	if name, _, err := whoami(t, second); name != "two:bob" {
		t.Errorf("after a file with an error: got %q, %v", name, err)
	}
	writeText(t, path, authenticationHead+"anonymous: {enabled: false}\njwt:\n"+first)
	eventually(t, "the removal of an issuer", func() (bool, string) {
		_, _, err := whoami(t, second)
		return apierrors.IsUnauthorized(err), fmt.Sprint(err)
	})
	if code := f.s.rawStatusCode(t, "/readyz"); code != http.StatusUnauthorized {
		t.Errorf("disabled anonymous request: got status %d", code)
	}
}
