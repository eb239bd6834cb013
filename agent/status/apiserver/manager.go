package apiserver

import (
	"context"
	"log/slog"
	"maps"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"berth/agent/plan"
	"berth/agent/status"
	"berth/internal/apiclient"
	"berth/podspec"
)

// Options is what New needs.
type Options struct {
	Client   *apiclient.Client
	NodeName string
	Parallel int // requests at once; default 8
	Log      *slog.Logger
	Now      func() time.Time // default time.Now

	// NodeUID is the UID of the Node, which owns mirror pods; empty: not known yet.
	NodeUID func() types.UID
	// SourcesReady reports whether it is known which pods files want: a mirror of none
	// of them is deleted then.
	SourcesReady func() bool
	// StatusUpdated hears how long a change of a status took from the pass that made it
	// to the server's answer. May be nil.
	StatusUpdated func(took time.Duration)
}

// Manager tells the server about pods. It is safe for concurrent use.
type Manager struct {
	opt  Options
	wake chan struct{} // something is to be done; capacity 1

	mu               sync.Mutex
	pods             map[types.UID]*podStatus
	mirrors          map[types.NamespacedName]*mirror
	inFlight         int
	nextTransitional time.Time // not before then is a status told that is on the way
}

// podStatus is what is known of one pod's object.
type podStatus struct {
	namespace, name string
	uid             types.UID // of the object: a mirror pod has one of its own
	static          bool
	staticPod       *corev1.Pod // the file's pod; nil: an assigned one

	status           *corev1.PodStatus                // nil: nothing was decided yet
	changedAt        time.Time                        // of the pass that made it
	synced           bool                             // the server has answered with want
	serverStatus     *corev1.PodStatus                // as the server has it; nil: not heard
	serverConditions map[corev1.PodConditionType]bool // this node's conditions that the server may have
	sentConditions   map[corev1.PodConditionType]bool // what it was ever told of them: what is heard may be older
	removed          bool                             // nothing of the pod is left
	deleteObject     bool                             // and its object waits for that
	overwritten      bool                             // what the server has was not what it was told
	notFound         bool                             // there is no such object any more, or was none when it was asked for
	transitional     bool                             // want says only that the pod is on its way up

	inFlight  bool
	retries   int
	notBefore time.Time // not before then
}

const (
	requestTimeout = 15 * time.Second
	retryBase      = 100 * time.Millisecond
	retryMax       = 10 * time.Second
	settleDelay    = time.Second // before what others have written is written over

	// A pod that is on its way up soon says something better: what it says until
	// then is told only when it takes long, and one pod after the other.
	transitionalDelay    = time.Second
	transitionalInterval = 250 * time.Millisecond
)

