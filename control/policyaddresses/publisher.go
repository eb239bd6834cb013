package policyaddresses

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	corelisters "k8s.io/client-go/listers/core/v1"
	networkinglisters "k8s.io/client-go/listers/networking/v1"
	"k8s.io/client-go/tools/cache"

	"berth/services/policy/addresses"
	"berth/services/policy/selection"
)

const (
	// settleDelay collects changes, which come in bursts.
	settleDelay = 5 * time.Millisecond
	// unusedDelay is how long the objects of a group stay after the last policy that refers to it, so
	// that a node has received the change of the policy before.
	unusedDelay = 5 * time.Second
)

// Publisher computes the objects. See New.
type Publisher struct {
	factory    informers.SharedInformerFactory
	start      func()
	pods       corelisters.PodLister
	namespaces corelisters.NamespaceLister
	policies   networkinglisters.NetworkPolicyLister
	journal    *journal
	synced     chan struct{} // closed when the first objects are complete
	changed    chan struct{} // capacity 1

	mu    sync.Mutex
	index *selection.Index
	// active is true while there are policies. Otherwise, the index has neither pods nor namespaces.
	active    bool
	published *addresses.Publisher
	completed sync.Once
}

// New returns a Publisher that uses informers of the factory. startInformers starts those that are new.
func New(factory informers.SharedInformerFactory, startInformers func(), now time.Time) *Publisher {
	// A later server has higher versions: it would need a million changes per millisecond to reach them.
	const changesPerMillisecond = 1 << 20
	return &Publisher{
		factory: factory, start: startInformers, journal: newJournal(uint64(now.UnixMilli()) * changesPerMillisecond),
		pods: factory.Core().V1().Pods().Lister(), namespaces: factory.Core().V1().Namespaces().Lister(),
		policies: factory.Networking().V1().NetworkPolicies().Lister(),
		synced:   make(chan struct{}), changed: make(chan struct{}, 1),
		index: selection.New(), published: addresses.NewPublisher(),
	}
}

// Run follows the informers until ctx is done.
func (p *Publisher) Run(ctx context.Context) error {
	var synced []cache.InformerSynced
	for _, of := range []struct {
		informer cache.SharedIndexInformer
		changed  func(namespace, name string)
	}{
		{p.factory.Networking().V1().NetworkPolicies().Informer(), p.policyChanged},
		{p.factory.Core().V1().Namespaces().Informer(), p.namespaceChanged},
		{p.factory.Core().V1().Pods().Informer(), p.podChanged},
	} {
		registration, err := of.informer.AddEventHandler(handler(of.changed))
		if err != nil {
			return fmt.Errorf("add event handler: %w", err)
		}
		defer func() { _ = of.informer.RemoveEventHandler(registration) }() // fails only if it is stopped
		synced = append(synced, registration.HasSynced)
	}
	p.start()
	if !cache.WaitForCacheSync(ctx.Done(), synced...) {
		return nil
	}
	p.publish()
	p.completed.Do(func() { close(p.synced) })
	var unused <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-p.changed:
			if p.publish() && unused == nil {
				unused = time.After(unusedDelay)
			}
		case <-unused:
			unused = nil
			p.removeUnused()
			continue
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(settleDelay):
		}
	}
}

// handler calls changed with the names of objects that have changed. The state of an object is read from
// the informer, which can be newer than the event.
func handler(changed func(namespace, name string)) cache.ResourceEventHandler {
	notify := func(obj any) {
		if tombstone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
			obj = tombstone.Obj
		}
		if m, ok := obj.(metav1.Object); ok {
			changed(m.GetNamespace(), m.GetName())
		}
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc: notify, UpdateFunc: func(_, obj any) { notify(obj) }, DeleteFunc: notify,
	}
}

func (p *Publisher) notify() {
	select {
	case p.changed <- struct{}{}:
	default:
	}
}

// policyChanged applies the present state of a policy.
func (p *Publisher) policyChanged(namespace, name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	np, err := p.policies.NetworkPolicies(namespace).Get(name)
	if err != nil {
		p.index.DeletePolicy(types.NamespacedName{Namespace: namespace, Name: name})
	} else {
		p.setPolicy(np)
	}
	switch {
	case p.index.Policies() > 0 && !p.active:
		p.activate()
	case p.index.Policies() == 0 && p.active:
		p.active, p.index = false, selection.New()
	}
	p.notify()
}

// setPolicy adds or replaces a policy. Its invalid parts select nothing, here as on nodes.
func (p *Publisher) setPolicy(np *networkingv1.NetworkPolicy) {
	compact, _ := selection.FromNetworkPolicy(np)
	p.index.SetPolicy(compact)
}

// activate adds all namespaces and pods.
func (p *Publisher) activate() {
	p.active = true
	namespaces, _ := p.namespaces.List(labels.Everything()) // a lister of an informer has no error
	for _, ns := range namespaces {
		p.index.SetNamespace(ns.Name, selection.MakeLabels(ns.Labels))
	}
	pods, _ := p.pods.List(labels.Everything())
	for _, pod := range pods {
		p.setPod(pod)
	}
}

// setPod adds or replaces a pod. It reports whether that changes anything.
func (p *Publisher) setPod(pod *corev1.Pod) bool { return p.index.SetPod(selection.FromPod(pod)) }

func (p *Publisher) namespaceChanged(_, name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.active {
		return
	}
	var changed bool
	if ns, err := p.namespaces.Get(name); err == nil {
		changed = p.index.SetNamespace(name, selection.MakeLabels(ns.Labels))
	} else {
		changed = p.index.DeleteNamespace(name)
	}
	if changed {
		p.notify()
	}
}

func (p *Publisher) podChanged(namespace, name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.active {
		return
	}
	var changed bool
	if pod, err := p.pods.Pods(namespace).Get(name); err == nil {
		changed = p.setPod(pod)
	} else {
		changed = p.index.DeletePod(types.NamespacedName{Namespace: namespace, Name: name})
	}
	if changed {
		p.notify()
	}
}

// publish publishes the changes. It reports whether groups are unused.
func (p *Publisher) publish() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.journal.apply(p.published.Update(p.index.Take(), p.index))
	return p.published.Unused()
}

func (p *Publisher) removeUnused() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.journal.apply(p.published.RemoveUnused())
}
