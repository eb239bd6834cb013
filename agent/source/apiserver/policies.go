package apiserver

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"berth/internal/apiclient"
	"berth/services/policy"
	"berth/services/policy/addresses"
	addressesv1 "berth/services/policy/addresses/v1"
	"berth/services/policy/selection"
)

// policyWatch feeds a policy.Store. It watches the addresses that policies select, or the pods and
// namespaces of the cluster, only when the first policy exists, and passes policies on when these are
// known: before that, a policy would select no pod.
type policyWatch struct {
	s     *Source
	store *policy.Store

	mu      sync.Mutex
	started bool                                       // addresses, or pods and namespaces, are watched
	listed  [2]bool                                    // pods and namespaces are known, or both: addresses
	held    map[types.NamespacedName]*selection.Policy // until they are listed
	failed  atomic.Bool
	// forbidden counts failures since the last success. See recordError.
	forbidden int

	// receiver is nil if pods and namespaces are watched.
	receiver *addresses.Receiver
	// pending has policies whose addresses the server has not published yet. A changed policy stays in
	// force as it was.
	pending map[types.NamespacedName]*selection.Policy
	waiting chan struct{} // capacity 1; signaled when there are pending policies
}

// publishTimeout limits how long a policy waits for its addresses. After it, the policy allows only the
// peers that are known.
const publishTimeout = 2 * time.Second

// watchPolicies watches the NetworkPolicies when they are needed.
func (s *Source) watchPolicies() {
	var published bool
	select {
	case <-s.ctx.Done():
		return
	case published = <-s.opt.PoliciesNeeded:
	}
	w := &policyWatch{
		s: s, store: s.opt.Policies, held: map[types.NamespacedName]*selection.Policy{},
		pending: map[types.NamespacedName]*selection.Policy{}, waiting: make(chan struct{}, 1),
	}
	if published {
		w.receiver = addresses.NewReceiver(w.store)
	}
	s.opt.Client.Watch(s.ctx, apiclient.WatchOptions{
		Resource: apiclient.NetworkPolicies, Transform: trimMeta,
		OnReplace: func(list []runtime.Object) {
			all := make(map[types.NamespacedName]*selection.Policy, len(list))
			for _, o := range list {
				if p := w.convert(o); p != nil {
					all[p.Name] = p
				}
			}
			w.replace(all)
		},
		OnUpdate: func(o runtime.Object) {
			if p := w.convert(o); p != nil {
				w.set(p)
			}
		},
		OnDelete: func(o runtime.Object) { w.remove(nameOf(o)) },
		OnError:  w.recordError,
	})
}

// finalFailures is the number of refused requests after which the permission counts as missing. A server
// that is starting can refuse a few.
const finalFailures = 6

func (w *policyWatch) recordError(err error) {
	if !w.failed.Swap(true) {
		w.s.opt.Log.Warn("network policies could not be read, the last known ones remain in force", "err", err)
	}
	if !apierrors.IsForbidden(err) {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.forbidden++; w.forbidden == finalFailures {
		w.store.SetUnreadable(fmt.Errorf("the node is not permitted to read the policies: %w", err))
	}
}

// succeeded records that a kind was listed. The caller holds the lock.
func (w *policyWatch) succeeded() {
	w.failed.Store(false)
	w.forbidden = 0
}

func (w *policyWatch) convert(o runtime.Object) *selection.Policy {
	np, _ := o.(*networkingv1.NetworkPolicy)
	p, err := selection.FromNetworkPolicy(np)
	if err != nil { // a field that the API server does not permit allows nothing
		w.s.opt.Log.Warn("network policy has an invalid field, which allows nothing", "policy", nameOf(o), "err", err)
	}
	return p
}

func nameOf(o runtime.Object) types.NamespacedName {
	m, _ := o.(metav1.Object)
	return types.NamespacedName{Namespace: m.GetNamespace(), Name: m.GetName()}
}

// replace takes over the complete list of policies.
func (w *policyWatch) replace(all map[types.NamespacedName]*selection.Policy) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.succeeded()
	switch {
	case len(all) == 0 && !w.started: // addresses, pods and namespaces do not matter
		if w.receiver != nil {
			w.store.ReplaceGroups(nil)
		} else {
			w.store.ReplacePods(nil)
			w.store.ReplaceNamespaces(nil)
		}
		w.store.ReplacePolicies(nil)
	case w.ready():
		w.replaceReady(all)
	default:
		w.held = all
		w.start()
	}
}

// replaceReady passes the complete list of policies on, except those that wait for addresses. The caller
// holds the lock.
func (w *policyWatch) replaceReady(all map[types.NamespacedName]*selection.Policy) {
	clear(w.pending)
	var now []*selection.Policy
	for name, p := range all {
		if w.complete(p) {
			now = append(now, p)
			continue
		}
		w.wait(p)
		if old := w.store.Policy(name); old != nil {
			now = append(now, old)
		}
	}
	w.store.ReplacePolicies(now)
}

// complete reports whether the server has published the addresses of a policy.
func (w *policyWatch) complete(p *selection.Policy) bool {
	return w.receiver == nil || w.receiver.Complete(p)
}

// wait lets a policy wait for its addresses. The caller holds the lock.
func (w *policyWatch) wait(p *selection.Policy) {
	w.pending[p.Name] = p
	select {
	case w.waiting <- struct{}{}:
	default:
	}
}

func (w *policyWatch) set(p *selection.Policy) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case !w.ready():
		w.held[p.Name] = p
		w.start()
	case w.complete(p):
		delete(w.pending, p.Name)
		w.store.SetPolicy(p)
	default:
		w.wait(p)
	}
}

