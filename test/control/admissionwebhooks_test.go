package control

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	registrationv1 "k8s.io/api/admissionregistration/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// reviewer is an admission webhook. It returns a JSON patch, or a message that denies the request.
type reviewer func(r *admissionv1.AdmissionRequest) (patch, denied string)

func (f reviewer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	review := admissionv1.AdmissionReview{}
	if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	patch, denied := f(review.Request)
	response := &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: denied == ""}
	if denied != "" {
		response.Result = &metav1.Status{Message: denied}
	}
	if patch != "" {
		response.Patch, response.PatchType = []byte(patch), new(admissionv1.PatchTypeJSONPatch)
	}
	review.Request, review.Response = nil, response
	_ = json.NewEncoder(w).Encode(review) // a failure is one of the connection
}

// inNamespace selects the namespace of a test.
func inNamespace(s *Server) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: s.Namespace}}
}

// ruleFor is a rule for resources of a group.
func ruleFor(operation registrationv1.OperationType, group string,
	resources ...string) []registrationv1.RuleWithOperations {
	return []registrationv1.RuleWithOperations{{
		Operations: []registrationv1.OperationType{operation},
		Rule:       registrationv1.Rule{APIGroups: []string{group}, APIVersions: []string{"v1"}, Resources: resources},
	}}
}

// deleteAfter deletes an object after the test.
func deleteAfter(t *testing.T, name string, remove func(context.Context, string, metav1.DeleteOptions) error) {
	t.Cleanup(func() {
		if err := remove(context.WithoutCancel(t.Context()), name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
}

// validating registers a webhook for the namespace of a test until the test ends.
func validating(t *testing.T, s *Server, w registrationv1.ValidatingWebhook) {
	t.Helper()
	w.Name, w.NamespaceSelector = "webhook.example.com", inNamespace(s)
	w.SideEffects, w.AdmissionReviewVersions = new(registrationv1.SideEffectClassNoneOnDryRun), []string{"v1"}
	all := s.Client.AdmissionregistrationV1().ValidatingWebhookConfigurations()
	_, err := all.Create(t.Context(), &registrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: s.Namespace}, Webhooks: []registrationv1.ValidatingWebhook{w},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	deleteAfter(t, s.Namespace, all.Delete)
}

// mutating registers webhooks for the namespace of a test until the test ends.
func mutating(t *testing.T, s *Server, list ...registrationv1.MutatingWebhook) {
	t.Helper()
	for i := range list {
		list[i].Name, list[i].NamespaceSelector = fmt.Sprintf("webhook-%d.example.com", i), inNamespace(s)
		list[i].SideEffects = new(registrationv1.SideEffectClassNone)
		list[i].AdmissionReviewVersions = []string{"v1"}
	}
	all := s.Client.AdmissionregistrationV1().MutatingWebhookConfigurations()
	_, err := all.Create(t.Context(), &registrationv1.MutatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: s.Namespace}, Webhooks: list}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	deleteAfter(t, s.Namespace, all.Delete)
}

// client returns how the server reaches a webhook by its URL.
func (w *webhookServer) client() registrationv1.WebhookClientConfig {
	return registrationv1.WebhookClientConfig{URL: new(w.url()), CABundle: w.caBundle}
}

// createConfig creates a ConfigMap and returns it as stored.
func createConfig(t *testing.T, s *Server, name string, labels map[string]string, dryRun ...string) (*corev1.ConfigMap,
	error) {
	t.Helper()
	return s.Client.CoreV1().ConfigMaps(s.Namespace).Create(t.Context(),
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}, Data: map[string]string{"a": "b"}},
		metav1.CreateOptions{DryRun: dryRun})
}

// requireDenied waits until a dry run of a ConfigMap is denied with a message.
func requireDenied(t *testing.T, s *Server, name, message string) {
	t.Helper()
	eventually(t, "the denial of "+name, func() (bool, string) {
		_, err := createConfig(t, s, name, nil, metav1.DryRunAll)
		return err != nil && strings.Contains(err.Error(), message), fmt.Sprint(err)
	})
}

