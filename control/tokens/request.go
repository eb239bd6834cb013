package tokens

import (
	"context"
	"fmt"
	"slices"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
)

const (
	minTTL     = 10 * time.Minute
	defaultTTL = time.Hour
	// extendedTTL is how long a token really is good that was asked for InjectedTTL.
	extendedTTL = 365 * 24 * time.Hour
)

// InjectedTTL is what the volumes with tokens ask for that the server gives to pods
// by itself: an hour, and told apart from a user's hour.
const InjectedTTL = 3607 * time.Second

// TokenRequestStorage is the storage of serviceaccounts/token: each create issues a token
// and keeps nothing.
type TokenRequestStorage struct {
	Signer    *Signer
	Objects   ObjectGetter
	Audiences []string      // what a request without audiences gets
	MaxTTL    time.Duration // a longer wish is cut to it; 0: not cut
	// ExtendInjected makes injected tokens good for a year: clients that read theirs once go
	// on. Nodes renew them after most of an hour all the same, and they end with their pod.
	ExtendInjected bool
}

var (
	_ rest.NamedCreater             = (*TokenRequestStorage)(nil)
	_ rest.GroupVersionKindProvider = (*TokenRequestStorage)(nil)
	_ rest.Scoper                   = (*TokenRequestStorage)(nil)
)

// New makes an empty request.
func (r *TokenRequestStorage) New() runtime.Object { return &authenticationv1.TokenRequest{} }

// Destroy has nothing to free.
func (r *TokenRequestStorage) Destroy() {}

// NamespaceScoped is that of service accounts.
func (r *TokenRequestStorage) NamespaceScoped() bool { return true }

// GroupVersionKind says that the subresource speaks another group than its owner.
func (r *TokenRequestStorage) GroupVersionKind(schema.GroupVersion) schema.GroupVersionKind {
	return authenticationv1.SchemeGroupVersion.WithKind("TokenRequest")
}

// Create issues a token for the named service account.
func (r *TokenRequestStorage) Create(ctx context.Context, name string, obj runtime.Object, validate rest.ValidateObjectFunc, options *metav1.CreateOptions) (runtime.Object, error) {
	in, ok := obj.(*authenticationv1.TokenRequest)
	if !ok {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("not a TokenRequest: %T", obj))
	}
	out := in.DeepCopy()
	namespace := genericapirequest.NamespaceValue(ctx)
	if err := r.prepare(out, namespace, name); err != nil {
		return nil, err
	}
	if validate != nil {
		if err := validate(ctx, out.DeepCopyObject()); err != nil {
			return nil, err
		}
	}
	account, err := r.Objects.ServiceAccount(ctx, namespace, name)
	if err != nil {
		return nil, err
	}
	if account.DeletionTimestamp != nil {
		return nil, apierrors.NewForbidden(corev1.Resource("serviceaccounts"), name, fmt.Errorf("the service account is being deleted"))
	}
	wish := Spec{Account: account, Audiences: out.Spec.Audiences, TTL: time.Duration(*out.Spec.ExpirationSeconds) * time.Second}
	if r.MaxTTL > 0 && wish.TTL > r.MaxTTL {
		wish.TTL = r.MaxTTL
		seconds := int64(wish.TTL / time.Second)
		out.Spec.ExpirationSeconds = &seconds
	}
	if err := r.bind(ctx, &wish, out.Spec.BoundObjectRef); err != nil {
		return nil, err
	}
	told := wish.TTL
	if r.extends(&wish) {
		wish.TTL, wish.WarnAfter = extendedTTL, wish.TTL
		if r.MaxTTL > 0 {
			wish.TTL = min(wish.TTL, r.MaxTTL)
		}
	}
	token, expires, id, err := r.Signer.Issue(wish)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	audit.AddAuditAnnotation(ctx, serviceaccount.IssuedCredentialIDAuditAnnotationKey, "JTI="+id)
	out.Status = authenticationv1.TokenRequestStatus{Token: token, ExpirationTimestamp: metav1.NewTime(expires.Add(told - wish.TTL))}
	return out, nil
}

