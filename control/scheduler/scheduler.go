package scheduler

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"berth/control/scheduler/placement"
	"berth/podspec"
)

// DefaultName is the scheduler of pods without a schedulerName.
const DefaultName = corev1.DefaultSchedulerName

// maxConcurrentCalls limits the concurrent calls to the API server.
const maxConcurrentCalls = 32

// flushInterval is the time between two flushes of the queue and updates of gauges while there is always something to
// do, as in kube-scheduler.
const flushInterval = time.Second

// Config holds the dependencies of a scheduler.
type Config struct {
	// Name selects the pods by schedulerName. Empty means DefaultName.
	Name      string
	Client    kubernetes.Interface
	Informers informers.SharedInformerFactory // started by the caller
	Events    record.EventRecorder
	Log       *slog.Logger
}

// Scheduler assigns pods to nodes.
type Scheduler struct {
	Config

	inbox        inbox
	cluster      *placement.Cluster // owned by Run's goroutine, as are the fields below
	queue        *queue
	ctx          context.Context //nolint:containedctx // the ctx of Run, for API calls
	pendingCalls sync.WaitGroup
	callSlots    chan struct{}
	// volumeBindings are the pods with a node whose claims are being bound.
	volumeBindings map[types.UID]*volumeBinding
	cachesSynced   []cache.InformerSynced
	unregister     []func() // removes the event handlers
}

// New registers handlers with the informers. Scheduling starts with Run.
func New(config Config) (*Scheduler, error) {
	registerMetrics()
	if config.Name == "" {
		config.Name = DefaultName
	}
	s := &Scheduler{
		Config: config, cluster: placement.NewCluster(), queue: newQueue(),
		callSlots: make(chan struct{}, maxConcurrentCalls), inbox: inbox{wake: make(chan struct{}, 1)},
		volumeBindings: map[types.UID]*volumeBinding{},
	}
	core, storage := config.Informers.Core().V1(), config.Informers.Storage().V1()
	for _, watch := range []struct {
		informer cache.SharedIndexInformer
		handlers cache.ResourceEventHandlerFuncs
	}{
		{core.Pods().Informer(), eventHandlers(s, s.podUpdated, s.podDeleted)},
		{core.Nodes().Informer(), eventHandlers(s, s.nodeUpdated, s.nodeDeleted)},
		{core.Namespaces().Informer(), eventHandlers(s, s.namespaceUpdated, s.namespaceDeleted)},
		{core.PersistentVolumeClaims().Informer(),
			eventHandlers(s, s.claimUpdated, func(*corev1.PersistentVolumeClaim) {})},
		{core.PersistentVolumes().Informer(), eventHandlers(s, s.volumeUpdated, func(*corev1.PersistentVolume) {})},
		{storage.StorageClasses().Informer(), eventHandlers(s, s.classUpdated, func(*storagev1.StorageClass) {})},
		{storage.CSINodes().Informer(), eventHandlers(s,
			func(_, _ *storagev1.CSINode) { s.driversChanged(eventCSINode) }, func(*storagev1.CSINode) {})},
		{storage.CSIDrivers().Informer(), eventHandlers(s,
			func(_, _ *storagev1.CSIDriver) { s.driversChanged(eventDriver) },
			func(*storagev1.CSIDriver) { s.driversChanged(eventDriver) })},
		{storage.CSIStorageCapacities().Informer(), eventHandlers(s,
			func(_, _ *storagev1.CSIStorageCapacity) { s.driversChanged(eventCapacity) },
			func(*storagev1.CSIStorageCapacity) {})},
		{storage.VolumeAttachments().Informer(), eventHandlers(s, func(_, _ *storagev1.VolumeAttachment) {},
			func(*storagev1.VolumeAttachment) { s.driversChanged(eventAttachmentDelete) })},
	} {
		reg, err := watch.informer.AddEventHandler(watch.handlers)
		if err != nil {
			return nil, fmt.Errorf("add event handler: %w", err)
		}
		s.cachesSynced = append(s.cachesSynced, reg.HasSynced)
		// fails only if the informer is stopped
		s.unregister = append(s.unregister, func() { _ = watch.informer.RemoveEventHandler(reg) })
	}
	budgets := config.Informers.Policy().V1().PodDisruptionBudgets().Informer()
	s.cachesSynced = append(s.cachesSynced, budgets.HasSynced)
	for _, informer := range s.siblingInformers() {
		s.cachesSynced = append(s.cachesSynced, informer.HasSynced)
	}
	return s, nil
}

