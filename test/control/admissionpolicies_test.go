package control

import (
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	registrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	restclient "k8s.io/client-go/rest"
)

// forResource matches new objects of a resource in the namespace of a test.
func forResource(s *Server, group string, resources ...string) *registrationv1.MatchResources {
	out := &registrationv1.MatchResources{NamespaceSelector: inNamespace(s)}
	for _, r := range ruleFor(registrationv1.Create, group, resources...) {
		out.ResourceRules = append(out.ResourceRules, registrationv1.NamedRuleWithOperations{RuleWithOperations: r})
	}
	return out
}

// validatingPolicy creates a policy with a binding until the test ends. The policy and its binding have the name of
// the test's namespace.
func validatingPolicy(t *testing.T, s *Server, spec registrationv1.ValidatingAdmissionPolicySpec,
	binding registrationv1.ValidatingAdmissionPolicyBindingSpec) {
	t.Helper()
	client, meta := s.Client.AdmissionregistrationV1(), metav1.ObjectMeta{Name: s.Namespace}
	if _, err := client.ValidatingAdmissionPolicies().Create(t.Context(),
		&registrationv1.ValidatingAdmissionPolicy{ObjectMeta: meta, Spec: spec}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if binding.PolicyName = s.Namespace; len(binding.ValidationActions) == 0 {
		binding.ValidationActions = []registrationv1.ValidationAction{registrationv1.Deny}
	}
	if _, err := client.ValidatingAdmissionPolicyBindings().Create(t.Context(),
		&registrationv1.ValidatingAdmissionPolicyBinding{ObjectMeta: meta, Spec: binding},
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	deleteAfter(t, s.Namespace, client.ValidatingAdmissionPolicies().Delete)
	deleteAfter(t, s.Namespace, client.ValidatingAdmissionPolicyBindings().Delete)
}

// mutatingPolicy creates a policy with a binding until the test ends.
func mutatingPolicy(t *testing.T, s *Server, match *registrationv1.MatchResources,
	mutations ...registrationv1.Mutation) {
	t.Helper()
	client, meta := s.Client.AdmissionregistrationV1(), metav1.ObjectMeta{Name: s.Namespace}
	if _, err := client.MutatingAdmissionPolicies().Create(t.Context(), &registrationv1.MutatingAdmissionPolicy{
		ObjectMeta: meta, Spec: registrationv1.MutatingAdmissionPolicySpec{MatchConstraints: match,
			ReinvocationPolicy: registrationv1.NeverReinvocationPolicy, Mutations: mutations},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := client.MutatingAdmissionPolicyBindings().Create(t.Context(),
		&registrationv1.MutatingAdmissionPolicyBinding{ObjectMeta: meta,
			Spec: registrationv1.MutatingAdmissionPolicyBindingSpec{PolicyName: s.Namespace}},
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	deleteAfter(t, s.Namespace, client.MutatingAdmissionPolicies().Delete)
	deleteAfter(t, s.Namespace, client.MutatingAdmissionPolicyBindings().Delete)
}

// checked are ConfigMaps that the policies of the tests check. Others hold parameters.
var checked = []registrationv1.MatchCondition{
	{Name: "checked", Expression: "object.metadata.name.startsWith('checked')"}}

// TestAdmissionPolicies checks validating and mutating policies. Each case has a namespace of its own.
func TestAdmissionPolicies(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]func(*testing.T, *Server){
		"parameters of a ConfigMap":       testPolicyConfigMap,
		"parameters of a custom resource": testPolicyCustomResource,
		"missing parameters":              testPolicyWithoutParameters,
		"warnings":                        testPolicyWarns,
		"selector of the binding":         testPolicyBindingSelector,
		"mutations":                       testMutatingPolicy,
		"mutations of a custom resource":  testMutatingPolicyCustomResource,
		"type checking":                   testPolicyTypeChecking,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, Shared(t))
		})
	}
}

func testPolicyConfigMap(t *testing.T, s *Server) {
	configs := s.Client.CoreV1().ConfigMaps(s.Namespace)
	limits := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "limits"}, Data: map[string]string{"max": "0"}}
	if _, err := configs.Create(t.Context(), limits, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	validatingPolicy(t, s, registrationv1.ValidatingAdmissionPolicySpec{
		ParamKind:        &registrationv1.ParamKind{APIVersion: "v1", Kind: "ConfigMap"},
		MatchConstraints: forResource(s, "", "configmaps"), MatchConditions: checked,
		Variables: []registrationv1.Variable{{Name: "max", Expression: "int(params.data.max)"}},
		Validations: []registrationv1.Validation{{Expression: "size(object.data) <= variables.max",
			MessageExpression: "'at most ' + string(variables.max)"}},
	}, registrationv1.ValidatingAdmissionPolicyBindingSpec{ParamRef: &registrationv1.ParamRef{
		Name: "limits", ParameterNotFoundAction: new(registrationv1.DenyAction)}})
	requireDenied(t, s, "checked", "at most 0")
	limits.Data["max"] = "1"
	if _, err := configs.Update(t.Context(), limits, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the new parameter", func() (bool, string) {
		_, err := createConfig(t, s, "checked", nil, metav1.DryRunAll)
		return err == nil, fmt.Sprint(err)
	})
}