// New returns posts that Run has to be called for.
func New(o Options) *Manager {
	if o.Parallel == 0 {
		o.Parallel = 8
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.StatusUpdated == nil {
		o.StatusUpdated = func(time.Duration) {}
	}
	if o.SourcesReady == nil {
		o.SourcesReady = func() bool { return false }
	}
	if o.NodeUID == nil {
		o.NodeUID = func() types.UID { return "" }
	}
	return &Manager{opt: o, wake: make(chan struct{}, 1), pods: map[types.UID]*podStatus{}, mirrors: map[types.NamespacedName]*mirror{}}
}

// SetPodStatus takes a pod as its last pass left it; gone: it was the last, and nothing of
// the pod is here any more. It never waits.
func (p *Manager) SetPodStatus(s *status.Snapshot, gone bool) {
	if s.Syncs == 0 && !gone { // nothing was decided yet
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	e := p.pods[s.Pod.UID]
	if e == nil || e.static && e.removed && !gone { // a file's pod that was made anew has the UID that it had
		e = &podStatus{namespace: s.Pod.Namespace, name: s.Pod.Name, uid: s.Pod.UID, static: podspec.IsStatic(s.Pod)}
		if e.static {
			e.uid = "" // see show
		}
		p.pods[s.Pod.UID] = e
	}
	if e.static {
		e.staticPod = s.Pod
	}
	if s.Syncs > 0 {
		st := s.Status
		if e.status == nil || !sameStatus(e.status, &st) {
			e.setStatus(&st, !gone && s.Pod.DeletionTimestamp == nil && isStarting(&st), p.opt.Now())
		}
	}
	if gone {
		e.removed, e.deleteObject = true, s.Pod.DeletionTimestamp != nil
		if !e.deleteObject && !e.static || e.notFound {
			delete(p.pods, s.Pod.UID)
			return
		}
	}
	p.wakeUp()
}

// setStatus takes what is to be told next. What is passing waits for a while, counted
// from the first that was not told.
func (e *podStatus) setStatus(st *corev1.PodStatus, passing bool, now time.Time) {
	due := time.Time{}
	switch {
	case !passing:
	case e.transitional && !e.synced && !e.inFlight && e.retries == 0:
		due = e.notBefore
	default:
		due = now.Add(transitionalDelay)
	}
	e.status, e.changedAt, e.transitional, e.synced, e.overwritten, e.retries, e.notBefore = st, now, passing, false, false, 0, due
}

// isStarting reports whether a status says no more than that nothing of the pod has
// been started yet and all is well.
func isStarting(st *corev1.PodStatus) bool {
	if st.Phase != corev1.PodPending || st.Reason != "" || len(st.EphemeralContainerStatuses) > 0 {
		return false
	}
	for _, list := range [][]corev1.ContainerStatus{st.InitContainerStatuses, st.ContainerStatuses} {
		for i := range list {
			w := list[i].State.Waiting
			if w == nil || w.Message != "" || list[i].RestartCount > 0 || list[i].LastTerminationState.Terminated != nil {
				return false
			}
			if w.Reason != plan.ReasonCreating && w.Reason != plan.ReasonInitializing {
				return false
			}
		}
	}
	return true
}

// PodsStarting reports whether a pod is on its way up.
func (p *Manager) PodsStarting() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, e := range p.pods {
		if e.transitional && !e.removed && !e.notFound {
			return true
		}
	}
	return false
}

// PodUpdated takes a pod as the server has it; gone: there is no such object any more.
func (p *Manager) PodUpdated(pod *corev1.Pod, gone bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if podspec.IsMirror(pod) {
		p.mirrorUpdated(pod, gone)
		return
	}
	e := p.pods[pod.UID]
	if e == nil {
		if gone {
			return
		}
		e = &podStatus{namespace: pod.Namespace, name: pod.Name, uid: pod.UID}
		p.pods[pod.UID] = e
	}
	if gone {
		e.notFound = true
		if e.removed || e.status == nil {
			delete(p.pods, pod.UID)
		}
		return
	}
	e.notFound = false // whatever was answered when something was told
	e.serverUpdated(pod, p.opt.Now())
	p.wakeUp()
}

// serverUpdated takes in what the server has of a status.
func (e *podStatus) serverUpdated(pod *corev1.Pod, now time.Time) {
	st := pod.Status
	e.serverStatus = &st
	e.serverConditions = maps.Clone(e.sentConditions)
	for _, c := range st.Conditions {
		if ownedByNode(c) {
			addCondition(&e.serverConditions, c.Type)
		}
	}
	if e.synced && !e.inFlight && !serverMatches(e.status, e.serverStatus) { // another has written; or it is older than the answer
		e.synced, e.overwritten, e.notBefore = false, true, now.Add(settleDelay)
	} else if !e.synced && e.overwritten && serverMatches(e.status, e.serverStatus) {
		e.synced, e.overwritten = true, false
	}
}

func addCondition(in *map[corev1.PodConditionType]bool, t corev1.PodConditionType) {
	if *in == nil {
		*in = map[corev1.PodConditionType]bool{}
	}
	(*in)[t] = true
}

// Run tells what is to be told until ctx ends, and waits for what is under way.
func (p *Manager) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-p.wake:
		case <-timer.C:
		}
		if next := p.startRequests(ctx, &wg); !next.IsZero() {
			timer.Reset(max(0, next.Sub(p.opt.Now())))
		}
	}
}

// Idle reports whether the server has been told all that there is to tell.
func (p *Manager) Idle() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.inFlight > 0 {
		return false
	}
	for _, e := range p.pods {
		if e.needsRequest() {
			return false
		}
	}
	return true
}

func (p *Manager) wakeUp() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// startRequests begins what is due, as far as there is room for it, and returns when more
// will be.
func (p *Manager) startRequests(ctx context.Context, wg *sync.WaitGroup) (next time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.opt.Now()
	later := func(at time.Time) {
		if next.IsZero() || at.Before(next) {
			next = at
		}
	}
	run := func(do func(ctx context.Context) func()) {
		p.inFlight++
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, requestTimeout)
			defer cancel()
			settle := do(ctx)
			p.mu.Lock()
			defer p.mu.Unlock()
			p.inFlight--
			settle()
			p.wakeUp()
		})
	}
	p.syncMirrors(now, later, run)
	for uid, e := range p.pods {
		if e.inFlight || !e.needsRequest() {
			continue
		}
		if now.Before(e.notBefore) {
			later(e.notBefore)
			continue
		}
		if e.transitional && now.Before(p.nextTransitional) {
			later(p.nextTransitional)
			continue
		}
		if p.inFlight >= p.opt.Parallel {
			return next // the end of one begins the next
		}
		if e.transitional {
			p.nextTransitional = now.Add(transitionalInterval)
		}
		p.startRequest(uid, e, run)
	}
	return next
}

