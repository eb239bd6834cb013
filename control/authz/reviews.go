package authz

import (
	"context"
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"

	"berth/control/reviews"
)

// invalidReview returns an Invalid error for a review.
func invalidReview(kind string, errs field.ErrorList) error {
	return apierrors.NewInvalid(authorizationv1.SchemeGroupVersion.WithKind(kind).GroupKind(), "", errs)
}

// NewSubjectAccessReviews returns the storage of subjectaccessreviews, which check the access of
// any user.
func NewSubjectAccessReviews(a authorizer.UnconditionalAuthorizer) rest.Storage {
	const kind = "SubjectAccessReview"
	return &reviews.Storage[*authorizationv1.SubjectAccessReview]{
		Kind: kind, NewObject: func() *authorizationv1.SubjectAccessReview {
			return &authorizationv1.SubjectAccessReview{}
		},
		Evaluate: func(ctx context.Context, review *authorizationv1.SubjectAccessReview) (err error) {
			review.Status, err = evaluate(ctx, a, kind, review.Spec, nil)
			return err
		},
	}
}

// NewLocalSubjectAccessReviews returns the storage of localsubjectaccessreviews, which check the
// access of any user in one namespace.
func NewLocalSubjectAccessReviews(a authorizer.UnconditionalAuthorizer) rest.Storage {
	const kind = "LocalSubjectAccessReview"
	return &reviews.Storage[*authorizationv1.LocalSubjectAccessReview]{
		Kind: kind, Namespaced: true,
		NewObject: func() *authorizationv1.LocalSubjectAccessReview {
			return &authorizationv1.LocalSubjectAccessReview{}
		},
		Evaluate: func(ctx context.Context, review *authorizationv1.LocalSubjectAccessReview) (err error) {
			var errs field.ErrorList
			spec := field.NewPath("spec")
			switch about := review.Spec.ResourceAttributes; {
			case about == nil:
				errs = append(errs, field.Required(spec.Child("resourceAttributes"), "required for a local review"))
			case about.Namespace != genericapirequest.NamespaceValue(ctx):
				errs = append(errs, field.Invalid(spec.Child("resourceAttributes", "namespace"), about.Namespace,
					"must match metadata.namespace"))
			}
			review.Status, err = evaluate(ctx, a, kind, review.Spec, errs)
			return err
		},
	}
}

// NewSelfSubjectAccessReviews returns the storage of selfsubjectaccessreviews, which check the
// access of the requesting user ("kubectl auth can-i").
func NewSelfSubjectAccessReviews(a authorizer.UnconditionalAuthorizer) rest.Storage {
	const kind = "SelfSubjectAccessReview"
	return &reviews.Storage[*authorizationv1.SelfSubjectAccessReview]{
		Kind: kind, NewObject: func() *authorizationv1.SelfSubjectAccessReview {
			return &authorizationv1.SelfSubjectAccessReview{}
		},
		Evaluate: func(ctx context.Context, review *authorizationv1.SelfSubjectAccessReview) error {
			u, err := reviews.RequestUser(ctx)
			if err != nil {
				return err
			}
			spec := authorizationv1.SubjectAccessReviewSpec{
				ResourceAttributes:    review.Spec.ResourceAttributes,
				NonResourceAttributes: review.Spec.NonResourceAttributes,
				User:                  u.GetName(), Groups: u.GetGroups(), UID: u.GetUID(),
			}
			for k, v := range u.GetExtra() {
				if spec.Extra == nil {
					spec.Extra = map[string]authorizationv1.ExtraValue{}
				}
				spec.Extra[k] = v
			}
			review.Status, err = evaluate(ctx, a, kind, spec, nil)
			return err
		},
	}
}

// NewSelfSubjectRulesReviews returns the storage of selfsubjectrulesreviews, which list the rules
// of the requesting user in a namespace ("kubectl auth can-i --list").
func NewSelfSubjectRulesReviews(resolver authorizer.RuleResolver) rest.Storage {
	return &reviews.Storage[*authorizationv1.SelfSubjectRulesReview]{
		Kind: "SelfSubjectRulesReview", NewObject: func() *authorizationv1.SelfSubjectRulesReview {
			return &authorizationv1.SelfSubjectRulesReview{}
		},
		Evaluate: func(ctx context.Context, review *authorizationv1.SelfSubjectRulesReview) error {
			u, err := reviews.RequestUser(ctx)
			if err != nil {
				return err
			}
			if review.Spec.Namespace == "" {
				return apierrors.NewBadRequest("no namespace on request")
			}
			review.Status = rulesOf(ctx, resolver, u, review.Spec.Namespace)
			return nil
		},
	}
}

// rulesOf returns the rules of a user in a namespace.
func rulesOf(ctx context.Context, resolver authorizer.RuleResolver, u user.Info,
	namespace string) authorizationv1.SubjectRulesReviewStatus {
	resources, paths, incomplete, err := resolver.RulesFor(ctx, u, namespace)
	out := authorizationv1.SubjectRulesReviewStatus{
		ResourceRules: []authorizationv1.ResourceRule{}, NonResourceRules: []authorizationv1.NonResourceRule{},
		Incomplete: incomplete,
	}
	for _, x := range resources {
		out.ResourceRules = append(out.ResourceRules, authorizationv1.ResourceRule{
			Verbs: x.GetVerbs(), APIGroups: x.GetAPIGroups(), Resources: x.GetResources(),
			ResourceNames: x.GetResourceNames(),
		})
	}
	for _, x := range paths {
		out.NonResourceRules = append(out.NonResourceRules, authorizationv1.NonResourceRule{Verbs: x.GetVerbs(),
			NonResourceURLs: x.GetNonResourceURLs()})
	}
	if err != nil {
		out.EvaluationError = err.Error()
	}
	return out
}

