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

// NewCertificateSigningRequests creates the store of CertificateSigningRequests with status and
// approval. The server sets the requesting user in the spec.
func NewCertificateSigningRequests(kind *Kind, storeOptions StoreOptions) (*Store, map[string]rest.Storage, error) {
	main, err := NewStoreWithStrategy(kind, storeOptions, csrStrategy{NewStrategy(kind, storeOptions.Typer)})
	if err != nil {
		return nil, nil, err
	}
	return main, map[string]rest.Storage{
		kind.Resource: main,
		kind.Resource + "/status": NewSubresource(main,
			csrStatusStrategy{StatusStrategy{NewStrategy(kind, storeOptions.Typer)}}),
		kind.Resource + "/approval": NewSubresource(main, csrApprovalStrategy{NewStrategy(kind, storeOptions.Typer)}),
	}, nil
}

type csrStrategy struct{ Strategy }

// PrepareForCreate sets the requesting user.
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

// PrepareForUpdate keeps the spec.
func (r csrStrategy) PrepareForUpdate(ctx context.Context, obj, old runtime.Object) {
	r.Strategy.PrepareForUpdate(ctx, obj, old)
	MustCast[*certificatesv1.CertificateSigningRequest](obj).Spec = MustCast[*certificatesv1.CertificateSigningRequest](
		old,
	).Spec
}

type csrStatusStrategy struct{ StatusStrategy }

// PrepareForUpdate keeps approval conditions.
func (r csrStatusStrategy) PrepareForUpdate(ctx context.Context, obj, old runtime.Object) {
	r.StatusStrategy.PrepareForUpdate(ctx, obj, old)
	next := MustCast[*certificatesv1.CertificateSigningRequest](obj)
	last := MustCast[*certificatesv1.CertificateSigningRequest](old)
	for _, kind := range approvalConditions {
		if now, existing := findCondition(next, kind), findCondition(last, kind); now != nil && existing != nil {
			*now = *existing
		}
	}
	setConditionTimes(next, last)
}

// ValidateUpdate rejects new approval conditions.
func (r csrStatusStrategy) ValidateUpdate(ctx context.Context, obj, old runtime.Object) field.ErrorList {
	errs := r.StatusStrategy.ValidateUpdate(ctx, obj, old)
	next := MustCast[*certificatesv1.CertificateSigningRequest](obj)
	last := MustCast[*certificatesv1.CertificateSigningRequest](old)
	for _, kind := range approvalConditions {
		if findCondition(next, kind) != nil && findCondition(last, kind) == nil {
			errs = append(
				errs,
				field.Forbidden(
					field.NewPath("status", "conditions"),
					fmt.Sprintf("updates may not add a condition of type %q", kind),
				),
			)
		}
	}
	return errs
}

type csrApprovalStrategy struct{ Strategy }

// PrepareForUpdate keeps everything except metadata and conditions.
func (csrApprovalStrategy) PrepareForUpdate(_ context.Context, obj, old runtime.Object) {
	next := MustCast[*certificatesv1.CertificateSigningRequest](obj)
	last := MustCast[*certificatesv1.CertificateSigningRequest](old)
	next.Spec = last.Spec
	next.Status.Certificate = last.Status.Certificate
	setConditionTimes(next, last)
}

// ValidateUpdate validates the conditions.
func (r csrApprovalStrategy) ValidateUpdate(_ context.Context, obj, old runtime.Object) field.ErrorList {
	return r.Kind.ValidateStatus(obj, old)
}

// GetResetFields returns the fields that server-side apply ignores here.
func (r csrApprovalStrategy) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	return map[fieldpath.APIVersion]*fieldpath.Set{
		fieldpath.APIVersion(r.Kind.GroupVersion.String()): fieldpath.NewSet(
			fieldpath.MakePathOrDie("spec"), fieldpath.MakePathOrDie("status", "certificate")),
	}
}

// approvalConditions are set through the approval subresource only.
var approvalConditions = []certificatesv1.RequestConditionType{
	certificatesv1.CertificateApproved,
	certificatesv1.CertificateDenied,
}

// findCondition returns a pointer to the condition of a type, or nil.
func findCondition(
	r *certificatesv1.CertificateSigningRequest,
	kind certificatesv1.RequestConditionType,
) *certificatesv1.CertificateSigningRequestCondition {
	for i := range r.Status.Conditions {
		if c := &r.Status.Conditions[i]; c.Type == kind {
			return c
		}
	}
	return nil
}

// setConditionTimes sets missing times of conditions.
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
		if existing := findCondition(last, c.Type); existing != nil && existing.Status == c.Status &&
			!existing.LastTransitionTime.IsZero() {
			c.LastTransitionTime = existing.LastTransitionTime
		}
	}
}
