package pods

import (
	"context"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/client-go/kubernetes/scheme"

	"berth/control/registry"
)

// fakeStorage stores one pod. concurrentWrite, if set, runs before the next write.
type fakeStorage struct {
	storage.Interface

	pod             *corev1.Pod // nil: deleted
	version         int
	concurrentWrite func()
}

func (o *fakeStorage) Versioner() storage.Versioner { return storage.APIObjectVersioner{} }

func (o *fakeStorage) change(modify func(*corev1.Pod)) {
	o.version++
	o.pod = o.pod.DeepCopy()
	modify(o.pod)
	o.pod.ResourceVersion = fmt.Sprint(o.version)
}

func (o *fakeStorage) Get(_ context.Context, key string, _ storage.GetOptions, out runtime.Object) error {
	if o.pod == nil {
		return storage.NewKeyNotFoundError(key, 0)
	}
	o.pod.DeepCopyInto(registry.MustCast[*corev1.Pod](out))
	return nil
}

func (o *fakeStorage) runConcurrentWrite() {
	if f := o.concurrentWrite; f != nil {
		o.concurrentWrite = nil
		f()
	}
}

func (o *fakeStorage) GuaranteedUpdate(
	_ context.Context,
	key string,
	out runtime.Object,
	_ bool,
	p *storage.Preconditions,
	try storage.UpdateFunc,
	_ runtime.Object,
) error {
	o.runConcurrentWrite()
	if o.pod == nil {
		return storage.NewKeyNotFoundError(key, 0)
	}
	if err := p.Check(key, o.pod); err != nil {
		return err
	}
	next, _, err := try(o.pod.DeepCopy(), storage.ResponseMeta{})
	if err != nil {
		return err
	}
	o.change(func(pod *corev1.Pod) { registry.MustCast[*corev1.Pod](next).DeepCopyInto(pod) })
	o.pod.DeepCopyInto(registry.MustCast[*corev1.Pod](out))
	return nil
}

func (o *fakeStorage) Delete(
	_ context.Context,
	key string,
	out runtime.Object,
	p *storage.Preconditions,
	_ storage.ValidateObjectFunc,
	_ runtime.Object,
	_ storage.DeleteOptions,
) error {
	o.runConcurrentWrite()
	if o.pod == nil {
		return storage.NewKeyNotFoundError(key, 0)
	}
	if err := p.Check(key, o.pod); err != nil {
		return err
	}
	o.pod.DeepCopyInto(registry.MustCast[*corev1.Pod](out))
	o.pod = nil
	return nil
}

// TestEvictionRechecksChangedPod checks that a pod that becomes ready between the check and the
// deletion is checked again, and counts against an exhausted budget.
func TestEvictionRechecksChangedPod(t *testing.T) {
	t.Parallel()
	budget := policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: "b"},
		Spec:       policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{}},
		Status:     policyv1.PodDisruptionBudgetStatus{CurrentHealthy: 1, DesiredHealthy: 1},
	}
	becomesReady := func(p *corev1.Pod) {
		p.Status.Phase = corev1.PodRunning
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	}
	evicted := func(err error) bool { return err == nil }
	for name, row := range map[string]struct {
		phase           corev1.PodPhase
		concurrentWrite func(*corev1.Pod)
		preconditions   *metav1.Preconditions
		want            func(error) bool
	}{
		"pending pod, no change":      {corev1.PodPending, nil, nil, evicted},
		"pending pod becomes ready":   {corev1.PodPending, becomesReady, nil, apierrors.IsTooManyRequests},
		"unhealthy pod, no change":    {corev1.PodRunning, nil, nil, evicted},
		"unhealthy pod becomes ready": {corev1.PodRunning, becomesReady, nil, apierrors.IsTooManyRequests},
		"unhealthy pod, unrelated change": {corev1.PodRunning,
			func(p *corev1.Pod) { p.Annotations = map[string]string{"a": "b"} }, nil, evicted},
		"terminated pod, unrelated change": {corev1.PodSucceeded,
			func(p *corev1.Pod) { p.Annotations = map[string]string{"a": "b"} }, nil, evicted},
		"pending pod changed, resource version given": {corev1.PodPending, func(*corev1.Pod) {},
			&metav1.Preconditions{ResourceVersion: new("1")}, apierrors.IsConflict},
		"other UID given": {corev1.PodPending, nil,
			&metav1.Preconditions{UID: new(types.UID("other"))}, apierrors.IsConflict},
	} {
		o := &fakeStorage{
			version: 1,
			pod: &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p", UID: "u", ResourceVersion: "1"},
				Status:     corev1.PodStatus{Phase: row.phase},
			},
		}
		if row.concurrentWrite != nil {
			o.concurrentWrite = func() { o.change(row.concurrentWrite) }
		}
		e := newEviction(o, budget)
		request := &policyv1.Eviction{
			ObjectMeta:    metav1.ObjectMeta{Name: "p"},
			DeleteOptions: &metav1.DeleteOptions{Preconditions: row.preconditions},
		}
		_, err := e.Create(genericapirequest.WithNamespace(t.Context(), "default"), "p", request, nil, nil)
		if !row.want(err) || (err == nil) != (o.pod == nil) {
			t.Errorf("%s: %v; pod exists: %v", name, err, o.pod != nil)
		}
	}
}

func newEviction(o *fakeStorage, budgets ...policyv1.PodDisruptionBudget) *Eviction {
	kind := &registry.Kind{New: func() runtime.Object { return &corev1.Pod{} }}
	kind.GroupVersion, kind.Resource = corev1.SchemeGroupVersion, "pods"
	store := &genericregistry.Store{
		NewFunc: kind.New, DefaultQualifiedResource: kind.GroupResource(),
		DeleteStrategy: podStrategy{registry.NewStrategy(kind, scheme.Scheme)},
		KeyFunc:        func(_ context.Context, name string) (string, error) { return name, nil },
		Storage:        genericregistry.DryRunnableStorage{Storage: o},
	}
	return &Eviction{pods: &registry.Store{Store: store, Kind: kind}, options: Options{
		ListBudgets: func(context.Context, string) ([]policyv1.PodDisruptionBudget, error) { return budgets, nil },
	}}
}
