package control

import (
	"bytes"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"

	"berth/control"
	"berth/control/tokens"
)

// auditEvents decodes the lines of a log file.
func auditEvents(t *testing.T, path string) (out []auditv1.Event) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for line := range bytes.Lines(text) {
		if !bytes.HasSuffix(line, []byte("\n")) {
			break // is being written
		}
		var e auditv1.Event
		if err := json.Unmarshal(line, &e); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		out = append(out, e)
	}
	return out
}

// eventsOf returns the events about a resource as "verb name level code".
func eventsOf(all []auditv1.Event, namespace, resource string) (out []string) {
	for _, e := range all {
		ref := e.ObjectRef
		if ref == nil || ref.Namespace != namespace {
			continue
		}
		name := ref.Resource
		if ref.Subresource != "" {
			name += "/" + ref.Subresource
		}
		if name == resource {
			out = append(out, fmt.Sprintf("%s %s %s %d", e.Verb, ref.Name, e.Level, e.ResponseStatus.Code))
		}
	}
	return out
}

// TestAuditDefaultPolicy writes and reads objects of several kinds. The log has the metadata of the writes and
// nothing of the contents of Secrets and tokens.
func TestAuditDefaultPolicy(t *testing.T) {
	t.Parallel()
	s := Start(t, withoutControllers)
	ctx, core := t.Context(), s.Client.CoreV1()
	const secretText = "vault-combination"
	namespace := metav1.NamespaceDefault
	if _, err := core.Secrets(namespace).Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "vault"},
		StringData: map[string]string{"key": secretText}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := core.Secrets(namespace).Get(ctx, "vault", metav1.GetOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := core.Secrets(namespace).List(ctx, metav1.ListOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Client.CoordinationV1().Leases(namespace).Create(ctx, &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: "l"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	account, err := core.ServiceAccounts(namespace).Create(ctx, &corev1.ServiceAccount{
		ObjectMeta: metav1.ObjectMeta{Name: "app"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	token, err := core.ServiceAccounts(namespace).CreateToken(ctx, "app", &authenticationv1.TokenRequest{},
		metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Client.AuthenticationV1().TokenReviews().Create(ctx, &authenticationv1.TokenReview{
		Spec: authenticationv1.TokenReviewSpec{Token: token.Status.Token}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	stale := s.staleToken(t, account)
	if _, err := s.clientWithToken(t, stale).CoreV1().ConfigMaps(namespace).Create(ctx, configMap("denied"),
		metav1.CreateOptions{}); err == nil {
		t.Error("an account without permissions created a ConfigMap")
	}
	if err := core.Secrets(namespace).Delete(ctx, "vault", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	s.Stop(t)

	path := filepath.Join(s.DataDir, "audit.log")
	if info, err := os.Stat(path); err != nil || info.Mode() != 0o600 {
		t.Errorf("log file: %v, %v", info, err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for name, secret := range map[string]string{
		"Secret": secretText, "token": token.Status.Token, "stale token": stale,
	} {
		if bytes.Contains(text, []byte(secret)) {
			t.Errorf("the log contains the %s", name)
		}
	}
	all := auditEvents(t, path)
	for _, c := range []struct {
		namespace, resource string
		want                []string
	}{
		{namespace, "secrets", []string{"create vault Metadata 201", "delete vault Metadata 200"}},
		{namespace, "leases", nil},
		{namespace, "events", nil},
		{namespace, "serviceaccounts/token", []string{"create app Metadata 201"}},
		{"", "tokenreviews", []string{"create  Metadata 201"}},
		{namespace, "configmaps", []string{"create  Metadata 403"}}, // rejected before its name is known
	} {
		got := eventsOf(all, c.namespace, c.resource)
		if c.resource == "configmaps" { // without those that the server creates
			got = slices.DeleteFunc(got, func(e string) bool { return !strings.Contains(e, "403") })
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: got events %q, want %q", c.resource, got, c.want)
		}
	}
	checkAuditMetadata(t, all)
}

// staleToken returns a valid token that its program should have reloaded an hour ago.
func (s *Server) staleToken(t *testing.T, account *corev1.ServiceAccount) string {
	t.Helper()
	key, _, err := s.Authority.ServiceAccountKeys()
	if err != nil {
		t.Fatal(err)
	}
	keys, err := tokens.NewKeyring(key)
	if err != nil {
		t.Fatal(err)
	}
	signer := &tokens.Signer{Issuer: s.ServiceAccountIssuer, Keys: keys,
		Now: func() time.Time { return time.Now().Add(-2 * time.Hour) }}
	token, _, _, err := signer.Issue(tokens.Spec{Account: account, Audiences: []string{s.ServiceAccountIssuer},
		TTL: 24 * time.Hour, WarnAfter: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// checkAuditMetadata checks that events have no bodies, name their users, and that a stale token is marked.
func checkAuditMetadata(t *testing.T, all []auditv1.Event) {
	t.Helper()
	for _, e := range all {
		if e.RequestObject != nil || e.ResponseObject != nil || e.Stage == auditv1.StageRequestReceived {
			t.Errorf("event with a body or of the first stage: %+v", e)
		}
		if e.ResponseStatus.Code != http.StatusForbidden {
			continue
		}
		if e.User.Username != "system:serviceaccount:default:app" ||
			e.Annotations["authorization.k8s.io/decision"] != "forbid" ||
			!strings.HasPrefix(e.Annotations["authentication.k8s.io/stale-token"],
				"subject: system:serviceaccount:default:app, seconds after warning threshold: 3") {
			t.Errorf("event of the stale token: user %q, annotations %v", e.User.Username, e.Annotations)
		}
	}
}

// auditReceiver is a webhook for audit events.
type auditReceiver struct {
	*httptest.Server

	mu     sync.Mutex
	events []auditv1.Event
}

func newAuditReceiver(t *testing.T) *auditReceiver {
	r := &auditReceiver{}
	r.Server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		var list auditv1.EventList
		if err := json.NewDecoder(request.Body).Decode(&list); err != nil {
			t.Errorf("request to the webhook: %v", err)
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		r.events = append(r.events, list.Items...)
	}))
	t.Cleanup(r.Close)
	return r
}

// kubeconfig writes a kubeconfig for the webhook.
func (r *auditReceiver) kubeconfig(t *testing.T) string {
	t.Helper()
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: r.Certificate().Raw})
	text, err := json.Marshal(map[string]any{
		"apiVersion": "v1", "kind": "Config", "current-context": "c",
		"clusters": []any{map[string]any{"name": "c", "cluster": map[string]any{
			"server": r.URL, "certificate-authority-data": ca}}},
		"users":    []any{map[string]any{"name": "u", "user": map[string]any{}}},
		"contexts": []any{map[string]any{"name": "c", "context": map[string]any{"cluster": "c", "user": "u"}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return writeFile(t, "webhook.kubeconfig", string(text))
}

func writeFile(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestAuditWebhook sends events to a webhook, with bodies by a policy. The shutdown sends the events that wait
// for a batch.
func TestAuditWebhook(t *testing.T) {
	t.Parallel()
	receiver := newAuditReceiver(t)
	policy := writeFile(t, "policy.yaml", `
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
omitManagedFields: true
rules:
- {level: Request, verbs: [create], namespaces: [default], resources: [{group: "", resources: [configmaps]}]}
- {level: Metadata, verbs: [get], resources: [{group: "", resources: [secrets]}]}
`)
	s := Start(t, withoutControllers, func(c *control.Config) {
		c.Audit.PolicyFile, c.Audit.Webhook.ConfigFile = policy, receiver.kubeconfig(t)
		c.Audit.Log.Path = ""
		c.Audit.Webhook.BatchMaxWait = time.Hour // only the shutdown sends them
	})
	createConfigMap(t, s, metav1.NamespaceDefault, configMap("first", "key", "value"))
	if _, err := s.Client.CoreV1().Secrets(metav1.NamespaceDefault).Get(t.Context(), "missing",
		metav1.GetOptions{}); err == nil {
		t.Error("got a Secret that does not exist")
	}
	createConfigMap(t, s, metav1.NamespaceSystem, configMap("other"))
	s.Stop(t)
	receiver.mu.Lock()
	defer receiver.mu.Unlock()
	var bodies []string
	for _, e := range receiver.events {
		if e.RequestObject != nil && e.ObjectRef.Name == "first" {
			bodies = append(bodies, string(e.RequestObject.Raw))
		}
		if e.ObjectRef == nil || e.ObjectRef.Name == "other" {
			t.Errorf("event that the policy does not select: %+v", e)
		}
	}
	if len(bodies) != 1 || !strings.Contains(bodies[0], `"data":{"key":"value"}`) {
		t.Errorf("got bodies %q", bodies)
	}
	if got := eventsOf(receiver.events, metav1.NamespaceDefault, "secrets"); !slices.Contains(got,
		"get missing Metadata 404") {
		t.Errorf("events of Secrets: %q", got)
	}
	if _, err := os.Stat(filepath.Join(s.DataDir, "audit.log")); !os.IsNotExist(err) {
		t.Errorf("log file: got %v, want none", err)
	}
}

// TestAuditLogIsBounded writes events of several times the size of all log files.
func TestAuditLogIsBounded(t *testing.T) {
	t.Parallel()
	policy := writeFile(t, "policy.yaml", `
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- {level: Request, resources: [{group: "", resources: [configmaps]}]}
`)
	s := Start(t, withoutControllers, func(c *control.Config) {
		c.Audit.PolicyFile = policy
		c.Audit.Log.Path, c.Audit.Log.MaxSize, c.Audit.Log.MaxBackups = "logs/audit.log", 1, 1
	})
	c := createConfigMap(t, s, metav1.NamespaceDefault, configMap("big"))
	for i := range 60 {
		c.Data = map[string]string{"text": strings.Repeat(fmt.Sprint(i%10), 80_000)}
		next, err := s.Client.CoreV1().ConfigMaps(metav1.NamespaceDefault).Update(t.Context(), c,
			metav1.UpdateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		c = next
	}
	s.Stop(t)
	dir := filepath.Join(s.DataDir, "logs")
	files, err := os.ReadDir(dir)
	if err != nil || len(files) != 2 {
		t.Fatalf("got files %v, %v, want two", files, err)
	}
	for _, f := range files {
		info, err := f.Info()
		if err != nil || info.Size() > 1<<20 || info.Size() < 80_000 {
			t.Errorf("%s has %d bytes, %v", f.Name(), info.Size(), err)
		}
		auditEvents(t, filepath.Join(dir, f.Name())) // no event is divided
	}
	last := eventsOf(auditEvents(t, filepath.Join(dir, "audit.log")), metav1.NamespaceDefault, "configmaps")
	if !slices.Contains(last, "update big Request 200") {
		t.Errorf("events in the current file: %q", last)
	}
}

// TestAuditBadPolicy starts a server with a policy that has an error.
func TestAuditBadPolicy(t *testing.T) {
	t.Parallel()
	policy := writeFile(t, "policy.yaml", "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules:\n- {level: Everything}\n")
	c := control.Default()
	c.DataDir, c.Listen, c.Audit.PolicyFile = t.TempDir(), "127.0.0.1:0", policy
	s, err := control.New(t.Context(), c)
	if err == nil {
		s.Close()
	}
	want := "audit-policy-file: " + policy + `: rules[0].level: Unsupported value: "Everything"`
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want %q", err, want)
	}
}