// Run schedules pods until ctx is done and waits for pending API calls. It must be called once.
func (s *Scheduler) Run(ctx context.Context) {
	defer s.pendingCalls.Wait()
	defer func() {
		for _, unregister := range s.unregister {
			unregister()
		}
	}()
	s.ctx = ctx
	if !cache.WaitForCacheSync(ctx.Done(), s.cachesSynced...) {
		return
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	defer resetState()
	for {
		flushed := time.Now()
		for ctx.Err() == nil && s.work() {
			if now := time.Now(); now.Sub(flushed) >= flushInterval {
				s.queue.flush(now) // a pod whose backoff has ended may have a higher priority than the active ones
				s.observeState()
				flushed = now
			}
		}
		s.observeState()
		next := s.checkVolumeBindings(time.Now())
		if flush := s.queue.flush(time.Now()); next.IsZero() || !flush.IsZero() && flush.Before(next) {
			next = flush
		}
		if !next.IsZero() {
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

// work handles the events and makes one attempt. It reports false if there was nothing to do.
func (s *Scheduler) work() bool {
	delivered := s.inbox.deliver()
	return s.scheduleOne() || delivered
}

// scheduleOne makes one attempt for the next active pod. It reports false if there is none.
func (s *Scheduler) scheduleOne() bool {
	start := time.Now()
	qp := s.queue.pop(start)
	if qp == nil {
		return false
	}
	this := attempt{start: start, queued: qp.activeSince, attempts: qp.attempts}
	with, reason := s.podVolumes(qp.pod)
	if reason != "" {
		s.handleFailure(qp, s.cluster.Unschedulable(reason), placement.Related{})
		s.observeAttempt(this, resultUnschedulable)
		return true
	}
	with.Siblings = s.siblings(qp.pod)
	result := s.cluster.Schedule(qp.pod, with)
	algorithmDuration.Observe(time.Since(start).Seconds())
	if result.Node == "" {
		s.handleFailure(qp, result, with)
		s.observeAttempt(this, resultUnschedulable)
		return true
	}
	assumed := qp.pod.DeepCopy()
	assumed.Spec.NodeName = result.Node
	s.cluster.AddPod(assumed)
	if len(result.Volumes.Bind)+len(result.Volumes.Provision) > 0 {
		s.bindVolumes(&volumeBinding{queued: qp, pod: assumed, result: result, attempt: this})
		return true
	}
	s.startBinding(qp, assumed, result, this)
	return true
}

// startBinding binds a pod to its node in the background.
func (s *Scheduler) startBinding(qp *queuedPod, assumed *corev1.Pod, result placement.Result, this attempt) {
	s.call(func(ctx context.Context) {
		qp.callMu.Lock() // after a pending call of an earlier attempt
		defer qp.callMu.Unlock()
		s.bind(ctx, assumed, result, this)
	})
}

// handleFailure tries preemption, records the failure and marks the pod as unschedulable.
func (s *Scheduler) handleFailure(qp *queuedPod, result placement.Result, with placement.Related) {
	pod, message, nominated := qp.pod, result.Message(), ""
	if result.NodeCount > 0 {
		p := s.cluster.Preempt(pod, result, s.budgets(), with)
		observePreemption(p)
		nominated = p.Nominated(pod)
		if p.Node != "" {
			s.clearNominations(pod, p.Node)
			s.callIfCurrent(qp, func(ctx context.Context) { s.evictVictims(ctx, pod, p) })
		}
		if p.Message != "" {
			message += " preemption: " + p.Message
		}
	}
	s.cluster.Nominate(pod.UID, pod, nominated)
	s.queue.addUnschedulable(qp, result.RejectedBy(), time.Now())
	s.callIfCurrent(qp, func(ctx context.Context) { s.recordFailure(ctx, pod, nominated, message) })
}

// clearNominations removes the nominations of pods of a lower priority than the preemptor for its node: they may not
// fit there any more. The update of such a pod makes it active.
func (s *Scheduler) clearNominations(preemptor *corev1.Pod, node string) {
	for _, pod := range s.cluster.NominatedBelow(podspec.Priority(preemptor), node) {
		qp, queued := s.queue.entries[pod.UID]
		if !queued {
			continue
		}
		s.callIfCurrent(qp, func(ctx context.Context) {
			if err := s.clearNomination(ctx, pod); err != nil {
				s.Log.Warn("pod status update failed", "pod", pod.Namespace+"/"+pod.Name, "err", err)
			}
		})
	}
}

// callIfCurrent starts an API call about a pod without a node, to write the failure or to evict
// victims. The call is skipped if the pod has a newer attempt or was removed by then, because it
// may be bound.
func (s *Scheduler) callIfCurrent(qp *queuedPod, do func(context.Context)) {
	attempt := qp.attempt.Load()
	s.call(func(ctx context.Context) {
		qp.callMu.Lock()
		defer qp.callMu.Unlock()
		if qp.attempt.Load() == attempt {
			do(ctx)
		}
	})
}

// call runs do in its own goroutine, with limited concurrency. Run waits for it.
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

// bindingDone handles the result of a binding.
func (s *Scheduler) bindingDone(uid types.UID, err error) {
	if err == nil {
		return // stays assumed until the informer delivers the bound pod
	}
	if _, queued := s.queue.entries[uid]; queued {
		s.cluster.RemovePod(uid)
		s.queue.requeueAfterFailure(uid, time.Now())
		s.queue.requeueRejectedBy(eventAssignedPodDelete, time.Now(), podFilters...)
	}
}

// inbox is an unbounded queue of functions for Run's goroutine, so that informers never wait for
// the scheduler.
type inbox struct {
	mu      sync.Mutex
	pending []func()
	wake    chan struct{} // capacity 1
}

func (in *inbox) post(do func()) {
	in.mu.Lock()
	in.pending = append(in.pending, do)
	in.mu.Unlock()
	select {
	case in.wake <- struct{}{}:
	default:
	}
}

// deliver runs the queued functions. It reports false if there were none.
func (in *inbox) deliver() bool {
	in.mu.Lock()
	pending := in.pending
	in.pending = nil
	in.mu.Unlock()
	for _, do := range pending {
		do()
	}
	return len(pending) > 0
}
