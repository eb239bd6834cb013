package registry

import (
	"context"
	"fmt"

	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
)

// NewCertificateSigningRequests makes the store of certificate signing requests with status
// and approval. The request remembers who sent it, whatever it says itself.
func NewCertificateSigningRequests(kind *Kind, place StoreOptions) (*Store, map[string]rest.Storage, error) {
	main, err := NewStoreWithStrategy(kind, place, csrStrategy{NewStrategy(kind, place.Typer)})
	if err != nil {
		return nil, nil, err
	}
	return main, map[string]rest.Storage{
		kind.Resource:               main,
		kind.Resource + "/status":   NewSubresource(main, csrStatusStrategy{StatusStrategy{NewStrategy(kind, place.Typer)}}),
		kind.Resource + "/approval": NewSubresource(main, csrApprovalStrategy{NewStrategy(kind, place.Typer)}),
	}, nil
}

type csrStrategy struct{ Strategy }

// PrepareForCreate writes down who asks.
func (r csrStrategy) PrepareForCreate(ctx context.Context, obj runtime.Object) {
	r.Strategy.PrepareForCreate(ctx, obj)
	spec := &MustCast[*certificatesv1.CertificateSigningRequest](obj).Spec
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
func (r csrStrategy) PrepareForUpdate(ctx context.Context, obj, old runtime.Object) {
	r.Strategy.PrepareForUpdate(ctx, obj, old)
	MustCast[*certificatesv1.CertificateSigningRequest](obj).Spec = MustCast[*certificatesv1.CertificateSigningRequest](old).Spec
}

type csrStatusStrategy struct{ StatusStrategy }

// PrepareForUpdate keeps verdicts as they were given.
func (r csrStatusStrategy) PrepareForUpdate(ctx context.Context, obj, old runtime.Object) {
	r.StatusStrategy.PrepareForUpdate(ctx, obj, old)
	next, last := MustCast[*certificatesv1.CertificateSigningRequest](obj), MustCast[*certificatesv1.CertificateSigningRequest](old)
	for _, kind := range approvalConditions {
		if now, was := findCondition(next, kind), findCondition(last, kind); now != nil && was != nil {
			*now = *was
		}
	}
	setConditionTimes(next, last)
}

// ValidateUpdate leaves verdicts to approval.
func (r csrStatusStrategy) ValidateUpdate(ctx context.Context, obj, old runtime.Object) field.ErrorList {
	errs := r.StatusStrategy.ValidateUpdate(ctx, obj, old)
	next, last := MustCast[*certificatesv1.CertificateSigningRequest](obj), MustCast[*certificatesv1.CertificateSigningRequest](old)
	for _, kind := range approvalConditions {
		if findCondition(next, kind) != nil && findCondition(last, kind) == nil {
			errs = append(errs, field.Forbidden(field.NewPath("status", "conditions"), fmt.Sprintf("updates may not add a condition of type %q", kind)))
		}
	}
	return errs
}

type csrApprovalStrategy struct{ Strategy }

// PrepareForUpdate lets only conditions change, besides metadata.
func (csrApprovalStrategy) PrepareForUpdate(_ context.Context, obj, old runtime.Object) {
	next, last := MustCast[*certificatesv1.CertificateSigningRequest](obj), MustCast[*certificatesv1.CertificateSigningRequest](old)
	next.Spec = last.Spec
	next.Status.Certificate = last.Status.Certificate
	setConditionTimes(next, last)
}

// ValidateUpdate judges the conditions.
func (r csrApprovalStrategy) ValidateUpdate(_ context.Context, obj, old runtime.Object) field.ErrorList {
	return r.Kind.ValidateStatus(obj, old)
}

// GetResetFields names what a server-side apply cannot own here.
func (r csrApprovalStrategy) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	return map[fieldpath.APIVersion]*fieldpath.Set{
		fieldpath.APIVersion(r.Kind.GroupVersion.String()): fieldpath.NewSet(
			fieldpath.MakePathOrDie("spec"), fieldpath.MakePathOrDie("status", "certificate")),
	}
}

// approvalConditions are the conditions that say yes or no.
var approvalConditions = []certificatesv1.RequestConditionType{certificatesv1.CertificateApproved, certificatesv1.CertificateDenied}

// findCondition is the request's condition of a type, to be read or changed, or nil.
func findCondition(r *certificatesv1.CertificateSigningRequest, kind certificatesv1.RequestConditionType) *certificatesv1.CertificateSigningRequestCondition {
	for i := range r.Status.Conditions {
		if c := &r.Status.Conditions[i]; c.Type == kind {
			return c
		}
	}
	return nil
}

// setConditionTimes gives conditions the times that they lack.
func setConditionTimes(next, last *certificatesv1.CertificateSigningRequest) {
	now := metav1.Now()
	for i := range next.Status.Conditions {
		c := &next.Status.Conditions[i]
		if c.LastUpdateTime.IsZero() {
			c.LastUpdateTime = now
		}
		if !c.LastTransitionTime.IsZero() {
			continue
		}
		c.LastTransitionTime = now
		if was := findCondition(last, c.Type); was != nil && was.Status == c.Status && !was.LastTransitionTime.IsZero() {
			c.LastTransitionTime = was.LastTransitionTime
		}
	}
}
