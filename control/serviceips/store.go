package serviceips

import (
	"context"
	"log/slog"
	"slices"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/util/dryrun"

	"berth/control/registry"
)

// Options holds the dependencies of the store.
type Options struct {
	Place  registry.StoreOptions
	Etcd   *clientv3.Client
	Ranges Ranges
	Log    *slog.Logger
}

// Store is the main resource. Each write allocates addresses and ports.
type Store struct {
	*registry.Store
	options Options
	claims  claimStore
}

// New creates the store of Services with the status subresource.
func New(kind *registry.Kind, o Options) (*registry.Store, map[string]rest.Storage, error) {
	main, err := registry.NewStore(kind, o.Place)
	if err != nil {
		return nil, nil, err
	}
	s := &Store{Store: main, options: o, claims: claimStore{o.Etcd}}
	main.AfterDelete = s.afterDelete            // a write of the status that removes the last finalizer deletes
	status := registry.NewStatus(main, o.Place) // created before the other hooks are set: it does not allocate
	main.BeginCreate, main.BeginUpdate = s.beginCreate, s.beginUpdate
	return main, map[string]rest.Storage{kind.Resource: s, kind.Resource + "/status": status}, nil
}

// requestClaims records what a request has claimed, and what it no longer needs. The library may
// call the hooks several times before an object is stored.
type requestClaims struct{ claimed, released []claim }

type requestClaimsKey struct{}

// Create creates a Service.
func (s *Store) Create(
	ctx context.Context,
	obj runtime.Object,
	validate rest.ValidateObjectFunc,
	o *metav1.CreateOptions,
) (runtime.Object, error) {
	l := &requestClaims{}
	out, err := s.Store.Create(context.WithValue(ctx, requestClaimsKey{}, l), obj, validate, o)
	s.releaseUnneeded(ctx, l, out, err)
	return out, err
}

// Update updates a Service, or creates it (server-side apply).
func (s *Store) Update(
	ctx context.Context,
	name string,
	info rest.UpdatedObjectInfo,
	create rest.ValidateObjectFunc,
	update rest.ValidateObjectUpdateFunc,
	force bool,
	o *metav1.UpdateOptions,
) (runtime.Object, bool, error) {
	l := &requestClaims{}
	out, created, err := s.Store.Update(context.WithValue(ctx, requestClaimsKey{}, l), name, info, create, update,
		force, o)
	s.releaseUnneeded(ctx, l, out, err)
	return out, created, err
}

// releaseTimeout limits the release of claims. The repair releases the rest.
const releaseTimeout = 5 * time.Second

// releaseUnneeded releases claims that are not needed. After an error that leaves open whether the
// Service was stored, it releases nothing. The repair does that.
func (s *Store) releaseUnneeded(ctx context.Context, l *requestClaims, out runtime.Object, err error) {
	var keep []claimKey
	unneeded := slices.DeleteFunc(l.claimed, func(c claim) bool { return c.renewed })
	if err == nil {
		svc, ok := out.(*corev1.Service)
		if !ok {
			return
		}
		keep, unneeded = heldKeys(svc), append(unneeded, l.released...)
	} else if !isRejection(err) {
		return
	}
	unneeded = slices.DeleteFunc(unneeded, func(c claim) bool { return slices.Contains(keep, c.key) })
	s.release(ctx, unneeded)
}

func (s *Store) release(ctx context.Context, claims []claim) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
	defer cancel()
	for _, c := range claims {
		if err := s.claims.release(ctx, c); err != nil {
			s.options.Log.Warn("claim not released, left to repair", "claim", c.key, "err", err)
		}
	}
}

// isRejection reports whether an error means that nothing was stored.
func isRejection(err error) bool {
	return apierrors.IsInvalid(err) || apierrors.IsForbidden(err) || apierrors.IsAlreadyExists(err) ||
		apierrors.IsConflict(err) ||
		apierrors.IsBadRequest(err) ||
		apierrors.IsNotFound(err)
}

func (s *Store) newAllocator(svc *corev1.Service, dryRun []string) *allocator {
	return &allocator{
		claims: s.claims, ranges: s.options.Ranges, owner: svc.UID, service: svc.Namespace + "/" + svc.Name,
		dryRun: dryrun.IsDryRun(dryRun),
	}
}

func (s *Store) beginCreate(
	ctx context.Context,
	obj runtime.Object,
	o *metav1.CreateOptions,
) (genericregistry.FinishFunc, error) {
	svc, ok := obj.(*corev1.Service)
	if !ok {
		return noFinish, nil
	}
	return noFinish, s.allocate(ctx, svc, nil, o.DryRun)
}

func (s *Store) beginUpdate(
	ctx context.Context,
	obj, before runtime.Object,
	o *metav1.UpdateOptions,
) (genericregistry.FinishFunc, error) {
	svc, ok := obj.(*corev1.Service)
	old, oldOK := before.(*corev1.Service)
	if !ok || !oldOK {
		return noFinish, nil
	}
	// Fields that the update omits are kept. The strategy does the same later.
	s.Kind.PrepareUpdate(ctx, svc, old)
	return noFinish, s.allocate(ctx, svc, old, o.DryRun)
}

// noFinish does nothing: Create and Update release claims themselves, because the library calls the
// finish function before the result of the write is known.
func noFinish(context.Context, bool) {}

func (s *Store) allocate(ctx context.Context, svc, old *corev1.Service, dryRun []string) error {
	if errs := setFamilies(svc, old, s.options.Ranges.families()); len(errs) > 0 {
		return apierrors.NewInvalid(corev1.SchemeGroupVersion.WithKind("Service").GroupKind(), svc.Name, errs)
	}
	stored := svc
	if old != nil {
		stored = old // the update may omit the UID
	}
	a := s.newAllocator(stored, dryRun)
	l, _ := ctx.Value(requestClaimsKey{}).(*requestClaims)
	if l == nil {
		l = &requestClaims{}
	}
	err := a.allocateAddresses(ctx, svc, old)
	if err == nil {
		err = a.allocatePorts(ctx, svc, old)
	}
	l.claimed, l.released = append(l.claimed, a.claimed...), nil
	if err != nil || old == nil || a.dryRun {
		return err
	}
	for _, n := range heldKeys(old) {
		if holdsKey(svc, n) {
			continue
		}
		c, err := s.claims.get(ctx, n)
		if err != nil {
			return err
		}
		if c != nil && c.owner == old.UID {
			l.released = append(l.released, *c)
		}
	}
	return nil
}

// afterDelete releases all keys of a Service.
func (s *Store) afterDelete(obj runtime.Object, o *metav1.DeleteOptions) {
	svc, ok := obj.(*corev1.Service)
	if !ok || o != nil && dryrun.IsDryRun(o.DryRun) {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), releaseTimeout)
	defer cancel()
	for _, n := range heldKeys(svc) {
		c, err := s.claims.get(ctx, n)
		if err != nil {
			s.options.Log.Warn("claim not released, left to repair", "claim", n, "err", err)
			return
		}
		if c != nil && c.owner == svc.UID {
			s.release(ctx, []claim{*c})
		}
	}
}
