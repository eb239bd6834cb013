package main

import (
	"errors"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/conversion"
)

// group is the API group of the kind Website.
const group = "operators.example.com"

var (
	v1alpha1 = schema.GroupVersion{Group: group, Version: "v1alpha1"}
	v1       = schema.GroupVersion{Group: group, Version: "v1"}
)

// website is a Website in the version that the operator reconciles.
type website interface {
	client.Object

	replicas() *int32
	setReplicas(n int32)
	message() string
	status() *Status
}

// Status is the status of a Website in all versions.
type Status struct {
	ReadyReplicas int32              `json:"readyReplicas,omitempty"`
	Conditions    []metav1.Condition `json:"conditions,omitempty"`
}

func (s Status) clone() Status {
	out := s
	out.Conditions = nil
	for i := range s.Conditions {
		out.Conditions = append(out.Conditions, *s.Conditions[i].DeepCopy())
	}
	return out
}

// WebsiteV1alpha1 is a Website of version v1alpha1, the only version of the first operator.
type WebsiteV1alpha1 struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Spec              SpecV1alpha1 `json:"spec,omitempty"`
	State             Status       `json:"status,omitempty"`
}

// SpecV1alpha1 is the desired state of a WebsiteV1alpha1.
type SpecV1alpha1 struct {
	Size    *int32 `json:"size,omitempty"`
	Message string `json:"message,omitempty"`
}

// WebsiteV1 is a Website of version v1, the storage version of the second operator.
type WebsiteV1 struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Spec              SpecV1 `json:"spec,omitempty"`
	State             Status `json:"status,omitempty"`
}

// SpecV1 is the desired state of a WebsiteV1.
type SpecV1 struct {
	Replicas *int32  `json:"replicas,omitempty"`
	Content  Content `json:"content,omitempty"`
}

// Content is what a WebsiteV1 serves.
type Content struct {
	Message string `json:"message,omitempty"`
}

func (w *WebsiteV1alpha1) replicas() *int32    { return w.Spec.Size }
func (w *WebsiteV1alpha1) setReplicas(n int32) { w.Spec.Size = &n }
func (w *WebsiteV1alpha1) message() string     { return w.Spec.Message }
func (w *WebsiteV1alpha1) status() *Status     { return &w.State }
func (w *WebsiteV1) replicas() *int32          { return w.Spec.Replicas }
func (w *WebsiteV1) setReplicas(n int32)       { w.Spec.Replicas = &n }
func (w *WebsiteV1) message() string           { return w.Spec.Content.Message }
func (w *WebsiteV1) status() *Status           { return &w.State }

// DeepCopyObject implements runtime.Object.
func (w *WebsiteV1alpha1) DeepCopyObject() runtime.Object {
	out := *w
	out.ObjectMeta = *w.ObjectMeta.DeepCopy()
	out.Spec.Size = clone(w.Spec.Size)
	out.State = w.State.clone()
	return &out
}

// DeepCopyObject implements runtime.Object.
func (w *WebsiteV1) DeepCopyObject() runtime.Object {
	out := *w
	out.ObjectMeta = *w.ObjectMeta.DeepCopy()
	out.Spec.Replicas = clone(w.Spec.Replicas)
	out.State = w.State.clone()
	return &out
}

func clone(n *int32) *int32 {
	if n == nil {
		return nil
	}
	out := *n
	return &out
}

// Hub marks the version that all others are converted to and from.
func (w *WebsiteV1) Hub() {}

// ConvertTo converts to version v1.
func (w *WebsiteV1alpha1) ConvertTo(hub conversion.Hub) error {
	out, ok := hub.(*WebsiteV1)
	if !ok {
		return errUnexpected(hub)
	}
	out.ObjectMeta, out.State = *w.ObjectMeta.DeepCopy(), w.State.clone()
	out.Spec = SpecV1{Replicas: clone(w.Spec.Size), Content: Content{Message: w.Spec.Message}}
	return nil
}

// ConvertFrom converts from version v1.
func (w *WebsiteV1alpha1) ConvertFrom(hub conversion.Hub) error {
	in, ok := hub.(*WebsiteV1)
	if !ok {
		return errUnexpected(hub)
	}
	w.ObjectMeta, w.State = *in.ObjectMeta.DeepCopy(), in.State.clone()
	w.Spec = SpecV1alpha1{Size: clone(in.Spec.Replicas), Message: in.Spec.Content.Message}
	return nil
}

func errUnexpected(obj any) error {
	return fmt.Errorf("unexpected type %T: %w", obj, errors.ErrUnsupported)
}

// WebsiteV1alpha1List is a list of Websites of version v1alpha1.
type WebsiteV1alpha1List struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []WebsiteV1alpha1 `json:"items"`
}

// WebsiteV1List is a list of Websites of version v1.
type WebsiteV1List struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []WebsiteV1 `json:"items"`
}

// DeepCopyObject implements runtime.Object.
func (l *WebsiteV1alpha1List) DeepCopyObject() runtime.Object {
	out := *l
	out.ListMeta, out.Items = *l.ListMeta.DeepCopy(), cloneAll[WebsiteV1alpha1](l.Items)
	return &out
}

// DeepCopyObject implements runtime.Object.
func (l *WebsiteV1List) DeepCopyObject() runtime.Object {
	out := *l
	out.ListMeta, out.Items = *l.ListMeta.DeepCopy(), cloneAll[WebsiteV1](l.Items)
	return &out
}

func cloneAll[T any, P interface {
	*T
	runtime.Object
}](in []T) []T {
	out := make([]T, 0, len(in))
	for i := range in {
		if one, ok := P(&in[i]).DeepCopyObject().(P); ok {
			out = append(out, *one)
		}
	}
	return out
}

// addTypes registers the kind in the versions that a version of the operator serves.
func addTypes(scheme *runtime.Scheme, operator string) {
	scheme.AddKnownTypeWithName(v1alpha1.WithKind("Website"), &WebsiteV1alpha1{})
	scheme.AddKnownTypeWithName(v1alpha1.WithKind("WebsiteList"), &WebsiteV1alpha1List{})
	metav1.AddToGroupVersion(scheme, v1alpha1)
	if operator == firstVersion {
		return
	}
	scheme.AddKnownTypeWithName(v1.WithKind("Website"), &WebsiteV1{})
	scheme.AddKnownTypeWithName(v1.WithKind("WebsiteList"), &WebsiteV1List{})
	metav1.AddToGroupVersion(scheme, v1)
}
