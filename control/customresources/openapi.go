package customresources

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/controller/openapi/builder"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	openapihandler "k8s.io/kube-openapi/pkg/handler"
	"k8s.io/kube-openapi/pkg/spec3"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

// The documents contain the selectable fields.
var v3Options, v2Options = builder.Options{IncludeSelectableFields: true},
	builder.Options{V2: true, IncludeSelectableFields: true}

// Documents returns the hash of the document of each group version. It changes with each change of a
// definition of the group version. No schema is needed to compute it.
func (s *Server) Documents() map[schema.GroupVersion]string {
	parts := map[schema.GroupVersion][]string{}
	for _, crd := range s.definitions.established() {
		for _, v := range crd.Spec.Versions {
			if v.Served {
				gv := schema.GroupVersion{Group: crd.Spec.Group, Version: v.Name}
				parts[gv] = append(parts[gv], fmt.Sprintf("%s %d", crd.UID, crd.Generation))
			}
		}
	}
	out := make(map[schema.GroupVersion]string, len(parts))
	for gv, one := range parts {
		slices.Sort(one)
		out[gv] = fmt.Sprintf("%X", sha256.Sum256([]byte(strings.Join(one, "\n"))))
	}
	return out
}

// OpenAPIV3 builds the document of a group version.
func (s *Server) OpenAPIV3(gv schema.GroupVersion) (*spec3.OpenAPI, error) {
	var all []*spec3.OpenAPI
	err := s.completeEach(gv.Group, func(crd *apiextensionsv1.CustomResourceDefinition) error {
		if !apihelpers.HasServedCRDVersion(crd, gv.Version) {
			return nil
		}
		one, err := builder.BuildOpenAPIV3(crd, gv.Version, v3Options)
		all = append(all, one)
		return err //nolint:wrapcheck // completeEach names the definition
	})
	if err != nil {
		return nil, err
	}
	out, err := builder.MergeSpecsV3(all...)
	if err != nil {
		return nil, fmt.Errorf("OpenAPI document of %s: %w", gv, err)
	}
	return out, nil
}

// OpenAPIV2 returns a document with all custom resources added. The argument is not changed.
func (s *Server) OpenAPIV2(static *spec.Swagger) (*spec.Swagger, error) {
	var all []*spec.Swagger
	err := s.completeEach("", func(crd *apiextensionsv1.CustomResourceDefinition) error {
		for _, v := range crd.Spec.Versions {
			if !v.Served {
				continue
			}
			one, err := builder.BuildOpenAPIV2(crd, v.Name, v2Options)
			if err != nil {
				return err //nolint:wrapcheck // completeEach names the definition
			}
			one.Definitions = openapihandler.PruneDefaults(one.Definitions) // as in the other document
			all = append(all, one)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	out, err := builder.MergeSpecs(static, all...)
	if err != nil {
		return nil, fmt.Errorf("OpenAPI v2 document: %w", err)
	}
	return out, nil
}

// completeEach calls do for each established definition of a group, or of all, with its schemas. A
// definition that is deleted meanwhile is skipped.
func (s *Server) completeEach(group string, do func(*apiextensionsv1.CustomResourceDefinition) error) error {
	var errs []error
	for _, crd := range s.definitions.established() {
		if group != "" && crd.Spec.Group != group {
			continue
		}
		complete, err := s.definitions.complete(crd.Name)
		if err == nil {
			err = do(complete)
		}
		if err != nil && !apierrors.IsNotFound(err) {
			errs = append(errs, fmt.Errorf("definition %s: %w", crd.Name, err))
		}
	}
	return errors.Join(errs...)
}
