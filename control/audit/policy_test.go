package audit

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/audit/policy"
	"k8s.io/apiserver/pkg/authorization/authorizer"
)

const policyHeader = "apiVersion: audit.k8s.io/v1\nkind: Policy\n"

func TestLoadPolicyErrorsNameField(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, text, want string }{
		{"empty file", "", "is empty"},
		{"other kind", "apiVersion: v1\nkind: Secret\n", "must be apiVersion: audit.k8s.io/v1, kind: Policy"},
		{"no rules", policyHeader, "rules: Required value"},
		{"unknown field", policyHeader + "rules: [{level: None, verb: [get]}]\n", "rules[0].verb"},
		{"wrong type", policyHeader + "rules: [{level: None}, {level: Metadata, verbs: get}]\n", "rules[1].verbs"},
		{"unknown level", policyHeader + "rules: [{level: All}]\n", `rules[0].level: Unsupported value: "All"`},
		{"unknown stage", policyHeader + "rules: [{level: None}]\nomitStages: [First]\n",
			`omitStages[0]: Invalid value: "First"`},
		{"resources and URLs", policyHeader +
			"rules: [{level: None, nonResourceURLs: [/healthz], resources: [{group: apps}]}]\n",
			"rules[0].nonResourceURLs"},
	} {
		path := filepath.Join(t.TempDir(), "policy.yaml")
		if err := os.WriteFile(path, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := LoadPolicy(path); err == nil || !strings.Contains(err.Error(), c.want) ||
			!strings.HasPrefix(err.Error(), path) {
			t.Errorf("%s: got %v, want %q", c.name, err, c.want)
		}
	}
}

func TestLoadPolicy(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "policy.yaml")
	text := policyHeader + "metadata: {name: small}\nomitManagedFields: true\nrules:\n" +
		"- {level: Request, users: [jane], resources: [{group: apps, resources: [deployments]}]}\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	p, err := LoadPolicy(path)
	if err != nil {
		t.Fatal(err)
	}
	if len(p.Rules) != 1 || p.Rules[0].Level != auditinternal.LevelRequest || p.Rules[0].Users[0] != "jane" ||
		p.Rules[0].Resources[0].Group != "apps" || !p.OmitManagedFields {
		t.Errorf("got %+v", p)
	}
}

// TestDefaultPolicy checks the level of some requests, and that no rule records bodies.
func TestDefaultPolicy(t *testing.T) {
	t.Parallel()
	evaluator := policy.NewPolicyRuleEvaluator(DefaultPolicy())
	for _, c := range []struct {
		verb, group, resource, subresource string
		want                               auditinternal.Level
	}{
		{"create", "", "secrets", "", auditinternal.LevelMetadata},
		{"get", "", "secrets", "", auditinternal.LevelNone},
		{"list", "", "pods", "", auditinternal.LevelNone},
		{"watch", "apps", "deployments", "", auditinternal.LevelNone},
		{"update", "apps", "deployments", "", auditinternal.LevelMetadata},
		{"patch", "", "pods", "status", auditinternal.LevelMetadata},
		{"delete", "example.com", "widgets", "", auditinternal.LevelMetadata},
		{"deletecollection", "", "configmaps", "", auditinternal.LevelMetadata},
		{"create", "", "serviceaccounts", "token", auditinternal.LevelMetadata},
		{"create", "authentication.k8s.io", "tokenreviews", "", auditinternal.LevelMetadata},
		{"create", "authorization.k8s.io", "subjectaccessreviews", "", auditinternal.LevelNone},
		{"create", "", "events", "", auditinternal.LevelNone},
		{"patch", "events.k8s.io", "events", "", auditinternal.LevelNone},
		{"update", "coordination.k8s.io", "leases", "", auditinternal.LevelNone},
		{"get", "", "pods", "exec", auditinternal.LevelMetadata},
		{"get", "", "pods", "log", auditinternal.LevelNone},
	} {
		got := evaluator.EvaluatePolicyRule(authorizer.AttributesRecord{
			Verb: c.verb, APIGroup: c.group, Resource: c.resource, Subresource: c.subresource, ResourceRequest: true,
		})
		if got.Level != c.want {
			t.Errorf("%s %s/%s of %q: got level %s, want %s", c.verb, c.resource, c.subresource, c.group, got.Level,
				c.want)
		}
	}
	url := evaluator.EvaluatePolicyRule(authorizer.AttributesRecord{Verb: "post", Path: "/healthz"})
	if url.Level != auditinternal.LevelNone {
		t.Errorf("path: got level %s", url.Level)
	}
	for i, rule := range DefaultPolicy().Rules {
		if rule.Level.GreaterOrEqual(auditinternal.LevelRequest) {
			t.Errorf("rule %d records bodies: %+v", i, rule)
		}
	}
}
