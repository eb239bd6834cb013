package control

import (
	"context"
	"net/url"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	"k8s.io/apimachinery/pkg/labels"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/util/proxy"
	"k8s.io/apiserver/pkg/util/webhook"
	corelisters "k8s.io/client-go/listers/core/v1"

	"berth/control/registry"
)

// resolveTimeout limits the reads of one resolution.
const resolveTimeout = 5 * time.Second

// serviceResolver resolves the Services of webhooks and extension API servers to a ready endpoint, or to
// the external name. It reads Services and EndpointSlices directly from the store, so that it needs no
// informer.
type serviceResolver struct{ a *Assembly }

func (a *Assembly) serviceResolver() webhook.ServiceResolver { return serviceResolver{a} }

// ResolveEndpoint returns the URL of an endpoint of a Service.
func (s serviceResolver) ResolveEndpoint(namespace, name string, port int32) (*url.URL, error) {
	ctx, cancel := resolveContext(namespace)
	defer cancel()
	service, err := s.a.service(ctx, name)
	if err != nil {
		return nil, err
	}
	if service.Spec.Type == corev1.ServiceTypeExternalName {
		return proxy.ResolveCluster(oneService{service: service}, namespace, name, port)
	}
	return proxy.ResolveEndpoint(oneService{service: service}, storedSlices(s), namespace, name, port)
}

// oneService stands for the Services of all namespaces, and for those of one. Only get is implemented.
type oneService struct {
	corelisters.ServiceNamespaceLister

	service *corev1.Service
}

// Services returns the Services of a namespace.
func (o oneService) Services(string) corelisters.ServiceNamespaceLister { return o }

// Get returns the Service.
func (o oneService) Get(string) (*corev1.Service, error) { return o.service, nil }

// storedSlices are the EndpointSlices in the store.
type storedSlices struct{ a *Assembly }

// GetEndpointSlices returns the slices of a Service.
func (s storedSlices) GetEndpointSlices(namespace, service string) ([]*discoveryv1.EndpointSlice, error) {
	ctx, cancel := resolveContext(namespace)
	defer cancel()
	obj, err := s.a.Store(discoveryv1.GroupName, "endpointslices").List(ctx, &internalversion.ListOptions{
		LabelSelector: labels.SelectorFromSet(labels.Set{discoveryv1.LabelServiceName: service}),
	})
	if err != nil {
		return nil, err
	}
	list := registry.MustCast[*discoveryv1.EndpointSliceList](obj)
	out := make([]*discoveryv1.EndpointSlice, len(list.Items))
	for i := range list.Items {
		out[i] = &list.Items[i]
	}
	return out, nil
}

func resolveContext(namespace string) (context.Context, context.CancelFunc) {
	ctx := genericapirequest.WithNamespace(genericapirequest.NewContext(), namespace)
	return context.WithTimeout(ctx, resolveTimeout)
}
