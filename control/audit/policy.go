package audit

import (
	"fmt"
	"os"

	"k8s.io/apimachinery/pkg/util/validation/field"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/apiserver/pkg/apis/audit/validation"

	"berth/internal/strictyaml"
)

// policyKind is the kind of a policy file.
const policyKind = "Policy"

// LoadPolicy reads a policy file. The error names the line or the field.
func LoadPolicy(path string) (*auditinternal.Policy, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	policy, err := parsePolicy(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return policy, nil
}

func parsePolicy(text []byte) (*auditinternal.Policy, error) {
	documents, err := strictyaml.Parse(text, strictyaml.Limits{Documents: 1})
	if err != nil {
		return nil, err
	}
	if len(documents) == 0 {
		return nil, fmt.Errorf("is empty")
	}
	want := auditv1.SchemeGroupVersion.String()
	if version, kind := documents[0].Kind(); version != want || kind != policyKind {
		return nil, fmt.Errorf("must be apiVersion: %s, kind: %s", want, policyKind)
	}
	var versioned auditv1.Policy
	if _, err := documents[0].Decode(&versioned); err != nil {
		return nil, err
	}
	policy := &auditinternal.Policy{}
	if err := auditv1.Convert_v1_Policy_To_audit_Policy(&versioned, policy, nil); err != nil {
		return nil, err
	}
	if len(policy.Rules) == 0 {
		return nil, field.Required(field.NewPath("rules"), "a policy without rules records nothing")
	}
	return policy, validation.ValidatePolicy(policy).ToAggregate()
}

// DefaultPolicy returns the policy that applies without a policy file. It records the metadata of writes
// and of requests into pods and nodes, and no bodies, so that the log contains no Secrets and tokens. It
// does not record events, leases and access reviews, which are frequent and change nothing.
func DefaultPolicy() *auditinternal.Policy {
	return &auditinternal.Policy{
		OmitStages: []auditinternal.Stage{auditinternal.StageRequestReceived},
		Rules: []auditinternal.PolicyRule{
			{
				Level: auditinternal.LevelNone,
				Resources: []auditinternal.GroupResources{
					{Group: "", Resources: []string{"events"}},
					{Group: "events.k8s.io"},
					{Group: "coordination.k8s.io", Resources: []string{"leases"}},
					{Group: "authorization.k8s.io"},
				},
			},
			{
				// Over WebSocket these are requests with the verb get.
				Level: auditinternal.LevelMetadata,
				Resources: []auditinternal.GroupResources{{Group: "", Resources: []string{
					"pods/exec", "pods/attach", "pods/portforward", "pods/proxy", "services/proxy", "nodes/proxy",
				}}},
			},
			{
				Level:     auditinternal.LevelMetadata,
				Verbs:     []string{"create", "update", "patch", "delete", "deletecollection"},
				Resources: []auditinternal.GroupResources{{Group: "*"}},
			},
		},
	}
}
