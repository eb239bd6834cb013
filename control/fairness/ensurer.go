package fairness

import (
	"context"
	"log/slog"
	"time"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apiserver/pkg/apis/flowcontrol/bootstrap"
	"k8s.io/client-go/informers"
	flowcontrolclient "k8s.io/client-go/kubernetes/typed/flowcontrol/v1"
	"k8s.io/client-go/tools/cache"
)

const (
	// ensurePeriod is how often all objects are checked, as upstream.
	ensurePeriod = time.Minute
	// minEnsurePeriod limits how often two servers of different versions replace the objects of each other.
	minEnsurePeriod = 5 * time.Second
	// retryPeriod is the delay after an error.
	retryPeriod = time.Second
)

// Ensurer keeps upstream's default FlowSchemas and PriorityLevelConfigurations. Mandatory objects are
// always restored. A suggested object is created if it is missing, and updated unless its annotation
// apf.kubernetes.io/autoupdate-spec is "false". An object with the annotation "true" that is no longer
// among the defaults is deleted.
type Ensurer struct {
	levels  operations[*flowcontrolv1.PriorityLevelConfiguration]
	schemas operations[*flowcontrolv1.FlowSchema]
	synced  []cache.InformerSynced
	deleted chan struct{} // has a value after an object was deleted
	log     *slog.Logger
}

// NewEnsurer creates an ensurer. It adds informers, which must not have been started.
func NewEnsurer(factory informers.SharedInformerFactory, client flowcontrolclient.FlowcontrolV1Interface,
	log *slog.Logger) (*Ensurer, error) {
	version := factory.Flowcontrol().V1()
	levels, schemas := version.PriorityLevelConfigurations(), version.FlowSchemas()
	e := &Ensurer{
		levels: levelOperations(client, func() ([]*flowcontrolv1.PriorityLevelConfiguration, error) {
			return levels.Lister().List(labels.Everything())
		}),
		schemas: schemaOperations(client, func() ([]*flowcontrolv1.FlowSchema, error) {
			return schemas.Lister().List(labels.Everything())
		}),
		deleted: make(chan struct{}, 1), log: log,
	}
	for _, informer := range []cache.SharedIndexInformer{levels.Informer(), schemas.Informer()} {
		registration, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{DeleteFunc: func(any) {
			select {
			case e.deleted <- struct{}{}:
			default:
			}
		}})
		if err != nil {
			return nil, err
		}
		e.synced = append(e.synced, registration.HasSynced)
	}
	return e, nil
}

// Run keeps the objects until ctx is done.
func (e *Ensurer) Run(ctx context.Context) {
	if !cache.WaitForCacheSync(ctx.Done(), e.synced...) {
		return
	}
	for ctx.Err() == nil {
		wait := ensurePeriod
		if err := e.ensure(ctx); err != nil && ctx.Err() == nil {
			e.log.Warn("default flow schemas and priority levels not ensured; retrying", "err", err)
			wait = retryPeriod
		}
		e.sleep(ctx, min(wait, minEnsurePeriod), nil)
		e.sleep(ctx, max(0, wait-minEnsurePeriod), e.deleted)
	}
}

// sleep returns after d, when ctx is done, or when wake has a value.
func (e *Ensurer) sleep(ctx context.Context, d time.Duration, wake <-chan struct{}) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	case <-wake:
	}
}

// ensure makes one pass. Levels are first, so that no schema references a missing one.
func (e *Ensurer) ensure(ctx context.Context) error {
	if err := e.levels.ensure(ctx, bootstrap.MandatoryPriorityLevelConfigurations,
		bootstrap.SuggestedPriorityLevelConfigurations, e.log); err != nil {
		return err
	}
	return e.schemas.ensure(ctx, bootstrap.MandatoryFlowSchemas, bootstrap.SuggestedFlowSchemas, e.log)
}

func levelOperations(client flowcontrolclient.FlowcontrolV1Interface,
	list func() ([]*flowcontrolv1.PriorityLevelConfiguration, error),
) operations[*flowcontrolv1.PriorityLevelConfiguration] {
	levels := client.PriorityLevelConfigurations()
	return operations[*flowcontrolv1.PriorityLevelConfiguration]{
		kind: "PriorityLevelConfiguration", list: list,
		create: levels.Create, update: levels.Update, remove: levels.Delete,
		clone: (*flowcontrolv1.PriorityLevelConfiguration).DeepCopy,
		sameSpec: func(want, have *flowcontrolv1.PriorityLevelConfiguration) bool {
			if want.Spec.Exempt != nil && have.Spec.Exempt != nil {
				want = want.DeepCopy()
				want.Spec.Exempt = have.Spec.Exempt // administrators may set the shares of the exempt level
			}
			return equality.Semantic.DeepEqual(want.Spec, have.Spec)
		},
		setSpec: func(obj, want *flowcontrolv1.PriorityLevelConfiguration) { want.Spec.DeepCopyInto(&obj.Spec) },
	}
}

func schemaOperations(client flowcontrolclient.FlowcontrolV1Interface,
	list func() ([]*flowcontrolv1.FlowSchema, error)) operations[*flowcontrolv1.FlowSchema] {
	schemas := client.FlowSchemas()
	return operations[*flowcontrolv1.FlowSchema]{
		kind: "FlowSchema", list: list, create: schemas.Create, update: schemas.Update, remove: schemas.Delete,
		clone: (*flowcontrolv1.FlowSchema).DeepCopy,
		sameSpec: func(want, have *flowcontrolv1.FlowSchema) bool {
			return equality.Semantic.DeepEqual(want.Spec, have.Spec)
		},
		setSpec: func(obj, want *flowcontrolv1.FlowSchema) { want.Spec.DeepCopyInto(&obj.Spec) },
	}
}