const addLabel = `[{"op":"add","path":"/metadata/labels","value":{"mutated":"yes"}}]`

// TestAdmissionWebhooks checks the webhooks of a server. Each case has a namespace of its own, to which its webhooks
// are limited.
func TestAdmissionWebhooks(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]func(*testing.T, *Server){
		"URL":                testWebhookDeniesAndMutates,
		"Service":            testWebhookOfService,
		"match conditions":   testWebhookMatchConditions,
		"object selector":    testWebhookObjectSelector,
		"reinvocation":       testWebhookReinvocation,
		"failure policy":     testWebhookFailurePolicy,
		"dry run":            testWebhookDryRun,
		"delete":             testWebhookDelete,
		"connect":            testWebhookConnect,
		"custom resources":   testWebhookCustomResource,
		"equivalent version": testWebhookEquivalentVersion,
		"exempt resources":   testWebhookExemptResources,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, Shared(t))
		})
	}
}

func testWebhookDeniesAndMutates(t *testing.T, s *Server) {
	mutator := startWebhook(t, reviewer(func(*admissionv1.AdmissionRequest) (string, string) { return addLabel, "" }))
	mutating(t, s, registrationv1.MutatingWebhook{ClientConfig: mutator.client(),
		Rules: ruleFor(registrationv1.Create, "", "configmaps")})
	// The validating webhook sees the change of the mutating one.
	validator := startWebhook(t, reviewer(func(r *admissionv1.AdmissionRequest) (string, string) {
		if r.Name == "denied" && strings.Contains(string(r.Object.Raw), `"mutated":"yes"`) {
			return "", "not this one"
		}
		return "", ""
	}))
	validating(t, s, registrationv1.ValidatingWebhook{ClientConfig: validator.client(),
		Rules: ruleFor(registrationv1.OperationAll, "", "configmaps")})
	requireDenied(t, s, "denied", `admission webhook "webhook.example.com" denied the request: not this one`)
	stored, err := createConfig(t, s, "allowed", nil)
	if err != nil || stored.Labels["mutated"] != "yes" || stored.Data["a"] != "b" || stored.Kind != "" {
		t.Errorf("got %+v, error %v; want the label and the data", stored, err)
	}
}

func testWebhookOfService(t *testing.T, s *Server) {
	hook := startWebhook(t, reviewer(func(*admissionv1.AdmissionRequest) (string, string) {
		return "", "by the service"
	}), "hook."+s.Namespace+".svc")
	hook.asService(t, s, "hook")
	validating(t, s, registrationv1.ValidatingWebhook{
		ClientConfig: registrationv1.WebhookClientConfig{CABundle: hook.caBundle,
			Service: &registrationv1.ServiceReference{Namespace: s.Namespace, Name: "hook"}},
		Rules: ruleFor(registrationv1.Create, "", "configmaps"),
	})
	requireDenied(t, s, "denied", "by the service")
}

func testWebhookMatchConditions(t *testing.T, s *Server) {
	hook := startWebhook(t, reviewer(func(*admissionv1.AdmissionRequest) (string, string) { return "", "no" }))
	validating(t, s, registrationv1.ValidatingWebhook{ClientConfig: hook.client(),
		Rules: ruleFor(registrationv1.Create, "", "configmaps"),
		MatchConditions: []registrationv1.MatchCondition{
			{Name: "name", Expression: "object.metadata.name.startsWith('matched')"},
			{Name: "permission", Expression: "authorizer.group('').resource('secrets').check('get').allowed()"},
		}})
	requireDenied(t, s, "matched", "no")
	if _, err := createConfig(t, s, "other", nil); err != nil {
		t.Errorf("object that does not match the conditions: %v", err)
	}
}

