package admission

import (
	"cmp"
	"context"
	"slices"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apiserver/pkg/admission"
	networkinglisters "k8s.io/client-go/listers/networking/v1"
)

// ingressClassAnnotation is the deprecated annotation that names the class of an Ingress.
const ingressClassAnnotation = "kubernetes.io/ingress.class"

// defaultIngressClass sets the class of Ingresses without one.
type defaultIngressClass struct {
	*admission.Handler

	classes networkinglisters.IngressClassLister
}

func newDefaultIngressClass(c Config) (admission.Interface, error) {
	return &defaultIngressClass{admission.NewHandler(admission.Create),
		c.Informers.Networking().V1().IngressClasses().Lister()}, nil
}

// Admit sets the default class: of several ones the newest, and of those of the same age the first by
// name.
func (d *defaultIngressClass) Admit(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	ingress, ok := a.GetObject().(*networkingv1.Ingress)
	if !ok || a.GetSubresource() != "" || ingress.Spec.IngressClassName != nil {
		return nil
	}
	if _, set := ingress.Annotations[ingressClassAnnotation]; set {
		return nil
	}
	all, err := d.classes.List(labels.Everything())
	if err != nil {
		return err
	}
	all = slices.DeleteFunc(slices.Clone(all), func(c *networkingv1.IngressClass) bool {
		return c.Annotations[networkingv1.AnnotationIsDefaultIngressClass] != "true"
	})
	if len(all) == 0 {
		return nil
	}
	first := slices.MinFunc(all, func(x, y *networkingv1.IngressClass) int {
		return cmp.Or(y.CreationTimestamp.Compare(x.CreationTimestamp.Time), cmp.Compare(x.Name, y.Name))
	})
	ingress.Spec.IngressClassName = &first.Name
	return nil
}