func testPolicyCustomResource(t *testing.T, s *Server) {
	group := s.Namespace + ".example.com"
	defineGadgets(t, s, group, gadgetDefinition)
	s.Apply(t, gadget(group, "none", "{replicas: 0}"))
	validatingPolicy(t, s, registrationv1.ValidatingAdmissionPolicySpec{
		ParamKind:        &registrationv1.ParamKind{APIVersion: group + "/v1", Kind: "Gadget"},
		MatchConstraints: forResource(s, "", "configmaps"), MatchConditions: checked,
		Validations: []registrationv1.Validation{{Expression: "size(object.data) <= params.spec.replicas",
			Message: "more than the gadget allows"}},
	}, registrationv1.ValidatingAdmissionPolicyBindingSpec{ParamRef: &registrationv1.ParamRef{
		Selector: &metav1.LabelSelector{}, ParameterNotFoundAction: new(registrationv1.DenyAction)}})
	requireDenied(t, s, "checked", "more than the gadget allows")
	s.Apply(t, gadget(group, "none", "{replicas: 1}"))
	eventually(t, "the new parameter", func() (bool, string) {
		_, err := createConfig(t, s, "checked", nil, metav1.DryRunAll)
		return err == nil, fmt.Sprint(err)
	})
	s.Kubectl(t, "delete", "crd", "gadgets."+group)
}

// testPolicyWithoutParameters: a policy without parameters denies by its binding or allows everything.
func testPolicyWithoutParameters(t *testing.T, _ *Server) {
	for action, want := range map[registrationv1.ParameterNotFoundActionType]string{
		registrationv1.DenyAction: "no params found", registrationv1.AllowAction: "",
	} {
		t.Run(string(action), func(t *testing.T) {
			t.Parallel()
			s := Shared(t)
			validatingPolicy(t, s, registrationv1.ValidatingAdmissionPolicySpec{
				ParamKind:        &registrationv1.ParamKind{APIVersion: "v1", Kind: "Secret"},
				MatchConstraints: forResource(s, "", "configmaps"),
				Validations: []registrationv1.Validation{{Message: "by the secret",
					Expression: "params == null ? true : string(params.data.allow) == 'eWVz'"}},
			}, registrationv1.ValidatingAdmissionPolicyBindingSpec{ParamRef: &registrationv1.ParamRef{
				Name: "missing", Namespace: s.Namespace, ParameterNotFoundAction: &action}})
			if want != "" {
				requireDenied(t, s, "checked", want)
				return
			}
			// The policy is effective when an object that its parameter forbids is denied.
			secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "missing"},
				Data: map[string][]byte{"allow": []byte("no")}}
			secrets := s.Client.CoreV1().Secrets(s.Namespace)
			if _, err := secrets.Create(t.Context(), secret, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			requireDenied(t, s, "checked", "by the secret")
			if err := secrets.Delete(t.Context(), "missing", metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			eventually(t, "the missing parameter", func() (bool, string) {
				_, err := createConfig(t, s, "checked", nil, metav1.DryRunAll)
				return err == nil, fmt.Sprint(err)
			})
		})
	}
}

