package control

import (
	"context"
	"net/url"
	"path"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/openapi"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"berth/control/scheme"
)

// openAPIClient is a client of the OpenAPI v3 documents of the server itself. It lists them without a request, for
// which the server would have to build all of them.
type openAPIClient struct{ a *Assembly }

// Paths returns all documents. Their URLs change with their content.
func (c openAPIClient) Paths() (map[string]openapi.GroupVersion, error) {
	out := map[string]openapi.GroupVersion{}
	add := func(gv schema.GroupVersion, hash string) {
		out[documentName(gv)] = openAPIDocument{c.a.Client, documentName(gv), hash}
	}
	for gv, hash := range addedDocuments(c).Documents() {
		add(gv, hash)
	}
	for _, gv := range append(scheme.GroupVersions(), apiextensionsv1.SchemeGroupVersion,
		apiregistrationv1.SchemeGroupVersion) {
		add(gv, "")
	}
	return out, nil
}

// openAPIDocument is the document of a group version.
type openAPIDocument struct {
	client kubernetes.Interface
	name   string
	hash   string // empty for built-in kinds, whose documents do not change
}

// documentTimeout limits the time to build a document on a busy machine.
const documentTimeout = 30 * time.Second

// Schema requests the document.
func (d openAPIDocument) Schema(contentType string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(context.Background(), documentTimeout)
	defer cancel()
	return d.client.Discovery().RESTClient().Get().AbsPath(openAPIIndex, d.name).SetHeader("Accept", contentType).
		Do(ctx).Raw()
}

// ServerRelativeURL returns the path of the document with its hash.
func (d openAPIDocument) ServerRelativeURL() string {
	return (&url.URL{Path: path.Join(openAPIIndex, d.name), RawQuery: url.Values{"hash": {d.hash}}.Encode()}).String()
}

// clientWithOpenAPI is a client with another source of OpenAPI documents.
type clientWithOpenAPI struct {
	kubernetes.Interface

	documents openapi.Client
}

// Discovery returns the discovery client.
func (c clientWithOpenAPI) Discovery() discovery.DiscoveryInterfaces {
	return discoveryWithOpenAPI{c.Interface.Discovery(), c.documents}
}

type discoveryWithOpenAPI struct {
	discovery.DiscoveryInterfaces

	documents openapi.Client
}

// OpenAPIV3 returns the client of the documents.
func (d discoveryWithOpenAPI) OpenAPIV3() openapi.Client { return d.documents }

// OpenAPIV3WithContext returns the client of the documents.
func (d discoveryWithOpenAPI) OpenAPIV3WithContext(context.Context) openapi.ClientWithContext {
	return openapi.ToClientWithContext(d.documents)
}
