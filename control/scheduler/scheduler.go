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

// calls at once to the server.
const calls = 32

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

	inbox   inbox
	cluster *placement.Cluster // of Run's goroutine, as all below
	queue   *queue
	ctx     context.Context //nolint:containedctx // Run's, for the calls that its goroutine begins
	calls   sync.WaitGroup
	places  chan struct{}
	synced  []cache.InformerSynced
	leave   []func() // ends the watches
}

// New registers with the informers; nothing happens before Run.
func New(config Config) (*Scheduler, error) {
	if config.Name == "" {
		config.Name = DefaultName
	}
	s := &Scheduler{
		Config: config, cluster: placement.NewCluster(), queue: newQueue(),
		places: make(chan struct{}, calls), inbox: inbox{wake: make(chan struct{}, 1)},
	}
	core := config.Informers.Core().V1()
	for _, watch := range []struct {
		of  cache.SharedIndexInformer
		see cache.ResourceEventHandlerFuncs
	}{
		{core.Pods().Informer(), seen(s, s.podSeen, s.podGone)},
		{core.Nodes().Informer(), seen(s, s.nodeSeen, s.nodeGone)},
		{core.Namespaces().Informer(), seen(s, s.namespaceSeen, s.namespaceGone)},
		{core.PersistentVolumeClaims().Informer(), seen(s, s.claimSeen, func(*corev1.PersistentVolumeClaim) {})},
		{core.PersistentVolumes().Informer(), seen(s, s.volumeSeen, func(*corev1.PersistentVolume) {})},
	} {
		reg, err := watch.of.AddEventHandler(watch.see)
		if err != nil {
			return nil, fmt.Errorf("watch for the scheduler: %w", err)
		}
		s.synced = append(s.synced, reg.HasSynced)
		s.leave = append(s.leave, func() { _ = watch.of.RemoveEventHandler(reg) }) // an error says that it is stopped
	}
	budgets := config.Informers.Policy().V1().PodDisruptionBudgets().Informer()
	s.synced = append(s.synced, budgets.HasSynced)
	return s, nil
}

// Run schedules until the context ends, once, and waits for its calls to the server.
func (s *Scheduler) Run(ctx context.Context) {
	defer s.calls.Wait()
	defer func() {
		for _, leave := range s.leave {
			leave()
		}
	}()
	s.ctx = ctx
	if !cache.WaitForCacheSync(ctx.Done(), s.synced...) {
		return
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		for ctx.Err() == nil && (s.inbox.deliver() || s.turn()) {
		}
		if next := s.queue.due(time.Now()); !next.IsZero() {
			timer.Reset(time.Until(next))
		}
		if len(s.queue.turn) > 0 && ctx.Err() == nil {
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

// turn looks for a node for the pod whose turn it is; false: no pod's.
func (s *Scheduler) turn() bool {
	e := s.queue.next(time.Now())
	if e == nil {
		return false
	}
	volumes, wait := s.volumes(e.pod)
	if wait != "" {
		s.noNode(e, s.cluster.Refuse(wait), nil)
		return true
	}
	choice := s.cluster.Choose(e.pod, volumes...)
	if choice.Node == "" {
		s.noNode(e, choice, volumes)
		return true
	}
	placed := e.pod.DeepCopy()
	placed.Spec.NodeName = choice.Node
	s.cluster.Add(placed)
	s.call(func(ctx context.Context) {
		e.calling.Lock() // what an earlier attempt is just writing comes first
		defer e.calling.Unlock()
		s.bind(ctx, placed, choice)
	})
	return true
}

// noNode says why, makes room if more important pods may, and lets the pod wait.
func (s *Scheduler) noNode(e *entry, choice placement.Choice, volumes []*corev1.NodeSelector) {
	pod, message := e.pod, choice.Message()
	nominated := pod.Status.NominatedNodeName
	if choice.Nodes > 0 {
		p := s.cluster.Preempt(pod, choice, s.budgets(), volumes...)
		switch {
		case p.Node != "":
			nominated = p.Node
			s.say(e, func(ctx context.Context) { s.makeRoom(ctx, pod, p) })
		case !p.RoomIsComing:
			nominated = ""
		}
		if p.Message != "" {
			message += " preemption: " + p.Message
		}
	}
	s.cluster.Nominate(pod.UID, pod, nominated)
	s.queue.wait(e, choice.Rules(), time.Now())
	s.say(e, func(ctx context.Context) { s.report(ctx, pod, nominated, message) })
}

// say calls the server about a pod that has no node, to write why or to end who is
// in its way, unless by then it has had another turn or is forgotten: it may be bound.
func (s *Scheduler) say(e *entry, do func(context.Context)) {
	turn := e.turn.Load()
	s.call(func(ctx context.Context) {
		e.calling.Lock()
		defer e.calling.Unlock()
		if e.turn.Load() == turn {
			do(ctx)
		}
	})
}

// call runs a call to the server on its own goroutine, which Run waits for.
func (s *Scheduler) call(do func(context.Context)) {
	s.calls.Go(func() {
		select {
		case s.places <- struct{}{}:
			defer func() { <-s.places }()
			do(s.ctx)
		case <-s.ctx.Done():
		}
	})
}

// bound is told when the server has answered a binding.
func (s *Scheduler) bound(uid types.UID, err error) {
	if err == nil {
		return // the watch will show it; until then the pod stays assumed
	}
	if _, still := s.queue.entries[uid]; still {
		s.cluster.Remove(uid)
		s.queue.rest(uid, time.Now())
		s.queue.tell(time.Now(), podRules...)
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