// warnings collects the warnings of a client.
type warnings struct {
	mu   sync.Mutex
	list []string
}

// HandleWarningHeader adds a warning.
func (w *warnings) HandleWarningHeader(_ int, _, text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.list = append(w.list, text)
}

func (w *warnings) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return strings.Join(w.list, "\n")
}

// testPolicyWarns: a failure becomes a warning and an annotation in the audit log.
func testPolicyWarns(t *testing.T, s *Server) {
	got := &warnings{}
	config := restclient.CopyConfig(s.Config)
	config.WarningHandler = got
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	validatingPolicy(t, s, registrationv1.ValidatingAdmissionPolicySpec{
		MatchConstraints: forResource(s, "", "configmaps"),
		Validations:      []registrationv1.Validation{{Expression: "false", Message: "not good"}},
	}, registrationv1.ValidatingAdmissionPolicyBindingSpec{ValidationActions: []registrationv1.ValidationAction{
		registrationv1.Warn, registrationv1.Audit}})
	want := fmt.Sprintf("Validation failed for ValidatingAdmissionPolicy '%[1]s' with binding '%[1]s': not good",
		s.Namespace)
	eventually(t, "the warning", func() (bool, string) {
		_, err := client.CoreV1().ConfigMaps(s.Namespace).Create(t.Context(),
			&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "c-"}}, metav1.CreateOptions{})
		return err == nil && strings.Contains(got.String(), want), fmt.Sprint(got, err)
	})
	eventually(t, "the failure in the audit log", func() (bool, string) {
		var found string
		for _, e := range auditEvents(t, filepath.Join(s.DataDir, "audit.log")) {
			if e.ObjectRef != nil && e.ObjectRef.Namespace == s.Namespace {
				found += e.Annotations["validation.policy.admission.k8s.io/validation_failure"]
			}
		}
		return strings.Contains(found, `"message":"not good"`) && strings.Contains(found, s.Namespace), found
	})
}

// testPolicyBindingSelector: a binding limits a policy to some objects.
func testPolicyBindingSelector(t *testing.T, s *Server) {
	validatingPolicy(t, s, registrationv1.ValidatingAdmissionPolicySpec{
		MatchConstraints: forResource(s, "", "configmaps"),
		Validations:      []registrationv1.Validation{{Expression: "false", Message: "no"}},
	}, registrationv1.ValidatingAdmissionPolicyBindingSpec{MatchResources: &registrationv1.MatchResources{
		ObjectSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"selected": "true"}}}})
	eventually(t, "the denial", func() (bool, string) {
		_, err := createConfig(t, s, "selected", map[string]string{"selected": "true"}, metav1.DryRunAll)
		return err != nil, fmt.Sprint(err)
	})
	if _, err := createConfig(t, s, "other", nil); err != nil {
		t.Errorf("object that the binding does not select: %v", err)
	}
}

var (
	applyLabel = registrationv1.Mutation{PatchType: registrationv1.PatchTypeApplyConfiguration,
		ApplyConfiguration: &registrationv1.ApplyConfiguration{
			Expression: "Object{metadata: Object.metadata{labels: {'applied': request.operation}}}"}}
	patchLabel = registrationv1.Mutation{PatchType: registrationv1.PatchTypeJSONPatch,
		JSONPatch: &registrationv1.JSONPatch{
			Expression: "[JSONPatch{op: 'add', path: '/metadata/labels/patched', " +
				"value: object.metadata.labels.applied}]"}}
)

