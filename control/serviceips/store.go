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

// Options are what the store of services is made with.
type Options struct {
	Place  registry.Place
	Etcd   *clientv3.Client
	Ranges Ranges
	Log    *slog.Logger
}

// Store is the main resource: what is written gets its addresses and ports.
type Store struct {
	*registry.Store
	options Options
	claims  claims
}

// New makes the store of services with its subresource status.
func New(kind *registry.Kind, o Options) (*registry.Store, map[string]rest.Storage, error) {
	main, err := registry.NewStore(kind, o.Place)
	if err != nil {
		return nil, nil, err
	}
	status := registry.NewStatus(main, o.Place) // before the hooks: it allots nothing
	s := &Store{Store: main, options: o, claims: claims{o.Etcd}}
	main.BeginCreate, main.BeginUpdate, main.AfterDelete = s.beginCreate, s.beginUpdate, s.afterDelete
	return main, map[string]rest.Storage{kind.Resource: s, kind.Resource + "/status": status}, nil
}

// ledger is what one request has claimed, and what it will not need any more.
// The library may begin a write several times before one is stored.
type ledger struct{ fresh, old []claim }

type ledgerKey struct{}

// Create stores a new service.
func (s *Store) Create(ctx context.Context, obj runtime.Object, validate rest.ValidateObjectFunc, o *metav1.CreateOptions) (runtime.Object, error) {
	l := &ledger{}
	out, err := s.Store.Create(context.WithValue(ctx, ledgerKey{}, l), obj, validate, o)
	s.settle(ctx, l, out, err)
	return out, err
}

// Update changes a service, or makes it (server-side apply).
func (s *Store) Update(ctx context.Context, name string, info rest.UpdatedObjectInfo, create rest.ValidateObjectFunc, update rest.ValidateObjectUpdateFunc, force bool, o *metav1.UpdateOptions) (runtime.Object, bool, error) {
	l := &ledger{}
	out, made, err := s.Store.Update(context.WithValue(ctx, ledgerKey{}, l), name, info, create, update, force, o)
	s.settle(ctx, l, out, err)
	return out, made, err
}

// giveWithin bounds giving back; what fails the repair does later.
const giveWithin = 5 * time.Second

// settle gives back what was not needed. After an error that does not say
// whether the service is stored, nothing: the repair finds out.
func (s *Store) settle(ctx context.Context, l *ledger, out runtime.Object, err error) {
	var keep []name
	back := slices.DeleteFunc(l.fresh, func(c claim) bool { return c.again })
	if err == nil {
		svc, ok := out.(*corev1.Service)
		if !ok {
			return
		}
		keep, back = holds(svc), append(back, l.old...)
	} else if !refusal(err) {
		return
	}
	back = slices.DeleteFunc(back, func(c claim) bool { return slices.Contains(keep, c.name) })
	s.give(ctx, back)
}

func (s *Store) give(ctx context.Context, back []claim) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), giveWithin)
	defer cancel()
	for _, c := range back {
		if err := s.claims.give(ctx, c); err != nil {
			s.options.Log.Warn("is given back later", "claim", c.name, "error", err)
		}
	}
}

// refusal tells errors that say for certain that nothing was stored.
func refusal(err error) bool {
	return apierrors.IsInvalid(err) || apierrors.IsForbidden(err) || apierrors.IsAlreadyExists(err) || apierrors.IsConflict(err) ||
		apierrors.IsBadRequest(err) || apierrors.IsNotFound(err)
}

func (s *Store) allotment(svc *corev1.Service, dryRun []string) *allotment {
	return &allotment{
		claims: s.claims, ranges: s.options.Ranges, owner: svc.UID, service: svc.Namespace + "/" + svc.Name, dry: dryrun.IsDryRun(dryRun),
	}
}

func (s *Store) beginCreate(ctx context.Context, obj runtime.Object, o *metav1.CreateOptions) (genericregistry.FinishFunc, error) {
	svc, ok := obj.(*corev1.Service)
	if !ok {
		return done, nil
	}
	return done, s.allot(ctx, svc, nil, o.DryRun)
}

func (s *Store) beginUpdate(ctx context.Context, obj, before runtime.Object, o *metav1.UpdateOptions) (genericregistry.FinishFunc, error) {
	svc, ok := obj.(*corev1.Service)
	old, too := before.(*corev1.Service)
	if !ok || !too {
		return done, nil
	}
	// What the change is silent about stays; the strategy does it again later.
	s.Kind.PrepareUpdate(ctx, svc, old)
	return done, s.allot(ctx, svc, old, o.DryRun)
}

// done does nothing: the request's own end settles, see Create and Update. The
// library calls it before the store has answered.
func done(context.Context, bool) {}

func (s *Store) allot(ctx context.Context, svc, old *corev1.Service, dryRun []string) error {
	if err := setFamilies(svc, s.options.Ranges.families()); err != nil {
		return refused(svc, err)
	}
	stored := svc
	if old != nil {
		stored = old // the change may leave out its UID
	}
	a := s.allotment(stored, dryRun)
	l, _ := ctx.Value(ledgerKey{}).(*ledger)
	if l == nil {
		l = &ledger{}
	}
	err := a.addresses(ctx, svc, old)
	if err == nil {
		err = a.ports(ctx, svc, old)
	}
	l.fresh, l.old = append(l.fresh, a.fresh...), nil
	if err != nil || old == nil || a.dry {
		return err
	}
	for _, n := range holds(old) {
		if holdsName(svc, n) {
			continue
		}
		c, err := s.claims.look(ctx, n)
		if err != nil {
			return err
		}
		if c != nil && c.owner == old.UID {
			l.old = append(l.old, *c)
		}
	}
	return nil
}

// afterDelete gives back all that a service held.
func (s *Store) afterDelete(obj runtime.Object, o *metav1.DeleteOptions) {
	svc, ok := obj.(*corev1.Service)
	if !ok || o != nil && dryrun.IsDryRun(o.DryRun) {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), giveWithin)
	defer cancel()
	for _, n := range holds(svc) {
		c, err := s.claims.look(ctx, n)
		if err != nil {
			s.options.Log.Warn("is given back later", "claim", n, "error", err)
			return
		}
		if c != nil && c.owner == svc.UID {
			s.give(ctx, []claim{*c})
		}
	}
}
