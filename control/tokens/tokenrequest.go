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
	// extendedTTL is the actual lifetime of a token requested with InjectedTTL.
	extendedTTL = 365 * 24 * time.Hour
)

// InjectedTTL is the lifetime requested by the token volumes that the server adds to pods. As in
// upstream, it distinguishes these requests from a user's request for one hour.
const InjectedTTL = 3607 * time.Second

// TokenRequestStorage is the REST storage of serviceaccounts/token: each create issues a token, and
// nothing is stored.
type TokenRequestStorage struct {
	Signer    *Signer
	Objects   ObjectGetter
	Audiences []string      // default audiences
	MaxTTL    time.Duration // upper limit of the lifetime; 0 means none
	// ExtendInjected extends the lifetime of injected tokens to a year, for clients that read their
	// token only once. Nodes still refresh these tokens before the requested lifetime ends, and the
	// tokens become invalid with their pod.
	ExtendInjected bool
}

var (
	_ rest.NamedCreater             = (*TokenRequestStorage)(nil)
	_ rest.GroupVersionKindProvider = (*TokenRequestStorage)(nil)
	_ rest.Scoper                   = (*TokenRequestStorage)(nil)
)

// New returns an empty request.
func (r *TokenRequestStorage) New() runtime.Object { return &authenticationv1.TokenRequest{} }

// Destroy does nothing.
func (r *TokenRequestStorage) Destroy() {}

// NamespaceScoped returns true, as for service accounts.
func (r *TokenRequestStorage) NamespaceScoped() bool { return true }

// GroupVersionKind returns the kind of the subresource, which is in another group than service
// accounts.
func (r *TokenRequestStorage) GroupVersionKind(schema.GroupVersion) schema.GroupVersionKind {
	return authenticationv1.SchemeGroupVersion.WithKind("TokenRequest")
}

// Create issues a token for the named service account.
func (r *TokenRequestStorage) Create(ctx context.Context, name string, obj runtime.Object,
	validate rest.ValidateObjectFunc, options *metav1.CreateOptions) (runtime.Object, error) {
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
		return nil, apierrors.NewForbidden(corev1.Resource("serviceaccounts"), name,
			fmt.Errorf("the service account is being deleted"))
	}
	spec := Spec{Account: account, Audiences: out.Spec.Audiences,
		TTL: time.Duration(*out.Spec.ExpirationSeconds) * time.Second}
	if r.MaxTTL > 0 && spec.TTL > r.MaxTTL {
		spec.TTL = r.MaxTTL
		seconds := int64(spec.TTL / time.Second)
		out.Spec.ExpirationSeconds = &seconds
	}
	if err := r.bind(ctx, &spec, out.Spec.BoundObjectRef); err != nil {
		return nil, err
	}
	reportedTTL := spec.TTL
	if r.extends(&spec) {
		spec.TTL, spec.WarnAfter = extendedTTL, spec.TTL
		if r.MaxTTL > 0 {
			spec.TTL = min(spec.TTL, r.MaxTTL)
		}
	}
	token, expires, id, err := r.Signer.Issue(spec)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	audit.AddAuditAnnotation(ctx, serviceaccount.IssuedCredentialIDAuditAnnotationKey, "JTI="+id)
	out.Status = authenticationv1.TokenRequestStatus{Token: token,
		ExpirationTimestamp: metav1.NewTime(expires.Add(reportedTTL - spec.TTL))}
	return out, nil
}

// extends reports whether spec describes an injected token: bound to a pod, for the API server
// only.
func (r *TokenRequestStorage) extends(spec *Spec) bool {
	foreign := func(audience string) bool { return !slices.Contains(r.Audiences, audience) }
	return r.ExtendInjected && spec.Pod != nil && spec.TTL == InjectedTTL &&
		!slices.ContainsFunc(spec.Audiences, foreign)
}

// prepare sets defaults and validates the request.
func (r *TokenRequestStorage) prepare(req *authenticationv1.TokenRequest, namespace, name string) error {
	if req.Name == "" {
		req.Name = name
	}
	if req.Namespace == "" {
		req.Namespace = namespace
	}
	var errs field.ErrorList
	meta, spec := field.NewPath("metadata"), field.NewPath("spec")
	if req.Name != name {
		errs = append(errs, field.Invalid(meta.Child("name"), req.Name,
			"must match the service account name if specified"))
	}
	if req.Namespace != namespace {
		errs = append(errs, field.Invalid(meta.Child("namespace"), req.Namespace,
			"must match the service account namespace if specified"))
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
		errs = append(errs, field.Invalid(spec.Child("expirationSeconds"), seconds,
			"may not specify a duration less than 10 minutes"))
	case seconds > 1<<32:
		errs = append(errs, field.Invalid(spec.Child("expirationSeconds"), seconds,
			"may not specify a duration larger than 2^32 seconds"))
	}
	if len(errs) > 0 {
		return apierrors.NewInvalid(authenticationv1.SchemeGroupVersion.WithKind("TokenRequest").GroupKind(), name,
			errs)
	}
	return nil
}

// bind looks up the object that the token is bound to.
func (r *TokenRequestStorage) bind(ctx context.Context, spec *Spec,
	ref *authenticationv1.BoundObjectReference) (err error) {
	if ref == nil {
		return nil
	}
	namespace := spec.Account.Namespace
	var uid types.UID
	switch schema.FromAPIVersionAndKind(ref.APIVersion, ref.Kind) {
	case corev1.SchemeGroupVersion.WithKind("Pod"):
		if spec.Pod, err = r.Objects.Pod(ctx, namespace, ref.Name); err != nil {
			return err
		}
		uid = spec.Pod.UID
		if account := spec.Pod.Spec.ServiceAccountName; account != spec.Account.Name {
			return apierrors.NewBadRequest(fmt.Sprintf("cannot bind token for serviceaccount %q to pod running with "+
				"different serviceaccount name.", spec.Account.Name))
		}
		if err := r.addNode(ctx, spec); err != nil {
			return err
		}
	case corev1.SchemeGroupVersion.WithKind("Secret"):
		if spec.Secret, err = r.Objects.Secret(ctx, namespace, ref.Name); err != nil {
			return err
		}
		uid = spec.Secret.UID
	case corev1.SchemeGroupVersion.WithKind("Node"):
		if spec.Node, err = r.Objects.Node(ctx, ref.Name); err != nil {
			return err
		}
		uid = spec.Node.UID
	default:
		return apierrors.NewBadRequest(fmt.Sprintf("cannot bind token to object of type %s",
			schema.FromAPIVersionAndKind(ref.APIVersion, ref.Kind)))
	}
	if ref.UID != "" && ref.UID != uid {
		return apierrors.NewConflict(schema.GroupResource{Resource: ref.Kind}, ref.Name,
			fmt.Errorf("the UID in the bound object reference (%s) does not match the UID in record. The object "+
				"might have "+
				"been deleted and then recreated", ref.UID))
	}
	return nil
}

// addNode adds the node of a bound pod. If the Node object was deleted, the token contains its name
// without a UID.
func (r *TokenRequestStorage) addNode(ctx context.Context, spec *Spec) error {
	name := spec.Pod.Spec.NodeName
	if name == "" {
		return nil
	}
	node, err := r.Objects.Node(ctx, name)
	if apierrors.IsNotFound(err) {
		node, err = &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, nil
	}
	spec.Node = node
	return err
}
