package aggregation

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kube-openapi/pkg/aggregator"
	"k8s.io/kube-openapi/pkg/handler3"
	"k8s.io/kube-openapi/pkg/openapiconv"
	"k8s.io/kube-openapi/pkg/spec3"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

const (
	openAPIV2Path = "/openapi/v2"
	openAPIV3Path = "/openapi/v3"
	// convertedPrefix marks the hash of a document of a server that has OpenAPI v2 only.
	convertedPrefix = "v2-"
)

// documentHash returns the hash of the OpenAPI document of a group version, or nothing if its server has none.
func (s *Server) documentHash(gv schema.GroupVersion) string {
	b := (*s.backends.Load())[gv]
	if b == nil {
		return ""
	}
	index := handler3.OpenAPIV3Discovery{}
	if r, err := b.get(openAPIV3Path, runtime.ContentTypeJSON); err == nil && r.code == http.StatusOK &&
		json.Unmarshal(r.body, &index) == nil {
		location, err := url.Parse(index.Paths[strings.TrimPrefix(pathOf(gv), "/")].ServerRelativeURL)
		if err != nil {
			return ""
		}
		return location.Query().Get("hash")
	}
	if r, err := b.get(openAPIV2Path, runtime.ContentTypeJSON); err == nil && r.code == http.StatusOK {
		return convertedPrefix + strings.Trim(r.header.Get("Etag"), `"`)
	}
	return ""
}

func pathOf(gv schema.GroupVersion) string {
	if gv.Group == "" {
		return "/api/" + gv.Version
	}
	return apisPath + "/" + gv.String()
}

// Documents returns a hash of each OpenAPI document. It is as old as discovery.
func (s *Server) Documents() map[schema.GroupVersion]string {
	out := map[schema.GroupVersion]string{}
	if len(*s.backends.Load()) == 0 {
		return out
	}
	for gv, one := range s.discovered.all() {
		if one.document != "" {
			out[gv] = one.document
		}
	}
	return out
}

// OpenAPIV3 requests the document of a group version.
func (s *Server) OpenAPIV3(gv schema.GroupVersion) (*spec3.OpenAPI, error) {
	b := (*s.backends.Load())[gv]
	if b == nil {
		return nil, fmt.Errorf("OpenAPI document of %s: no extension API server", gv)
	}
	if strings.HasPrefix(s.Documents()[gv], convertedPrefix) {
		swagger, err := b.swagger()
		if err != nil {
			return nil, fmt.Errorf("OpenAPI document of %s: %w", gv, err)
		}
		return openapiconv.ConvertV2ToV3(aggregator.FilterSpecByPathsWithoutSideEffects(swagger,
			[]string{pathOf(gv) + "/"})), nil
	}
	out := &spec3.OpenAPI{}
	if err := b.getJSON(openAPIV3Path+pathOf(gv), out); err != nil {
		return nil, fmt.Errorf("OpenAPI document of %s: %w", gv, err)
	}
	return out, nil
}

// OpenAPIV2 adds the documents of extension API servers to one. It leaves out those that cannot be read.
func (s *Server) OpenAPIV2(static *spec.Swagger) (*spec.Swagger, error) {
	versions := slices.SortedFunc(maps.Keys(s.Documents()), func(a, b schema.GroupVersion) int {
		return strings.Compare(a.String(), b.String())
	})
	if len(versions) == 0 {
		return static, nil
	}
	// The merge changes these maps.
	out := *static
	paths := spec.Paths{}
	if static.Paths != nil {
		paths = *static.Paths
	}
	paths.Paths, out.Paths = maps.Clone(paths.Paths), &paths
	out.Definitions, out.Parameters = maps.Clone(static.Definitions), maps.Clone(static.Parameters)
	for _, gv := range versions {
		b := (*s.backends.Load())[gv]
		if b == nil {
			continue
		}
		swagger, err := b.swagger()
		if err == nil {
			err = aggregator.MergeSpecsIgnorePathConflictRenamingDefinitionsAndParameters(&out,
				aggregator.FilterSpecByPathsWithoutSideEffects(swagger, []string{pathOf(gv) + "/"}))
		}
		if err != nil {
			s.Log.Warn("extension API server left out of the OpenAPI v2 document", "groupVersion", gv.String(),
				"err", err)
		}
	}
	return &out, nil
}

// swagger requests the document of OpenAPI v2 of the server.
func (b *backend) swagger() (*spec.Swagger, error) {
	out := &spec.Swagger{}
	return out, b.getJSON(openAPIV2Path, out)
}

func (b *backend) getJSON(path string, into any) error {
	r, err := b.get(path, runtime.ContentTypeJSON)
	if err != nil {
		return err
	}
	if r.code != http.StatusOK {
		return fmt.Errorf("%s: status %d", path, r.code)
	}
	if err := json.Unmarshal(r.body, into); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}