func testWebhookObjectSelector(t *testing.T, s *Server) {
	hook := startWebhook(t, reviewer(func(*admissionv1.AdmissionRequest) (string, string) { return "", "no" }))
	validating(t, s, registrationv1.ValidatingWebhook{ClientConfig: hook.client(),
		Rules:          ruleFor(registrationv1.Create, "", "configmaps"),
		ObjectSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"selected": "true"}}})
	eventually(t, "the denial", func() (bool, string) {
		_, err := createConfig(t, s, "selected", map[string]string{"selected": "true"}, metav1.DryRunAll)
		return err != nil, fmt.Sprint(err)
	})
	if _, err := createConfig(t, s, "other", nil); err != nil {
		t.Errorf("object that is not selected: %v", err)
	}
	elsewhere := Shared(t)
	if _, err := createConfig(t, elsewhere, "selected", map[string]string{"selected": "true"}); err != nil {
		t.Errorf("object in another namespace: %v", err)
	}
}

// testWebhookReinvocation: the first webhook records what it sees, and the second one adds a label.
func testWebhookReinvocation(t *testing.T, s *Server) {
	observer := startWebhook(t, reviewer(func(r *admissionv1.AdmissionRequest) (string, string) {
		return fmt.Sprintf(`[{"op":"add","path":"/metadata/annotations","value":{"seen":"%t"}}]`,
			strings.Contains(string(r.Object.Raw), `"mutated":"yes"`)), ""
	}))
	mutator := startWebhook(t, reviewer(func(*admissionv1.AdmissionRequest) (string, string) { return addLabel, "" }))
	for policy, want := range map[registrationv1.ReinvocationPolicyType]string{
		registrationv1.IfNeededReinvocationPolicy: "true", registrationv1.NeverReinvocationPolicy: "false",
	} {
		t.Run(string(policy), func(t *testing.T) {
			s := Shared(t)
			rules := ruleFor(registrationv1.Create, "", "configmaps")
			mutating(t, s,
				registrationv1.MutatingWebhook{ClientConfig: observer.client(), Rules: rules,
					ReinvocationPolicy: &policy},
				registrationv1.MutatingWebhook{ClientConfig: mutator.client(), Rules: rules})
			eventually(t, "both webhooks", func() (bool, string) {
				got, err := createConfig(t, s, "a", nil, metav1.DryRunAll)
				return err == nil && got.Labels["mutated"] == "yes" && got.Annotations["seen"] == want,
					fmt.Sprint(got, err)
			})
		})
	}
}

// testWebhookFailurePolicy uses a webhook that does not answer within its timeout.
func testWebhookFailurePolicy(t *testing.T, _ *Server) {
	hook := startWebhook(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_ = json.NewDecoder(r.Body).Decode(&struct{}{}) // a closed connection is noticed after the body
		<-r.Context().Done()
	}))
	for policy, want := range map[registrationv1.FailurePolicyType]string{
		registrationv1.Fail: "failed calling webhook", registrationv1.Ignore: "",
	} {
		t.Run(string(policy), func(t *testing.T) {
			t.Parallel()
			s := Shared(t)
			denier := startWebhook(t, reviewer(func(*admissionv1.AdmissionRequest) (string, string) {
				return "", "no"
			}))
			mutating(t, s, registrationv1.MutatingWebhook{ClientConfig: hook.client(), FailurePolicy: &policy,
				TimeoutSeconds: new(int32(1)), Rules: ruleFor(registrationv1.Create, "", "secrets")})
			// This one shows that the configurations are effective.
			validating(t, s, registrationv1.ValidatingWebhook{ClientConfig: denier.client(),
				Rules: ruleFor(registrationv1.Create, "", "configmaps")})
			requireDenied(t, s, "marker", "no")
			eventually(t, "the failure policy", func() (bool, string) {
				_, err := s.Client.CoreV1().Secrets(s.Namespace).Create(t.Context(),
					&corev1.Secret{ObjectMeta: metav1.ObjectMeta{GenerateName: "s-"}}, metav1.CreateOptions{})
				if want == "" {
					return err == nil, fmt.Sprint(err)
				}
				return err != nil && strings.Contains(err.Error(), want), fmt.Sprint(err)
			})
		})
	}
}