// testMutatingPolicy: the second mutation sees the result of the first one.
func testMutatingPolicy(t *testing.T, s *Server) {
	mutatingPolicy(t, s, forResource(s, "", "configmaps"), applyLabel, patchLabel)
	eventually(t, "the mutations", func() (bool, string) {
		got, err := createConfig(t, s, "a", map[string]string{"own": "1"}, metav1.DryRunAll)
		return err == nil && got.Labels["patched"] == "CREATE", fmt.Sprint(got, err)
	})
	got, err := createConfig(t, s, "a", map[string]string{"own": "1"})
	if err != nil || got.Labels["applied"] != "CREATE" || got.Labels["patched"] != "CREATE" ||
		got.Labels["own"] != "1" || got.Data["a"] != "b" {
		t.Errorf("got %+v, error %v", got, err)
	}
}

func testMutatingPolicyCustomResource(t *testing.T, s *Server) {
	group := s.Namespace + ".example.com"
	defineGadgets(t, s, group, gadgetDefinition)
	mutatingPolicy(t, s, forResource(s, group, "gadgets"), registrationv1.Mutation{
		PatchType: registrationv1.PatchTypeApplyConfiguration, ApplyConfiguration: &registrationv1.ApplyConfiguration{
			Expression: "Object{spec: Object.spec{size: 'small'}}"}})
	eventually(t, "the mutation", func() (bool, string) {
		out, err := s.TryKubectl(t, gadget(group, "one", "{replicas: 2}"), "create", "--dry-run=server", "-f", "-",
			"-o", "jsonpath={.spec}")
		return err == nil && out == `{"replicas":2,"size":"small"}`, out
	})
	s.Kubectl(t, "delete", "crd", "gadgets."+group)
}

// testPolicyTypeChecking checks the status of policies for a built-in kind and for a custom resource.
func testPolicyTypeChecking(t *testing.T, s *Server) {
	group := s.Namespace + ".example.com"
	defineGadgets(t, s, group, gadgetDefinition)
	policies := s.Client.AdmissionregistrationV1().ValidatingAdmissionPolicies()
	match := forResource(s, "apps", "deployments")
	match.ResourceRules = append(match.ResourceRules, forResource(s, group, "gadgets").ResourceRules...)
	policy := &registrationv1.ValidatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: s.Namespace},
		Spec: registrationv1.ValidatingAdmissionPolicySpec{MatchConstraints: match,
			Validations: []registrationv1.Validation{
				{Expression: "object.spec.replicas > 1"}, {Expression: "object.spec.parts.size() > 1"},
				{Expression: "object.spec.bogus == 1"}}}}
	policy, err := policies.Create(t.Context(), policy, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	deleteAfter(t, s.Namespace, policies.Delete)
	warningsOf := func(generation int64) (got []string) {
		t.Helper()
		eventually(t, fmt.Sprintf("the status of generation %d", generation), func() (bool, string) {
			policy, err = policies.Get(t.Context(), s.Namespace, metav1.GetOptions{})
			return err == nil && policy.Status.ObservedGeneration == generation, fmt.Sprint(policy, err)
		})
		if policy.Status.TypeChecking == nil {
			return nil
		}
		for _, w := range policy.Status.TypeChecking.ExpressionWarnings {
			got = append(got, w.FieldRef+" "+w.Warning)
		}
		return got
	}
	got := warningsOf(1)
	if len(got) != 2 || !strings.HasPrefix(got[0], "spec.validations[1].expression apps/v1, Kind=Deployment") ||
		!strings.Contains(got[0], "undefined field 'parts'") || strings.Contains(got[0], "Kind=Gadget") ||
		!strings.Contains(got[1], "Kind=Deployment") || !strings.Contains(got[1], "Kind=Gadget") {
		t.Errorf("got warnings %q", got)
	}
	policy.Spec.Validations = policy.Spec.Validations[:1]
	if _, err := policies.Update(t.Context(), policy, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if got := warningsOf(2); len(got) != 0 {
		t.Errorf("got warnings %q, want none", got)
	}
	s.Kubectl(t, "delete", "crd", "gadgets."+group)
}
