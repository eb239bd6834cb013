package kinds

import (
	"context"

	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
)

// NewSigningRequests makes the store of certificate signing requests with status
// and approval. The request remembers who sent it, whatever it says itself.
func NewSigningRequests(kind *Kind, place Place) (*Store, map[string]rest.Storage, error) {
	main, err := NewStoreWith(kind, place, signingRules{NewStrategy(kind, place.Typer)})
	if err != nil {
		return nil, nil, err
	}
	return main, map[string]rest.Storage{
		kind.Resource:               main,
		kind.Resource + "/status":   NewStatusWith(main, signedRules{StatusStrategy{NewStrategy(kind, place.Typer)}}),
		kind.Resource + "/approval": NewStatusWith(main, approvalRules{NewStrategy(kind, place.Typer)}),
	}, nil
}

type signingRules struct{ Strategy }

// PrepareForCreate writes down who asks.
func (r signingRules) PrepareForCreate(ctx context.Context, obj runtime.Object) {
	r.Strategy.PrepareForCreate(ctx, obj)
	spec := &As[*certificatesv1.CertificateSigningRequest](obj).Spec
	spec.Username, spec.UID, spec.Groups, spec.Extra = "", "", nil, nil
	u, ok := genericapirequest.UserFrom(ctx)
	if !ok {
		return
	}
	spec.Username, spec.UID, spec.Groups = u.GetName(), u.GetUID(), u.GetGroups()
	if extra := u.GetExtra(); len(extra) > 0 {
		spec.Extra = map[string]certificatesv1.ExtraValue{}
		for k, v := range extra {
			spec.Extra[k] = v
		}
	}
}

// PrepareForUpdate keeps the request as it was made.
func (r signingRules) PrepareForUpdate(ctx context.Context, obj, old runtime.Object) {
	r.Strategy.PrepareForUpdate(ctx, obj, old)
	As[*certificatesv1.CertificateSigningRequest](obj).Spec = As[*certificatesv1.CertificateSigningRequest](old).Spec
}

type signedRules struct{ StatusStrategy }

// PrepareForUpdate keeps verdicts, which only approval gives.
func (r signedRules) PrepareForUpdate(ctx context.Context, obj, old runtime.Object) {
	r.StatusStrategy.PrepareForUpdate(ctx, obj, old)
	next, last := As[*certificatesv1.CertificateSigningRequest](obj), As[*certificatesv1.CertificateSigningRequest](old)
	if next.Status.Certificate == nil {
		next.Status.Certificate = last.Status.Certificate
	}
	next.Status.Conditions = append(verdicts(last.Status.Conditions, true), verdicts(next.Status.Conditions, false)...)
}

type approvalRules struct{ Strategy }

// PrepareForUpdate lets only verdicts change.
func (approvalRules) PrepareForUpdate(_ context.Context, obj, old runtime.Object) {
	next := As[*certificatesv1.CertificateSigningRequest](obj)
	given := next.Status.Conditions
	As[*certificatesv1.CertificateSigningRequest](old).DeepCopyInto(next)
	next.Status.Conditions = append(verdicts(given, true), verdicts(next.Status.Conditions, false)...)
}

// ValidateUpdate wants one verdict, and none taken back.
func (approvalRules) ValidateUpdate(_ context.Context, obj, old runtime.Object) field.ErrorList {
	path := field.NewPath("status", "conditions")
	next, last := As[*certificatesv1.CertificateSigningRequest](obj), As[*certificatesv1.CertificateSigningRequest](old)
	now := map[certificatesv1.RequestConditionType]bool{}
	for _, c := range next.Status.Conditions {
		now[c.Type] = true
	}
	var errs field.ErrorList
	if now[certificatesv1.CertificateApproved] && now[certificatesv1.CertificateDenied] {
		errs = append(errs, field.Invalid(path, "", "Approved and Denied conditions are mutually exclusive"))
	}
	for _, c := range verdicts(last.Status.Conditions, true) {
		if !now[c.Type] {
			errs = append(errs, field.Forbidden(path, "updates may not remove a condition of type "+string(c.Type)))
		}
	}
	return errs
}

// GetResetFields names what a server-side apply cannot own here.
func (r approvalRules) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	return map[fieldpath.APIVersion]*fieldpath.Set{
		fieldpath.APIVersion(r.Kind.Version.String()): fieldpath.NewSet(
			fieldpath.MakePathOrDie("spec"), fieldpath.MakePathOrDie("status", "certificate")),
	}
}

// verdicts are the conditions that say yes or no, or all others.
func verdicts(all []certificatesv1.CertificateSigningRequestCondition, want bool) []certificatesv1.CertificateSigningRequestCondition {
	var out []certificatesv1.CertificateSigningRequestCondition
	for _, c := range all {
		is := c.Type == certificatesv1.CertificateApproved || c.Type == certificatesv1.CertificateDenied
		if is == want {
			out = append(out, c)
		}
	}
	return out
}