func (w *policyWatch) remove(name types.NamespacedName) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.held, name)
	delete(w.pending, name)
	w.store.DeletePolicy(name)
}

// ready reports whether addresses, or pods and namespaces, are known. The caller holds the lock.
func (w *policyWatch) ready() bool { return w.started && w.listed[0] && w.listed[1] }

// start watches addresses, or pods and namespaces. The caller holds the lock.
func (w *policyWatch) start() {
	if w.started {
		return
	}
	w.started = true
	if w.receiver != nil {
		w.s.wg.Go(w.watchAddresses)
		w.s.wg.Go(w.endWaits)
		return
	}
	w.s.wg.Go(w.watchAllPods)
	w.s.wg.Go(w.watchNamespaces)
}

// watchAddresses watches the addresses that policies select.
func (w *policyWatch) watchAddresses() {
	locked := func(apply func()) {
		w.mu.Lock()
		defer w.mu.Unlock()
		apply()
		w.passOn(w.complete)
	}
	convert := func(o runtime.Object) *addressesv1.NetworkPolicyAddresses {
		a, _ := o.(*addressesv1.NetworkPolicyAddresses)
		return a
	}
	w.s.opt.Client.Watch(w.s.ctx, apiclient.WatchOptions{
		Resource: apiclient.NetworkPolicyAddresses,
		OnReplace: func(list []runtime.Object) {
			all := make([]*addressesv1.NetworkPolicyAddresses, 0, len(list))
			for _, o := range list {
				all = append(all, convert(o))
			}
			locked(func() {
				w.succeeded()
				w.receiver.Replace(all)
				if !w.ready() {
					w.listed = [2]bool{true, true}
					w.replaceReady(w.held)
					w.held = map[types.NamespacedName]*selection.Policy{}
				}
			})
		},
		OnUpdate: func(o runtime.Object) { locked(func() { w.receiver.Set(convert(o)) }) },
		OnDelete: func(o runtime.Object) { locked(func() { w.receiver.Delete(nameOf(o).Name) }) },
		OnError:  w.recordError,
	})
}

// passOn passes pending policies on. The caller holds the lock.
func (w *policyWatch) passOn(ready func(*selection.Policy) bool) {
	for name, p := range w.pending {
		if ready(p) {
			delete(w.pending, name)
			w.store.SetPolicy(p)
		}
	}
}

// endWaits passes policies on whose addresses are not published in time.
func (w *policyWatch) endWaits() {
	for {
		select {
		case <-w.s.ctx.Done():
			return
		case <-w.waiting:
		}
		select {
		case <-w.s.ctx.Done():
			return
		case <-time.After(publishTimeout):
		}
		w.mu.Lock()
		if n := len(w.pending); n > 0 {
			w.s.opt.Log.Warn("addresses of network policies are not published in time; they allow only known peers",
				"policies", n)
		}
		w.passOn(func(*selection.Policy) bool { return true })
		w.mu.Unlock()
	}
}

// listedOne records that a kind is known, and passes the held policies on when both are.
func (w *policyWatch) listedOne(kind int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.succeeded()
	first := !w.ready()
	if w.listed[kind] = true; first && w.ready() {
		w.store.ReplacePolicies(slices.Collect(maps.Values(w.held)))
		w.held = map[types.NamespacedName]*selection.Policy{}
	}
}

// watchAllPods watches the pods of the cluster.
func (w *policyWatch) watchAllPods() {
	convert := func(o runtime.Object) *selection.Pod {
		pod, _ := o.(*corev1.Pod)
		return selection.FromPod(pod)
	}
	w.s.opt.Client.Watch(w.s.ctx, apiclient.WatchOptions{
		Resource: apiclient.Pods, Transform: trimPod,
		OnReplace: func(list []runtime.Object) {
			all := make([]*selection.Pod, 0, len(list))
			for _, o := range list {
				all = append(all, convert(o))
			}
			w.store.ReplacePods(all)
			w.listedOne(0)
		},
		OnUpdate: func(o runtime.Object) { w.store.SetPod(convert(o)) },
		OnDelete: func(o runtime.Object) { w.store.DeletePod(nameOf(o)) },
		OnError:  w.recordError,
	})
}

// watchNamespaces watches the namespaces of the cluster.
func (w *policyWatch) watchNamespaces() {
	labelsOf := func(o runtime.Object) selection.Labels {
		n, _ := o.(*corev1.Namespace)
		return selection.MakeLabels(n.Labels)
	}
	w.s.opt.Client.Watch(w.s.ctx, apiclient.WatchOptions{
		Resource: apiclient.Namespaces, Transform: trimMeta,
		OnReplace: func(list []runtime.Object) {
			all := make(map[string]selection.Labels, len(list))
			for _, o := range list {
				all[nameOf(o).Name] = labelsOf(o)
			}
			w.store.ReplaceNamespaces(all)
			w.listedOne(1)
		},
		OnUpdate: func(o runtime.Object) { w.store.SetNamespace(nameOf(o).Name, labelsOf(o)) },
		OnDelete: func(o runtime.Object) { w.store.DeleteNamespace(nameOf(o).Name) },
		OnError:  w.recordError,
	})
}

// trimPod removes what a policy does not need of a pod.
func trimPod(o runtime.Object) {
	if pod, ok := o.(*corev1.Pod); ok {
		selection.TrimPod(pod)
	}
}

// trimMeta removes metadata that is not used, to save memory while a list is decoded.
func trimMeta(o runtime.Object) {
	if m, ok := o.(metav1.Object); ok {
		m.SetManagedFields(nil)
		m.SetAnnotations(nil)
	}
}
