package cis

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"

	"berth/control"
	"berth/control/pki"
	"berth/internal/cis"
)

// dataDir creates a data directory with the certificates and kubeconfigs of a server that is not running.
func dataDir(t *testing.T) control.Config {
	t.Helper()
	c := control.Default()
	c.DataDir = filepath.Join(t.TempDir(), "data")
	authority, err := pki.Open(filepath.Join(c.DataDir, "pki"), time.Now)
	if err != nil {
		t.Fatal(err)
	}
	for name, subject := range map[string]pki.Subject{"server": pki.ServerSubject([]string{"localhost"}, nil),
		"node-client": pki.KubeletClientSubject()} {
		if _, err := authority.Certificate(name, subject); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := authority.NodeServingAuthority(); err != nil {
		t.Fatal(err)
	}
	if _, _, err := authority.ServiceAccountKeys(); err != nil {
		t.Fatal(err)
	}
	for path, subject := range map[string]pki.Subject{c.AdminKubeconfig(): pki.AdminSubject(),
		c.SuperAdminKubeconfig(): pki.SuperAdminSubject()} {
		if err := authority.WriteKubeconfig(path, "https://127.0.0.1:1", subject); err != nil {
			t.Fatal(err)
		}
	}
	if err := pki.WriteEncryptionConfig(filepath.Join(c.DataDir, "pki", encryptionFile)); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(c.DataDir, "etcd"), 0o700); err != nil {
		t.Fatal(err)
	}
	return c
}

func verdicts(r cis.Report) map[string]cis.Finding {
	all := map[string]cis.Finding{}
	for _, one := range r.Results {
		all[one.ID] = one.Finding
	}
	return all
}

