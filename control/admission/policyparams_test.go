package admission

import (
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
)

// TestPolicyParamsRequirePermission: ann may read ConfigMaps, bob may read one of them by its name.
func TestPolicyParamsRequirePermission(t *testing.T) {
	t.Parallel()
	read := func(names ...string) []rbacv1.PolicyRule {
		return []rbacv1.PolicyRule{{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{"configmaps"},
			ResourceNames: names}}
	}
	bind := func(name string) *rbacv1.ClusterRoleBinding {
		return &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: name},
			RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name},
			Subjects: []rbacv1.Subject{{Kind: "User", APIGroup: rbacv1.GroupName, Name: name}}}
	}
	c := newTestConfig(t,
		&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "ann"}, Rules: read()}, bind("ann"),
		&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "bob"}, Rules: read("limits")}, bind("bob"))
	mapper := meta.NewDefaultRESTMapper(nil)
	mapper.Add(corev1.SchemeGroupVersion.WithKind("ConfigMap"), meta.RESTScopeNamespace)
	c.Mapper = mapper
	policyOf := func(kind *admissionv1.ParamKind) *admissionv1.ValidatingAdmissionPolicy {
		return &admissionv1.ValidatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: "p"},
			Spec: admissionv1.ValidatingAdmissionPolicySpec{ParamKind: kind}}
	}
	configMaps, secrets := &admissionv1.ParamKind{APIVersion: "v1", Kind: "ConfigMap"},
		&admissionv1.ParamKind{APIVersion: "v1", Kind: "Secret"}
	if _, err := c.Client.AdmissionregistrationV1().ValidatingAdmissionPolicies().Create(t.Context(),
		policyOf(configMaps), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	binding := func(policy, param string) *admissionv1.ValidatingAdmissionPolicyBinding {
		return &admissionv1.ValidatingAdmissionPolicyBinding{Spec: admissionv1.ValidatingAdmissionPolicyBindingSpec{
			PolicyName: policy, ParamRef: &admissionv1.ParamRef{Name: param}}}
	}
	mutating := &admissionv1.MutatingAdmissionPolicy{
		Spec: admissionv1.MutatingAdmissionPolicySpec{ParamKind: configMaps}}
	plugin, ok := newTestPlugin(t, newPolicyParams, c).(admission.ValidationInterface)
	if !ok {
		t.Fatal("not a validating plugin")
	}
	for name, test := range map[string]struct {
		user     string
		obj, old runtime.Object
		allowed  bool
	}{
		"all objects of the kind":              {"ann", policyOf(configMaps), nil, true},
		"all objects for a mutating policy":    {"ann", mutating, nil, true},
		"another kind":                         {"ann", policyOf(secrets), nil, false},
		"one object is not all":                {"bob", policyOf(configMaps), nil, false},
		"one object, for a mutating policy":    {"bob", mutating, nil, false},
		"an unchanged kind":                    {"bob", policyOf(configMaps), policyOf(configMaps), true},
		"a changed kind":                       {"ann", policyOf(secrets), policyOf(configMaps), false},
		"no parameters":                        {"bob", policyOf(nil), nil, true},
		"a binding to the object":              {"bob", binding("p", "limits"), nil, true},
		"a binding to another object":          {"bob", binding("p", "others"), nil, false},
		"an unchanged binding":                 {"bob", binding("p", "others"), binding("p", "others"), true},
		"a binding to a policy without object": {"ann", binding("missing", "limits"), nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			operation := admission.Create
			if test.old != nil {
				operation = admission.Update
			}
			resource := admissionv1.SchemeGroupVersion.WithResource("validatingadmissionpolicies")
			err := plugin.Validate(t.Context(), admission.NewAttributesRecord(test.obj, test.old,
				admissionv1.SchemeGroupVersion.WithKind("ValidatingAdmissionPolicy"), "", "p", resource, "", operation,
				nil, false, &user.DefaultInfo{Name: test.user}), nil)
			if (err == nil) != test.allowed {
				t.Errorf("got error %v, want allowed %t", err, test.allowed)
			}
		})
	}
}
