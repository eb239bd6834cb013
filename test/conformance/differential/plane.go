package differential

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"berth/test/simnodes"
)

// stableTime is how long a difference must last without a change to be reported.
const stableTime = 12 * time.Second

// restTime is how long no object of a namespace changes before the namespace counts as at rest. Controllers react
// within milliseconds; the kube-controller-manager waits up to a second before it syncs a Job again.
const restTime = 2500 * time.Millisecond

// plane is one of the two control planes.
type plane struct {
	name      string
	client    kubernetes.Interface
	nodes     *simnodes.Nodes
	informers informers.SharedInformerFactory
	kinds     map[string]cache.GenericLister

	mu      sync.Mutex
	changed map[string]time.Time // last change of an object of a namespace
	steps   map[string][]string  // of the pods of StatefulSets, by namespace
}

func openPlane(ctx context.Context, name string, config *rest.Config) (*plane, error) {
	config = rest.CopyConfig(config)
	config.QPS, config.Burst = -1, 0
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	p := &plane{name: name, client: client, informers: informers.NewSharedInformerFactory(client, 0),
		kinds: map[string]cache.GenericLister{}, changed: map[string]time.Time{}, steps: map[string][]string{}}
	apps, batch, core := p.informers.Apps().V1(), p.informers.Batch().V1(), p.informers.Core().V1()
	for kind, informer := range map[string]cache.SharedIndexInformer{
		"Deployment": apps.Deployments().Informer(), "ReplicaSet": apps.ReplicaSets().Informer(),
		"StatefulSet": apps.StatefulSets().Informer(), "DaemonSet": apps.DaemonSets().Informer(),
		"ControllerRevision": apps.ControllerRevisions().Informer(), "Job": batch.Jobs().Informer(),
		"CronJob": batch.CronJobs().Informer(), "ReplicationController": core.ReplicationControllers().Informer(),
		"Pod": core.Pods().Informer(), "PersistentVolumeClaim": core.PersistentVolumeClaims().Informer(),
		"Event": core.Events().Informer(),
	} {
		p.kinds[kind] = cache.NewGenericLister(informer.GetIndexer(), corev1.Resource(kind))
		if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: p.changedObject,
			UpdateFunc: func(_, obj any) { p.changedObject(obj) }, DeleteFunc: p.changedObject}); err != nil {
			return nil, err
		}
	}
	if err := p.recordOrder(core.Pods().Informer()); err != nil {
		return nil, err
	}
	if err := p.followPods(ctx, core.Pods().Informer()); err != nil {
		return nil, err
	}
	p.nodes, err = simulatedNodes(client, p.informers)
	return p, err
}

func (p *plane) changedObject(obj any) {
	if gone, is := obj.(cache.DeletedFinalStateUnknown); is {
		obj = gone.Obj
	}
	accessor, err := meta.Accessor(obj)
	if err != nil || ignoredEvent(obj) {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.changed[accessor.GetNamespace()] = time.Now()
}

// touch makes the namespace count as changed now.
func (p *plane) touch(namespace string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.changed[namespace] = time.Now()
}

// atRest reports whether no object of the namespace has changed for the given time.
func (p *plane) atRest(namespace string, d time.Duration) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return time.Since(p.changed[namespace]) > d
}

// start starts the informers and waits until they have synced.
func (p *plane) start(ctx context.Context) error {
	if err := p.nodes.Register(ctx); err != nil {
		return fmt.Errorf("%s: %w", p.name, err)
	}
	p.informers.Start(ctx.Done())
	for kind, synced := range p.informers.WaitForCacheSync(ctx.Done()) {
		if !synced {
			return errors.Join(fmt.Errorf("%s: informer of %s has not synced", p.name, kind), ctx.Err())
		}
	}
	return nil
}

// objects returns the objects of a namespace.
func (p *plane) objects(namespace string) (out map[string][]runtime.Object, err error) {
	out = map[string][]runtime.Object{}
	for kind, lister := range p.kinds {
		list, err := lister.ByNamespace(namespace).List(labels.Everything())
		if err != nil {
			return nil, err
		}
		out[kind] = list
	}
	return out, nil
}

// waitForServiceAccount waits until pods can be created in a namespace. Before, a controller that is fast or slow would
// report failures that the other one does not have.
func (p *plane) waitForServiceAccount(ctx context.Context, namespace string) error {
	err := wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, restTimeout, true,
		func(ctx context.Context) (bool, error) {
			_, err := p.client.CoreV1().ServiceAccounts(namespace).Get(ctx, "default", metav1.GetOptions{})
			if apierrors.IsNotFound(err) {
				return false, nil
			}
			return err == nil, err
		})
	if err != nil {
		return fmt.Errorf("%s: wait for the service account of %s: %w", p.name, namespace, err)
	}
	return nil
}

// livePods returns the pods of a namespace that are not deleted.
func (p *plane) livePods(namespace string) (out []*corev1.Pod, err error) {
	pods, err := p.informers.Core().V1().Pods().Lister().Pods(namespace).List(labels.Everything())
	for _, pod := range pods {
		if pod.DeletionTimestamp == nil {
			out = append(out, pod)
		}
	}
	return out, err
}