func testWebhookDryRun(t *testing.T, s *Server) {
	hook := startWebhook(t, reviewer(func(r *admissionv1.AdmissionRequest) (string, string) {
		return "", fmt.Sprintf("dry run %t", *r.DryRun)
	}))
	validating(t, s, registrationv1.ValidatingWebhook{ClientConfig: hook.client(),
		Rules: ruleFor(registrationv1.Create, "", "configmaps")})
	requireDenied(t, s, "a", "dry run true")
	if _, err := createConfig(t, s, "a", nil); err == nil || !strings.Contains(err.Error(), "dry run false") {
		t.Errorf("got error %v, want dry run false", err)
	}
	_, err := s.Client.AdmissionregistrationV1().ValidatingWebhookConfigurations().Create(t.Context(),
		&registrationv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "effects-" + s.Namespace},
			Webhooks: []registrationv1.ValidatingWebhook{{Name: "a.example.com", ClientConfig: hook.client(),
				SideEffects: new(registrationv1.SideEffectClassSome), AdmissionReviewVersions: []string{"v1"}}},
		}, metav1.CreateOptions{})
	if err == nil || !strings.Contains(err.Error(), `webhooks[0].sideEffects: Unsupported value: "Some"`) {
		t.Errorf("webhook with side effects: got error %v", err)
	}
}

func testWebhookDelete(t *testing.T, s *Server) {
	hook := startWebhook(t, reviewer(func(r *admissionv1.AdmissionRequest) (string, string) {
		if strings.Contains(string(r.OldObject.Raw), `"protected":"true"`) {
			return "", "protected"
		}
		return "", ""
	}))
	configs := s.Client.CoreV1().ConfigMaps(s.Namespace)
	for name, protected := range map[string]string{"kept": "true", "deleted": "false"} {
		if _, err := createConfig(t, s, name, map[string]string{"protected": protected}); err != nil {
			t.Fatal(err)
		}
	}
	validating(t, s, registrationv1.ValidatingWebhook{ClientConfig: hook.client(),
		Rules: ruleFor(registrationv1.Delete, "", "configmaps")})
	eventually(t, "the denial", func() (bool, string) {
		err := configs.Delete(t.Context(), "kept", metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}})
		return err != nil && strings.Contains(err.Error(), "protected"), fmt.Sprint(err)
	})
	if err := configs.Delete(t.Context(), "deleted", metav1.DeleteOptions{}); err != nil {
		t.Error(err)
	}
	if err := configs.Delete(t.Context(), "kept", metav1.DeleteOptions{}); err == nil {
		t.Error("deleted in spite of the webhook")
	}
}

func testWebhookConnect(t *testing.T, s *Server) {
	var kinds sync.Map
	hook := startWebhook(t, reviewer(func(r *admissionv1.AdmissionRequest) (string, string) {
		kinds.Store(string(r.Operation)+" "+r.SubResource, r.RequestKind.Kind)
		return "", "no connection"
	}))
	validating(t, s, registrationv1.ValidatingWebhook{ClientConfig: hook.client(),
		Rules: ruleFor(registrationv1.Connect, "", "pods/proxy", "pods/exec")})
	for _, subresource := range []string{"proxy", "exec"} {
		eventually(t, "the denial of "+subresource, func() (bool, string) {
			err := s.Client.CoreV1().RESTClient().Post().Namespace(s.Namespace).Resource("pods").Name("web").
				SubResource(subresource).Param("command", "ls").Do(t.Context()).Error()
			return err != nil && strings.Contains(err.Error(), "no connection"), fmt.Sprint(err)
		})
	}
	if kind, _ := kinds.Load("CONNECT exec"); kind != "PodExecOptions" {
		t.Errorf("got kind %v for exec, want PodExecOptions", kind)
	}
}

