package scheduler

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"berth/control/scheduler/placement"
)

// DefaultName is the scheduler that a pod has when it names none.
const DefaultName = corev1.DefaultSchedulerName

// maxConcurrentCalls at once to the server.
const maxConcurrentCalls = 32

// Config is what a scheduler needs.
type Config struct {
	// Name: pods whose schedulerName is another are left alone. Empty: DefaultName.
	Name      string
	Client    kubernetes.Interface
	Informers informers.SharedInformerFactory // started by its owner
	Events    record.EventRecorder
	Log       *slog.Logger
}

// Scheduler gives pods their nodes.
type Scheduler struct {
	Config

	inbox        inbox
	cluster      *placement.Cluster // of Run's goroutine, as all below
	queue        *queue
	ctx          context.Context //nolint:containedctx // Run's, for the calls that its goroutine begins
	pendingCalls sync.WaitGroup
	callSlots    chan struct{}
	cachesSynced []cache.InformerSynced
	unregister   []func() // ends the watches
}

// New registers with the informers; nothing happens before Run.
func New(config Config) (*Scheduler, error) {
	if config.Name == "" {
		config.Name = DefaultName
	}
	s := &Scheduler{
		Config: config, cluster: placement.NewCluster(), queue: newQueue(),
		callSlots: make(chan struct{}, maxConcurrentCalls), inbox: inbox{wake: make(chan struct{}, 1)},
	}
	core := config.Informers.Core().V1()
	for _, watch := range []struct {
		of  cache.SharedIndexInformer
		see cache.ResourceEventHandlerFuncs
	}{
		{core.Pods().Informer(), eventHandlers(s, s.podUpdated, s.podDeleted)},
		{core.Nodes().Informer(), eventHandlers(s, s.nodeUpdated, s.nodeDeleted)},
		{core.Namespaces().Informer(), eventHandlers(s, s.namespaceUpdated, s.namespaceDeleted)},
		{core.PersistentVolumeClaims().Informer(), eventHandlers(s, s.claimUpdated, func(*corev1.PersistentVolumeClaim) {})},
		{core.PersistentVolumes().Informer(), eventHandlers(s, s.volumeUpdated, func(*corev1.PersistentVolume) {})},
	} {
		reg, err := watch.of.AddEventHandler(watch.see)
		if err != nil {
			return nil, fmt.Errorf("watch for the scheduler: %w", err)
		}
		s.cachesSynced = append(s.cachesSynced, reg.HasSynced)
		s.unregister = append(s.unregister, func() { _ = watch.of.RemoveEventHandler(reg) }) // an error says that it is stopped
	}
	budgets := config.Informers.Policy().V1().PodDisruptionBudgets().Informer()
	s.cachesSynced = append(s.cachesSynced, budgets.HasSynced)
	return s, nil
}

// Run schedules until the context ends, once, and waits for its calls to the server.
func (s *Scheduler) Run(ctx context.Context) {
	defer s.pendingCalls.Wait()
	defer func() {
		for _, leave := range s.unregister {
			leave()
		}
	}()
	s.ctx = ctx
	if !cache.WaitForCacheSync(ctx.Done(), s.cachesSynced...) {
		return
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		for ctx.Err() == nil && (s.inbox.deliver() || s.scheduleOne()) {
		}
		if next := s.queue.flush(time.Now()); !next.IsZero() {
			timer.Reset(time.Until(next))
		}
		if len(s.queue.active) > 0 && ctx.Err() == nil {
			continue
		}
		select {
		case <-ctx.Done():
			return
		case <-s.inbox.wake:
		case <-timer.C:
		}
	}
}

// scheduleOne looks for a node for the pod whose turn it is; false: no pod's.
func (s *Scheduler) scheduleOne() bool {
	e := s.queue.pop(time.Now())
	if e == nil {
		return false
	}
	volumes, wait := s.volumeAffinities(e.pod)
	if wait != "" {
		s.handleFailure(e, s.cluster.Unschedulable(wait), nil)
		return true
	}
	choice := s.cluster.Schedule(e.pod, volumes...)
	if choice.Node == "" {
		s.handleFailure(e, choice, volumes)
		return true
	}
	placed := e.pod.DeepCopy()
	placed.Spec.NodeName = choice.Node
	s.cluster.AddPod(placed)
	s.call(func(ctx context.Context) {
		e.callMu.Lock() // what an earlier attempt is just writing comes first
		defer e.callMu.Unlock()
		s.bind(ctx, placed, choice)
	})
	return true
}

// handleFailure says why, makes room if more important pods may, and lets the pod wait.
func (s *Scheduler) handleFailure(e *queuedPod, choice placement.Result, volumes []*corev1.NodeSelector) {
	pod, message := e.pod, choice.Message()
	nominated := pod.Status.NominatedNodeName
	if choice.NodeCount > 0 {
		p := s.cluster.Preempt(pod, choice, s.budgets(), volumes...)
		switch {
		case p.Node != "":
			nominated = p.Node
			s.callIfCurrent(e, func(ctx context.Context) { s.evictVictims(ctx, pod, p) })
		case !p.VictimsTerminating:
			nominated = ""
		}
		if p.Message != "" {
			message += " preemption: " + p.Message
		}
	}
	s.cluster.Nominate(pod.UID, pod, nominated)
	s.queue.addUnschedulable(e, choice.RejectedBy(), time.Now())
	s.callIfCurrent(e, func(ctx context.Context) { s.recordFailure(ctx, pod, nominated, message) })
}

// callIfCurrent calls the server about a pod that has no node, to write why or to end who is
// in its way, unless by then it has had another turn or is forgotten: it may be bound.
func (s *Scheduler) callIfCurrent(e *queuedPod, do func(context.Context)) {
	turn := e.attempt.Load()
	s.call(func(ctx context.Context) {
		e.callMu.Lock()
		defer e.callMu.Unlock()
		if e.attempt.Load() == turn {
			do(ctx)
		}
	})
}

// call runs a call to the server on its own goroutine, which Run waits for.
func (s *Scheduler) call(do func(context.Context)) {
	s.pendingCalls.Go(func() {
		select {
		case s.callSlots <- struct{}{}:
			defer func() { <-s.callSlots }()
			do(s.ctx)
		case <-s.ctx.Done():
		}
	})
}

// bindingDone is told when the server has answered a binding.
func (s *Scheduler) bindingDone(uid types.UID, err error) {
	if err == nil {
		return // the watch will show it; until then the pod stays assumed
	}
	if _, still := s.queue.entries[uid]; still {
		s.cluster.RemovePod(uid)
		s.queue.requeueAfterFailure(uid, time.Now())
		s.queue.requeueRejectedBy(time.Now(), podFilters...)
	}
}

// inbox holds what Run's goroutine is to do, in order, without a limit: who
// watches never waits for who schedules.
type inbox struct {
	mu   sync.Mutex
	todo []func()
	wake chan struct{} // holds one
}

func (in *inbox) post(do func()) {
	in.mu.Lock()
	in.todo = append(in.todo, do)
	in.mu.Unlock()
	select {
	case in.wake <- struct{}{}:
	default:
	}
}

// deliver does what there is to do; false: nothing was.
func (in *inbox) deliver() bool {
	in.mu.Lock()
	todo := in.todo
	in.todo = nil
	in.mu.Unlock()
	for _, do := range todo {
		do()
	}
	return len(todo) > 0
}