// extends tells the wish for an injected token: of a pod, for the API server alone.
func (r *TokenRequestStorage) extends(w *Spec) bool {
	foreign := func(audience string) bool { return !slices.Contains(r.Audiences, audience) }
	return r.ExtendInjected && w.Pod != nil && w.TTL == InjectedTTL && !slices.ContainsFunc(w.Audiences, foreign)
}

// prepare fills what the request leaves open and refuses what cannot be.
func (r *TokenRequestStorage) prepare(req *authenticationv1.TokenRequest, namespace, name string) error {
	if req.Name == "" {
		req.Name = name
	}
	if req.Namespace == "" {
		req.Namespace = namespace
	}
	var bad field.ErrorList
	meta, spec := field.NewPath("metadata"), field.NewPath("spec")
	if req.Name != name {
		bad = append(bad, field.Invalid(meta.Child("name"), req.Name, "must match the service account name if specified"))
	}
	if req.Namespace != namespace {
		bad = append(bad, field.Invalid(meta.Child("namespace"), req.Namespace, "must match the service account namespace if specified"))
	}
	if len(req.Spec.Audiences) == 0 {
		req.Spec.Audiences = r.Audiences
	}
	if req.Spec.ExpirationSeconds == nil {
		seconds := int64(defaultTTL / time.Second)
		req.Spec.ExpirationSeconds = &seconds
	}
	switch seconds := *req.Spec.ExpirationSeconds; {
	case seconds < int64(minTTL/time.Second):
		bad = append(bad, field.Invalid(spec.Child("expirationSeconds"), seconds, "may not specify a duration less than 10 minutes"))
	case seconds > 1<<32:
		bad = append(bad, field.Invalid(spec.Child("expirationSeconds"), seconds, "may not specify a duration larger than 2^32 seconds"))
	}
	if len(bad) > 0 {
		return apierrors.NewInvalid(authenticationv1.SchemeGroupVersion.WithKind("TokenRequest").GroupKind(), name, bad)
	}
	return nil
}

// bind looks up the object that the token shall not outlive.
func (r *TokenRequestStorage) bind(ctx context.Context, w *Spec, ref *authenticationv1.BoundObjectReference) (err error) {
	if ref == nil {
		return nil
	}
	namespace := w.Account.Namespace
	var uid types.UID
	switch schema.FromAPIVersionAndKind(ref.APIVersion, ref.Kind) {
	case corev1.SchemeGroupVersion.WithKind("Pod"):
		if w.Pod, err = r.Objects.Pod(ctx, namespace, ref.Name); err != nil {
			return err
		}
		uid = w.Pod.UID
		if account := w.Pod.Spec.ServiceAccountName; account != w.Account.Name {
			return apierrors.NewBadRequest(fmt.Sprintf("cannot bind token for serviceaccount %q to pod running with different serviceaccount name.", w.Account.Name))
		}
		if err := r.addNode(ctx, w); err != nil {
			return err
		}
	case corev1.SchemeGroupVersion.WithKind("Secret"):
		if w.Secret, err = r.Objects.Secret(ctx, namespace, ref.Name); err != nil {
			return err
		}
		uid = w.Secret.UID
	case corev1.SchemeGroupVersion.WithKind("Node"):
		if w.Node, err = r.Objects.Node(ctx, ref.Name); err != nil {
			return err
		}
		uid = w.Node.UID
	default:
		return apierrors.NewBadRequest(fmt.Sprintf("cannot bind token to object of type %s", schema.FromAPIVersionAndKind(ref.APIVersion, ref.Kind)))
	}
	if ref.UID != "" && ref.UID != uid {
		return apierrors.NewConflict(schema.GroupResource{Resource: ref.Kind}, ref.Name,
			fmt.Errorf("the UID in the bound object reference (%s) does not match the UID in record. The object might have been deleted and then recreated", ref.UID))
	}
	return nil
}

// addNode adds the node of a bound pod; one without a Node object (it was
// removed) is named without a UID.
func (r *TokenRequestStorage) addNode(ctx context.Context, w *Spec) error {
	name := w.Pod.Spec.NodeName
	if name == "" {
		return nil
	}
	node, err := r.Objects.Node(ctx, name)
	if apierrors.IsNotFound(err) {
		node, err = &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, nil
	}
	w.Node = node
	return err
}