// TestReadDataDirectory checks real files without a running server, first as the server creates them and then with
// wrong modes.
func TestReadDataDirectory(t *testing.T) {
	t.Parallel()
	c := dataDir(t)
	file := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	read := func(now time.Time) map[string]cis.Finding {
		return verdicts(Check(Read(t.Context(), Options{Config: c, ConfigFile: file,
			Units: []string{"/nonexistent/unit"}, Kubeconfig: c.AdminKubeconfig(), Now: now})))
	}
	got := read(time.Now())
	for id, finding := range got {
		if finding.Verdict == cis.Fail {
			t.Errorf("%s: got %+v", id, finding)
		}
	}
	for _, id := range []string{"1.1.1", "1.1.11", "1.1.13", "1.1.20", "1.1.21", "1.2.4", "1.2.5", "1.2.22", "1.2.24",
		"1.2.25", "1.2.27", "1.2.28"} {
		if got[id].Verdict != cis.Pass {
			t.Errorf("%s: got %+v", id, got[id])
		}
	}
	for _, id := range []string{"1.2.1", "5.1.1"} {
		if got[id].Verdict != cis.NotChecked || !strings.Contains(got[id].Evidence, "connection refused") {
			t.Errorf("%s: got %+v, want the cause", id, got[id])
		}
	}
	if got["5.1.7"].Verdict != cis.Accepted || !strings.Contains(got["5.1.7"].Evidence, pki.AdminsGroup) {
		t.Errorf("got %+v", got["5.1.7"])
	}
	pkiFile := func(name string) string { return filepath.Join(c.DataDir, "pki", name) }
	for _, path := range []string{file, c.SuperAdminKubeconfig(), pkiFile("ca.key"), pkiFile("server.crt"),
		filepath.Join(c.DataDir, "etcd")} {
		if err := os.Chmod(path, 0o777); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Remove(pkiFile("service-account.key")); err != nil {
		t.Fatal(err)
	}
	got = read(time.Now().AddDate(2, 0, 0)) // after the end of certificates
	for id, want := range map[string]string{"1.1.1": file, "1.1.11": "etcd", "1.1.13": c.SuperAdminKubeconfig(),
		"1.1.20": "server.crt", "1.1.21": "ca.key", "1.2.22": "service-account.key", "1.2.24": "expired: server.crt",
		"2.1": "etcd"} {
		if got[id].Verdict != cis.Fail || !strings.Contains(got[id].Evidence, want) {
			t.Errorf("%s: got %+v, want a failure that names %s", id, got[id], want)
		}
	}
}

// TestReadSettings reads the files that the configuration names.
func TestReadSettings(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	const group = "apiVersion: apiserver.config.k8s.io/v1\n"
	c := control.Default()
	c.Audit.PolicyFile = write("policy", "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: Metadata}]\n")
	c.EncryptionConfig = write("encryption", group+"kind: EncryptionConfiguration\nresources:\n"+
		"- resources: [configmaps]\n  providers: [{identity: {}}]\n"+
		"- resources: ['*.*']\n  providers: [{aescbc: {keys: [{name: k, secret: c2VjcmV0}]}}, {identity: {}}]\n")
	c.Authentication.ConfigFile = write("authentication", group+"kind: AuthenticationConfiguration\n"+
		"anonymous: {enabled: true, conditions: [{path: /livez}]}\n"+
		"jwt:\n- issuer: {url: 'https://login.example.com', audiences: [a]}\n"+
		"  claimMappings: {username: {claim: sub, prefix: ''}}\n")
	c.AdmissionConfigFile = write("admission", group+"kind: AdmissionConfiguration\nplugins:\n- name: PodSecurity\n"+
		"  configuration:\n    apiVersion: pod-security.admission.config.k8s.io/v1\n"+
		"    kind: PodSecurityConfiguration\n    defaults: {enforce: baseline}\n"+
		"    exemptions: {namespaces: [build]}\n")
	f := &Facts{Config: c}
	f.readSettings()
	for _, err := range []error{f.PolicyErr, f.EncryptionErr, f.AuthenticationErr, f.AdmissionErr} {
		if err != nil {
			t.Error(err)
		}
	}
	if len(f.Policy.Rules) != 1 || f.encryptionFor() != "aescbc" || f.Issuers != 1 || !f.Anonymous.Enabled ||
		!slices.Equal(f.Anonymous.Paths, []string{"/livez"}) || f.PodSecurityLevel != baseline ||
		!slices.Equal(f.PodSecurityExempt, []string{"build"}) {
		t.Errorf("got %+v", f)
	}
	secret := write("bad", group+"kind: EncryptionConfiguration\nresources: [c2VjcmV0]\n")
	if _, err := readEncryption(secret); err == nil || strings.Contains(err.Error(), "c2VjcmV0") ||
		!strings.Contains(err.Error(), secret) {
		t.Errorf("got %v, want an error without the content of the file", err)
	}
}

// TestPodPolicies selects webhooks and enforced policies for pods.
func TestPodPolicies(t *testing.T) {
	t.Parallel()
	rule := func(resource string) admissionv1.RuleWithOperations {
		return admissionv1.RuleWithOperations{Rule: admissionv1.Rule{APIGroups: []string{""},
			Resources: []string{resource}}}
	}
	webhook := func(name, resource string) admissionv1.ValidatingWebhookConfiguration {
		return admissionv1.ValidatingWebhookConfiguration{ObjectMeta: meta("", name),
			Webhooks: []admissionv1.ValidatingWebhook{
				{Rules: []admissionv1.RuleWithOperations{rule(resource)}}}}
	}
	policy := func(name string) admissionv1.ValidatingAdmissionPolicy {
		p := admissionv1.ValidatingAdmissionPolicy{ObjectMeta: meta("", name)}
		p.Spec.MatchConstraints = &admissionv1.MatchResources{
			ResourceRules: []admissionv1.NamedRuleWithOperations{{RuleWithOperations: rule("pods")}}}
		return p
	}
	bind := func(name string, action admissionv1.ValidationAction) (
		b admissionv1.ValidatingAdmissionPolicyBinding) {
		b.Spec.PolicyName, b.Spec.ValidationActions = name, []admissionv1.ValidationAction{action}
		return b
	}
	got := podPolicies([]admissionv1.ValidatingWebhookConfiguration{webhook("a", "*"), webhook("b", "secrets")},
		[]admissionv1.ValidatingAdmissionPolicy{policy("c"), policy("d"), policy("e")},
		[]admissionv1.ValidatingAdmissionPolicyBinding{bind("c", admissionv1.Deny),
			bind("d", admissionv1.Warn)})
	want := []string{"ValidatingWebhookConfiguration a", "ValidatingAdmissionPolicy c"}
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