// evaluate validates the spec and asks the authorizer. found are validation errors of the caller.
func evaluate(ctx context.Context, a authorizer.UnconditionalAuthorizer, kind string,
	spec authorizationv1.SubjectAccessReviewSpec, found field.ErrorList) (authorizationv1.SubjectAccessReviewStatus,
	error) {
	if errs := append(checkSpec(spec), found...); len(errs) > 0 {
		return authorizationv1.SubjectAccessReviewStatus{}, invalidReview(kind, errs)
	}
	return authorizeSpec(ctx, a, spec), nil
}

func checkSpec(s authorizationv1.SubjectAccessReviewSpec) (errs field.ErrorList) {
	spec := field.NewPath("spec")
	switch {
	case s.ResourceAttributes != nil && s.NonResourceAttributes != nil:
		errs = append(errs, field.Invalid(spec.Child("nonResourceAttributes"), s.NonResourceAttributes,
			"cannot be specified in combination with resourceAttributes"))
	case s.ResourceAttributes == nil && s.NonResourceAttributes == nil:
		errs = append(errs, field.Invalid(spec.Child("resourceAttributes"), s.ResourceAttributes,
			"exactly one of nonResourceAttributes or resourceAttributes must be specified"))
	}
	if s.User == "" && len(s.Groups) == 0 {
		errs = append(errs, field.Invalid(spec.Child("user"), s.User,
			"at least one of user or group must be specified"))
	}
	return errs
}

// authorizeSpec asks the authorizer that also authorizes requests.
func authorizeSpec(ctx context.Context, a authorizer.UnconditionalAuthorizer,
	spec authorizationv1.SubjectAccessReviewSpec) authorizationv1.SubjectAccessReviewStatus {
	decision, reason, err := a.Authorize(ctx, attributesOf(spec))
	out := authorizationv1.SubjectAccessReviewStatus{
		Allowed: decision == authorizer.DecisionAllow, Denied: decision == authorizer.DecisionDeny, Reason: reason,
	}
	if err != nil {
		out.EvaluationError = err.Error()
	}
	return out
}

func attributesOf(spec authorizationv1.SubjectAccessReviewSpec) authorizer.Attributes {
	u := &user.DefaultInfo{Name: spec.User, UID: spec.UID, Groups: spec.Groups}
	for k, v := range spec.Extra {
		if u.Extra == nil {
			u.Extra = map[string][]string{}
		}
		u.Extra[strings.ToLower(k)] = v
	}
	if p := spec.NonResourceAttributes; p != nil {
		return authorizer.AttributesRecord{User: u, Verb: p.Verb, Path: p.Path}
	}
	r := spec.ResourceAttributes
	out := authorizer.AttributesRecord{
		User: u, ResourceRequest: true, Verb: r.Verb, Namespace: r.Namespace, APIGroup: r.Group,
		APIVersion: versionOrAll(r.Version),
		Resource:   r.Resource, Subresource: r.Subresource, Name: r.Name,
	}
	if f := r.FieldSelector; f != nil {
		out.FieldSelectorRequirements, out.FieldSelectorParsingErr = fieldsOf(f)
	}
	if l := r.LabelSelector; l != nil {
		out.LabelSelectorRequirements, out.LabelSelectorParsingErr = labelsOf(l)
	}
	return out
}

func versionOrAll(version string) string {
	if version == "" {
		return "*"
	}
	return version
}

// fieldsOf converts the requirements that the authorizers support: In and NotIn with a single
// value. Dropping a requirement makes the request broader, so it never allows more.
func fieldsOf(f *authorizationv1.FieldSelectorAttributes) (fields.Requirements, error) {
	if f.RawSelector != "" {
		s, err := fields.ParseSelector(f.RawSelector)
		if err != nil {
			return nil, err
		}
		return s.Requirements(), nil
	}
	var out fields.Requirements
	for _, r := range f.Requirements {
		if len(r.Values) != 1 {
			continue
		}
		switch r.Operator {
		case metav1.FieldSelectorOpIn:
			out = append(out, fields.Requirement{Field: r.Key, Operator: selection.Equals, Value: r.Values[0]})
		case metav1.FieldSelectorOpNotIn:
			out = append(out, fields.Requirement{Field: r.Key, Operator: selection.NotEquals, Value: r.Values[0]})
		}
	}
	return out, nil
}

func labelsOf(l *authorizationv1.LabelSelectorAttributes) (labels.Requirements, error) {
	if l.RawSelector != "" {
		s, err := labels.Parse(l.RawSelector)
		if err != nil {
			return nil, err
		}
		out, _ := s.Requirements()
		return out, nil
	}
	s, err := metav1.LabelSelectorAsSelector(&metav1.LabelSelector{MatchExpressions: l.Requirements})
	if err != nil {
		return nil, err
	}
	out, _ := s.Requirements()
	return out, nil
}