func testWebhookCustomResource(t *testing.T, s *Server) {
	group := s.Namespace + ".example.com"
	defineGadgets(t, s, group, gadgetDefinition)
	mutator := startWebhook(t, reviewer(func(*admissionv1.AdmissionRequest) (string, string) {
		return `[{"op":"add","path":"/spec/size","value":"small"}]`, ""
	}))
	validator := startWebhook(t, reviewer(func(r *admissionv1.AdmissionRequest) (string, string) {
		if r.Name == "denied" {
			return "", "no gadget"
		}
		return "", ""
	}))
	mutating(t, s, registrationv1.MutatingWebhook{ClientConfig: mutator.client(),
		Rules: ruleFor(registrationv1.Create, group, "gadgets")})
	validating(t, s, registrationv1.ValidatingWebhook{ClientConfig: validator.client(),
		Rules: ruleFor(registrationv1.Create, group, "gadgets")})
	eventually(t, "the denial", func() (bool, string) {
		out, err := s.TryKubectl(t, gadget(group, "denied", "{}"), "create", "--dry-run=server", "-f", "-")
		return err != nil && strings.Contains(out, "no gadget"), out
	})
	s.Apply(t, gadget(group, "one", "{size: large}"))
	if size := s.Kubectl(t, "get", "gadgets."+group, "one", "-o", "jsonpath={.spec.size}"); size != "small" {
		t.Errorf("got size %q, want small", size)
	}
	s.Kubectl(t, "delete", "crd", "gadgets."+group)
}

// testWebhookEquivalentVersion: a webhook for autoscaling/v1 gets an object of autoscaling/v2 in its version.
func testWebhookEquivalentVersion(t *testing.T, s *Server) {
	hook := startWebhook(t, reviewer(func(r *admissionv1.AdmissionRequest) (string, string) {
		return "", r.Kind.Version + " for " + r.RequestKind.Version
	}))
	validating(t, s, registrationv1.ValidatingWebhook{ClientConfig: hook.client(),
		Rules: ruleFor(registrationv1.Create, "autoscaling", "horizontalpodautoscalers")})
	eventually(t, "the denial", func() (bool, string) {
		out, err := s.TryKubectl(t, `apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: web}
spec: {maxReplicas: 2, scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: web}}
`, "create", "--dry-run=server", "-f", "-")
		return err != nil && strings.Contains(out, "v1 for v2"), out
	})
}

// testWebhookExemptResources: a webhook that always fails does not intercept its own configuration, nor reviews.
func testWebhookExemptResources(t *testing.T, s *Server) {
	rules := ruleFor(registrationv1.OperationAll, "", "configmaps")
	rules[0].APIGroups = append(rules[0].APIGroups, registrationv1.GroupName, authorizationv1.GroupName)
	rules[0].Resources = append(rules[0].Resources, "validatingwebhookconfigurations", "mutatingadmissionpolicies",
		"localsubjectaccessreviews")
	validating(t, s, registrationv1.ValidatingWebhook{Rules: rules,
		ClientConfig: registrationv1.WebhookClientConfig{URL: new("https://127.0.0.1:1")}}) // nothing listens there
	requireDenied(t, s, "marker", "failed calling webhook")
	review := &authorizationv1.LocalSubjectAccessReview{ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace},
		Spec: authorizationv1.SubjectAccessReviewSpec{User: "ann",
			ResourceAttributes: &authorizationv1.ResourceAttributes{
				Namespace: s.Namespace, Verb: "get", Resource: "pods"}}}
	if _, err := s.Client.AuthorizationV1().LocalSubjectAccessReviews(s.Namespace).Create(t.Context(), review,
		metav1.CreateOptions{}); err != nil {
		t.Errorf("access review: %v", err)
	}
	s.Kubectl(t, "label", "validatingwebhookconfiguration", s.Namespace, "changed=true")
}
