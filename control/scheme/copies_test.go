package scheme

import (
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestConvertToTheSameType converts as after a mutation: from a published version to the internal one.
func TestConvertToTheSameType(t *testing.T) {
	t.Parallel()
	s := New()
	changed := &corev1.Pod{TypeMeta: metav1.TypeMeta{Kind: "Pod", APIVersion: "v1"},
		ObjectMeta: metav1.ObjectMeta{Name: "a", Labels: map[string]string{"changed": "true"}},
		Spec:       corev1.PodSpec{NodeName: "n"}}
	internal := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "a", Annotations: map[string]string{"old": "true"}}}
	if err := s.Convert(changed, internal, nil); err != nil {
		t.Fatal(err)
	}
	if internal.Kind != "" || internal.Labels["changed"] != "true" || internal.Annotations != nil ||
		internal.Spec.NodeName != "n" {
		t.Errorf("got %+v", internal)
	}
	if err := s.Convert(changed, &admissionv1.ValidatingAdmissionPolicy{}, nil); err == nil {
		t.Error("converted a Pod to a ValidatingAdmissionPolicy")
	}
}