// needsRequest reports whether the server has something to be told.
func (e *podStatus) needsRequest() bool {
	switch {
	case e.notFound || e.uid == "":
		return false
	case e.status != nil && !e.synced:
		return true
	default:
		return e.removed && e.deleteObject
	}
}

// startRequest begins the next request about a pod: its status, or its deletion.
func (p *Manager) startRequest(uid types.UID, e *podStatus, run func(func(context.Context) func())) {
	e.inFlight = true
	namespace, name, object, want := e.namespace, e.name, e.uid, e.status
	if e.synced || e.status == nil {
		run(func(ctx context.Context) func() {
			err := p.opt.Client.Delete(ctx, apiclient.Pods, namespace, name, apiclient.DeleteNow(object))
			return func() { p.finishRequest(uid, e, "delete pod", want, err, func() { delete(p.pods, uid) }) }
		})
		return
	}
	since := e.changedAt
	patch, err := statusPatch(object, want, e.serverConditions)
	for _, c := range want.Conditions {
		if plan.OwnsCondition(c.Type) {
			addCondition(&e.sentConditions, c.Type)
			addCondition(&e.serverConditions, c.Type)
		}
	}
	run(func(ctx context.Context) func() {
		if err == nil {
			err = p.opt.Client.Patch(ctx, apiclient.Pods, namespace, name, types.StrategicMergePatchType, patch, nil, "status")
		}
		return func() {
			p.finishRequest(uid, e, "status of pod", want, err, func() {
				e.synced = e.status == want
				p.opt.StatusUpdated(p.opt.Now().Sub(since))
			})
		}
	})
}

// finishRequest takes in the server's answer. That an object is not there is no more than a
// failure while the source shows it: what is on the way to the server answers so, too,
// and so do webhooks. When it is gone the source says so. want is what was to be told
// when it was asked: what has come since is neither taken nor refused.
func (p *Manager) finishRequest(uid types.UID, e *podStatus, what string, want *corev1.PodStatus, err error, done func()) {
	e.inFlight = false
	log := p.opt.Log.With("pod", e.namespace+"/"+e.name, "uid", string(uid))
	switch {
	case err == nil:
		e.retries, e.notBefore = 0, time.Time{}
		done()
	case e.static && (apierrors.IsNotFound(err) || apierrors.IsConflict(err)): // the mirror is gone: that will be heard
		e.notBefore = p.opt.Now().Add(settleDelay)
	case e.serverStatus == nil && (apierrors.IsNotFound(err) || apierrors.IsConflict(err)): // it, or one of that UID, is gone
		e.notFound = true
		if e.removed {
			delete(p.pods, uid)
		}
		log.Debug("the server has no such pod any more", "err", err)
	case apierrors.IsInvalid(err), apierrors.IsBadRequest(err):
		log.Error("the server does not take the "+what, "err", err)
		if e.status == want { // until it changes
			e.synced, e.notBefore = true, p.opt.Now().Add(retryMax)
		}
	default:
		if e.retries == 0 {
			log.Debug(what+" is tried again", "err", err)
		}
		e.notBefore = p.opt.Now().Add(min(retryBase<<min(e.retries, 10), retryMax))
		e.retries++
	}
}

// sameStatus compares what is told.
func sameStatus(a, b *corev1.PodStatus) bool { return equality.Semantic.DeepEqual(a, b) }

// serverMatches reports whether the server has what this node wants it to have.
func serverMatches(want, has *corev1.PodStatus) bool {
	if want == nil {
		return true
	}
	if want.Phase != has.Phase || want.Reason != has.Reason || want.Message != has.Message || want.PodIP != has.PodIP || want.HostIP != has.HostIP {
		return false
	}
	for _, lists := range [][2][]corev1.ContainerStatus{
		{want.ContainerStatuses, has.ContainerStatuses}, {want.InitContainerStatuses, has.InitContainerStatuses},
		{want.EphemeralContainerStatuses, has.EphemeralContainerStatuses},
	} {
		if len(lists[0]) != len(lists[1]) {
			return false
		}
		for i := range lists[0] {
			if a, b := &lists[0][i], &lists[1][i]; a.Name != b.Name || a.Ready != b.Ready || a.RestartCount != b.RestartCount || a.ContainerID != b.ContainerID {
				return false
			}
		}
	}
	return sameConditions(want.Conditions, has.Conditions)
}

// sameConditions compares those of this node alone.
func sameConditions(want, has []corev1.PodCondition) bool {
	mine := map[corev1.PodConditionType]corev1.PodCondition{}
	for _, c := range has {
		if plan.OwnsCondition(c.Type) {
			mine[c.Type] = c
		}
	}
	n := 0
	for _, c := range want {
		if !plan.OwnsCondition(c.Type) {
			continue
		}
		n++
		if h, there := mine[c.Type]; !there || h.Status != c.Status || h.Reason != c.Reason || h.Message != c.Message {
			return false
		}
	}
	return n == len(mine)
}
