package customresources

import (
	"testing"

	"k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset/fake"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestConflictsOfFinalizerAreRepeated writes the status of a definition that has changed. Only the client of the
// finalizing controller hides that this is a conflict, so that the controller tries again.
func TestConflictsOfFinalizerAreRepeated(t *testing.T) {
	t.Parallel()
	ordinary := statusClient{fake.NewClientset(definition(2)).ApiextensionsV1()}
	if _, err := ordinary.CustomResourceDefinitions().UpdateStatus(t.Context(), definition(1),
		metav1.UpdateOptions{}); !apierrors.IsConflict(err) {
		t.Errorf("got %v, want a conflict", err)
	}
	finalizing := finalizerClient{ordinary}.CustomResourceDefinitions()
	if _, err := finalizing.UpdateStatus(t.Context(), definition(1), metav1.UpdateOptions{}); err == nil ||
		apierrors.IsConflict(err) {
		t.Errorf("got %v, want another error than a conflict", err)
	}
	if _, err := finalizing.UpdateStatus(t.Context(), definition(2), metav1.UpdateOptions{}); err != nil {
		t.Errorf("without a change: %v", err)
	}
}
