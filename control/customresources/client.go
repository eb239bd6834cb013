package customresources

import (
	"context"
	"errors"
	"fmt"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	client "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset/typed/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// statusClient is the client of the library's controllers. They know definitions without schemas and
// annotations, and an update of the status writes annotations too.
type statusClient struct {
	client.CustomResourceDefinitionsGetter
}

// CustomResourceDefinitions returns the client of the definitions.
func (c statusClient) CustomResourceDefinitions() client.CustomResourceDefinitionInterface {
	return statusWriter{c.CustomResourceDefinitionsGetter.CustomResourceDefinitions()}
}

type statusWriter struct {
	client.CustomResourceDefinitionInterface
}

// UpdateStatus writes the status and the finalizers of a definition, and nothing else. It returns a
// conflict if the definition has changed.
func (w statusWriter) UpdateStatus(ctx context.Context, crd *apiextensionsv1.CustomResourceDefinition,
	options metav1.UpdateOptions) (*apiextensionsv1.CustomResourceDefinition, error) {
	live, err := w.Get(ctx, crd.Name, metav1.GetOptions{})
	if err != nil {
		return nil, err //nolint:wrapcheck // callers check the type
	}
	if live.UID != crd.UID || live.ResourceVersion != crd.ResourceVersion {
		return nil, apierrors.NewConflict(apiextensionsv1.Resource("customresourcedefinitions"), crd.Name,
			errors.New("the object has been modified; please apply your changes to the latest version"))
	}
	live.Status, live.Finalizers = crd.Status, crd.Finalizers
	updated, err := w.CustomResourceDefinitionInterface.UpdateStatus(ctx, live, options)
	if err != nil {
		return nil, err //nolint:wrapcheck // callers check the type
	}
	obj, err := withoutSchemas(updated)
	if small, ok := obj.(*apiextensionsv1.CustomResourceDefinition); ok {
		return small, err
	}
	return updated, err
}

// finalizerClient is the client of the controller that deletes the objects of a deleted definition. After a failure
// and a conflict with its own condition, that controller would wait for an event that does not come before the next
// resync. It repeats a deletion after all other errors.
type finalizerClient struct{ statusClient }

// CustomResourceDefinitions returns the client of the definitions.
func (c finalizerClient) CustomResourceDefinitions() client.CustomResourceDefinitionInterface {
	return finalizerWriter{c.statusClient.CustomResourceDefinitions()}
}

type finalizerWriter struct {
	client.CustomResourceDefinitionInterface
}

// UpdateStatus writes the status as statusWriter does. Its error is not a conflict.
func (w finalizerWriter) UpdateStatus(ctx context.Context, crd *apiextensionsv1.CustomResourceDefinition,
	options metav1.UpdateOptions) (*apiextensionsv1.CustomResourceDefinition, error) {
	updated, err := w.CustomResourceDefinitionInterface.UpdateStatus(ctx, crd, options)
	if apierrors.IsConflict(err) {
		return nil, fmt.Errorf("update status: %v", err) // hides its type
	}
	return updated, err //nolint:wrapcheck // callers check the type
}
