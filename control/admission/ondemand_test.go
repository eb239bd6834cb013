package admission

import (
	"context"
	"errors"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
)

// denier is a plugin that denies everything.
type denier struct{}

func (denier) Handles(admission.Operation) bool { return true }

func (denier) Validate(context.Context, admission.Attributes, admission.ObjectInterfaces) error {
	return errors.New("denied")
}

// requestFor returns a request to create an object.
func requestFor(kind schema.GroupVersionKind, resource string, obj runtime.Object) admission.Attributes {
	return admission.NewAttributesRecord(obj, nil, kind, "", "a", kind.GroupVersion().WithResource(resource), "",
		admission.Create, &metav1.CreateOptions{}, false, &user.DefaultInfo{Name: "ann"})
}

// TestPluginIsCreatedForItsFirstConfiguration also checks which requests never reach the plugin.
func TestPluginIsCreatedForItsFirstConfiguration(t *testing.T) {
	t.Parallel()
	f := informers.NewSharedInformerFactory(fake.NewClientset(), 0)
	informer := f.Admissionregistration().V1().ValidatingWebhookConfigurations().Informer()
	f.Start(t.Context().Done())
	t.Cleanup(f.Shutdown)
	reviews := schema.GroupResource{Group: "authentication.k8s.io", Resource: "tokenreviews"}
	created := 0
	plugin := validatingOnDemand{newOnDemand(Config{NotIntercepted: []schema.GroupResource{reviews}},
		func() (admission.ValidationInterface, error) {
			if created++; created == 1 {
				return nil, errors.New("not created")
			}
			return denier{}, nil
		}, allOperations, informer)}
	pod := requestFor(corev1.SchemeGroupVersion.WithKind("Pod"), "pods", &corev1.Pod{})
	if err := plugin.Validate(t.Context(), pod, nil); err != nil || created > 0 {
		t.Fatalf("without a configuration: error %v, created %d times", err, created)
	}
	if err := informer.GetStore().Add(&admissionv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "a"}}); err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{"not created", "denied", "denied"} {
		if err := plugin.Validate(t.Context(), pod, nil); err == nil || err.Error() != want {
			t.Errorf("request %d: got error %v, want %s", i, err, want)
		}
	}
	if created != 2 {
		t.Errorf("created %d times, want one failure and one plugin", created)
	}
	for name, a := range map[string]admission.Attributes{
		"a webhook configuration": requestFor(admissionv1.SchemeGroupVersion.WithKind("ValidatingWebhookConfiguration"),
			"validatingwebhookconfigurations", &admissionv1.ValidatingWebhookConfiguration{}),
		"a token review": requestFor(schema.GroupVersionKind{Group: reviews.Group, Version: "v1", Kind: "TokenReview"},
			reviews.Resource, nil),
	} {
		if err := plugin.Validate(t.Context(), a, nil); err != nil {
			t.Errorf("%s is intercepted: %v", name, err)
		}
	}
}

// counter counts the calls of a mutating plugin that asks for another one.
type counter struct{ calls int }

func (*counter) Handles(admission.Operation) bool { return true }

func (c *counter) Admit(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	c.calls++
	a.GetReinvocationContext().SetShouldReinvoke()
	return nil
}

// TestChainReinvokesMutatingPlugins checks that all of them run once more.
func TestChainReinvokesMutatingPlugins(t *testing.T) {
	t.Parallel()
	one := &counter{}
	all := admission.NewChainHandler(one)
	c := chain{all, all}
	a := requestFor(corev1.SchemeGroupVersion.WithKind("Pod"), "pods", &corev1.Pod{})
	if err := c.Admit(t.Context(), a, nil); err != nil || one.calls != 2 || !a.GetReinvocationContext().IsReinvoke() {
		t.Errorf("error %v, %d calls, want 2", err, one.calls)
	}
}
