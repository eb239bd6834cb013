package simnodes

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	informers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	listers "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/retry"
	"k8s.io/client-go/util/workqueue"
)

const (
	workers = 8
	// Leases last leaseSeconds and are renewed every renewInterval, as by a kubelet.
	leaseSeconds  = 40
	renewInterval = 10 * time.Second
)

// Options describe the simulated nodes.
type Options struct {
	Names []string
	// Labels are further labels of a node, beside kubernetes.io/hostname. Nil: none.
	Labels func(name string) map[string]string
	// Capacity is the capacity and the allocatable amount of each node. Nil: more than tests need.
	Capacity corev1.ResourceList
	// Report sets the status of a new pod. Nil: Serve.
	Report func(*corev1.Pod)
}

// Nodes are simulated nodes.
type Nodes struct {
	Options
	client kubernetes.Interface
	pods   listers.PodLister
	queue  workqueue.TypedRateLimitingInterface[string]
}

// New returns nodes that watch pods with the informer. The caller starts the informer, after New.
func New(client kubernetes.Interface, pods informers.PodInformer, o Options) (*Nodes, error) {
	if o.Report == nil {
		o.Report = Serve
	}
	if o.Capacity == nil {
		o.Capacity = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1000"),
			corev1.ResourceMemory: resource.MustParse("1000Gi"), corev1.ResourcePods: resource.MustParse("10000")}
	}
	n := &Nodes{Options: o, client: client, pods: pods.Lister(),
		queue: workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[string]())}
	add := func(obj any) {
		if key, err := cache.MetaNamespaceKeyFunc(obj); err == nil {
			n.queue.Add(key)
		}
	}
	_, err := pods.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: add,
		UpdateFunc: func(_, obj any) { add(obj) }})
	if err != nil {
		return nil, fmt.Errorf("watch pods: %w", err)
	}
	return n, nil
}

// Register creates the Nodes, which are ready, and their leases. Those that exist are updated.
func (n *Nodes) Register(ctx context.Context) error {
	for _, name := range n.Names {
		if err := n.register(ctx, name); err != nil {
			return fmt.Errorf("register node %s: %w", name, err)
		}
	}
	return nil
}

func (n *Nodes) register(ctx context.Context, name string) error {
	nodes := n.client.CoreV1().Nodes()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name,
		Labels: map[string]string{corev1.LabelHostname: name}}}
	if n.Labels != nil {
		maps.Copy(node.Labels, n.Labels(name))
	}
	if _, err := nodes.Create(ctx, node, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	if err := n.renewLease(ctx, name); err != nil {
		return err
	}
	return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		node, err := nodes.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		node.Status = corev1.NodeStatus{Capacity: n.Capacity, Allocatable: n.Capacity,
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue,
				Reason: "KubeletReady", LastHeartbeatTime: metav1.Now(), LastTransitionTime: metav1.Now()}}}
		_, err = nodes.UpdateStatus(ctx, node, metav1.UpdateOptions{})
		return err
	})
}

func (n *Nodes) renewLease(ctx context.Context, name string) error {
	leases := n.client.CoordinationV1().Leases(corev1.NamespaceNodeLease)
	now, seconds := metav1.NowMicro(), int32(leaseSeconds)
	spec := coordinationv1.LeaseSpec{HolderIdentity: &name, LeaseDurationSeconds: &seconds, RenewTime: &now}
	lease, err := leases.Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		_, err = leases.Create(ctx, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec},
			metav1.CreateOptions{})
		return err
	}
	if err != nil {
		return err
	}
	lease.Spec = spec
	_, err = leases.Update(ctx, lease, metav1.UpdateOptions{})
	return err
}

// Run reports the status of pods and renews the leases until ctx ends. It must be called once.
func (n *Nodes) Run(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	defer n.queue.ShutDown()
	for range workers {
		wg.Go(func() {
			for n.next(ctx) {
			}
		})
	}
	renew := time.NewTicker(renewInterval)
	defer renew.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-renew.C:
			for _, name := range n.Names {
				_ = n.renewLease(ctx, name) // the next renewal follows
			}
		}
	}
}

func (n *Nodes) next(ctx context.Context) bool {
	key, shutdown := n.queue.Get()
	if shutdown {
		return false
	}
	defer n.queue.Done(key)
	if err := n.sync(ctx, key); err != nil && ctx.Err() == nil {
		n.queue.AddRateLimited(key)
		return true
	}
	n.queue.Forget(key)
	return true
}

// sync reports the status of one pod, or removes it if it is deleted.
func (n *Nodes) sync(ctx context.Context, key string) error {
	namespace, name, _ := strings.Cut(key, "/")
	pod, err := n.pods.Pods(namespace).Get(name)
	if err != nil || pod.Spec.NodeName == "" {
		return nil //nolint:nilerr // deleted
	}
	pods := n.client.CoreV1().Pods(namespace)
	if pod.DeletionTimestamp != nil {
		// A server that is killed during the removal leaves a pod with a grace period of 0.
		if grace := pod.DeletionGracePeriodSeconds; grace != nil && *grace == 0 && len(pod.Finalizers) > 0 {
			return nil
		}
		err := pods.Delete(ctx, name, metav1.DeleteOptions{GracePeriodSeconds: new(int64),
			Preconditions: &metav1.Preconditions{UID: &pod.UID}})
		if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
			return nil
		}
		return err
	}
	if pod.Status.Phase != corev1.PodPending {
		return nil
	}
	pod = pod.DeepCopy()
	n.Report(pod)
	_, err = pods.UpdateStatus(ctx, pod, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
