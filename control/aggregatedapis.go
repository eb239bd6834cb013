package control

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/client-go/transport"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	aggregatorscheme "k8s.io/kube-aggregator/pkg/apiserver/scheme"
	"k8s.io/kube-openapi/pkg/spec3"
	"k8s.io/kube-openapi/pkg/validation/spec"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"

	"berth/control/aggregation"
	"berth/control/pki"
	"berth/control/scheme"
)

// frontProxy authenticates this server to extension API servers.
type frontProxy struct {
	authority   *pki.Authority
	certificate *pki.Certificate
}

func newFrontProxy(from *pki.Authority) (*frontProxy, error) {
	authority, err := from.FrontProxyAuthority()
	if err != nil {
		return nil, err
	}
	certificate, err := authority.Certificate("front-proxy-client", pki.FrontProxyClientSubject())
	if err != nil {
		return nil, fmt.Errorf("front proxy certificate: %w", err)
	}
	return &frontProxy{authority, certificate}, nil
}

// apiServiceOptions returns the storage options of APIServices, which are stored as in kube-apiserver.
type apiServiceOptions struct{ *storageFactory }

// GetRESTOptions returns the storage options of a resource.
func (o apiServiceOptions) GetRESTOptions(
	resource schema.GroupResource,
	_ runtime.Object,
) (generic.RESTOptions, error) {
	version := apiregistrationv1.SchemeGroupVersion
	config := storagebackend.NewDefaultConfig(keyPrefix, aggregatorscheme.Codecs.LegacyCodec(version))
	config.EncodeVersioner = runtime.NewMultiGroupVersioner(version, schema.GroupKind{Group: version.Group})
	return o.restOptions(config, resource, groupedPrefix(resource), o.newStorage), nil
}

// installAggregation serves APIServices.
func (s *Server) installAggregation(builtIn served) (err error) {
	s.aggregation, err = aggregation.Install(s.generic, aggregation.Config{
		Storage: apiServiceOptions{s.storageFactory}, Services: s.serviceResolver(),
		Dial:             &transport.DialHolder{Dial: s.podTransport.DialContext},
		ProxyCertificate: s.frontProxy.certificate, Informers: s.Informers, StartInformers: s.startInformers,
		BuiltIn: localGroupVersions(builtIn), Definitions: s.customResources.Definitions(), Reserved: s.isBuiltIn,
		Log: s.Log,
	})
	return err
}

// localGroupVersions returns the group versions that have a Local APIService. metrics.k8s.io has none: the manifests of
// metrics servers create it, and a label of the Local one would stay and let the next start of the server replace it.
func localGroupVersions(builtIn served) []schema.GroupVersion {
	return append(slices.DeleteFunc(scheme.GroupVersions(), func(gv schema.GroupVersion) bool {
		return len(builtIn[gv]) == 0 || gv == metricsv1beta1.SchemeGroupVersion
	}), apiextensionsv1.SchemeGroupVersion)
}

// isBuiltIn reports whether a group has kinds without a definition.
func (s *Server) isBuiltIn(group string) bool {
	return group == apiextensionsv1.GroupName || group == apiregistrationv1.GroupName ||
		s.Scheme.IsGroupRegistered(group)
}

// authenticationResyncPeriod is how often the ConfigMap for extension API servers is checked.
const authenticationResyncPeriod = time.Minute

// runAuthenticationPublisher publishes how extension API servers authenticate clients and this server.
func (a *Assembly) runAuthenticationPublisher(ctx context.Context) error {
	tick := time.NewTicker(authenticationResyncPeriod)
	defer tick.Stop()
	for {
		if err := (aggregation.Authentication{
			ClientCA: a.Authority.PEM(), FrontProxyCA: a.frontProxy.authority.PEM(),
			FrontProxyName: pki.FrontProxyClientName, Shared: len(a.Etcd.Endpoints) > 0,
		}).Publish(ctx, a.Client); err != nil && ctx.Err() == nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// addedDocuments are the documents of custom resources and of extension API servers.
type addedDocuments struct{ a *Assembly }

// Documents returns a hash for each document.
func (d addedDocuments) Documents() map[schema.GroupVersion]string {
	out := d.a.customResources.Documents()
	maps.Copy(out, d.a.aggregation.Documents())
	return out
}

// OpenAPIV3 returns a document.
func (d addedDocuments) OpenAPIV3(of schema.GroupVersion) (*spec3.OpenAPI, error) {
	if _, remote := d.a.aggregation.Documents()[of]; remote {
		return d.a.aggregation.OpenAPIV3(of)
	}
	return d.a.customResources.OpenAPIV3(of)
}

// OpenAPIV2 returns a document with all of these kinds added.
func (d addedDocuments) OpenAPIV2(builtIn *spec.Swagger) (*spec.Swagger, error) {
	out, err := d.a.customResources.OpenAPIV2(builtIn)
	if err != nil {
		return nil, err
	}
	return d.a.aggregation.OpenAPIV2(out)
}
