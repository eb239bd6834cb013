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

// Options are the options of New.
type Options struct {
	Client   *apiclient.Client
	NodeName string
	Parallel int // maximum number of concurrent requests, default 8
	Log      *slog.Logger
	Now      func() time.Time // default time.Now

	// NodeUID returns the UID of the Node, the owner of mirror pods, or "" if it is unknown.
	NodeUID func() types.UID
	// SourcesReady reports whether all manifest files have been read. Mirror pods without a static
	// pod are deleted only then.
	SourcesReady func() bool
	// StatusUpdated is called with the time between a status change and the response to its patch.
	// Optional.
	StatusUpdated func(took time.Duration)
}

// Manager synchronizes the status of pods with the server. It is safe for concurrent use.
type Manager struct {
	opt  Options
	wake chan struct{} // capacity 1

	mu               sync.Mutex
	pods             map[types.UID]*podStatus
	mirrors          map[types.NamespacedName]*mirror
	inFlight         int
	nextTransitional time.Time // earliest time for the next status of a starting pod
}

// podStatus is the state of one pod's object.
type podStatus struct {
	namespace, name string
	uid             types.UID // of the object, which differs from the pod's for a mirror pod
	static          bool
	staticPod       *corev1.Pod // nil for a pod from the server

	status           *corev1.PodStatus                // to be sent, nil: none yet
	changedAt        time.Time                        // time of the sync that produced it
	synced           bool                             // status has been sent
	serverStatus     *corev1.PodStatus                // as last reported by the source, nil: never reported
	serverConditions map[corev1.PodConditionType]bool // this node's conditions that the server may have
	sentConditions   map[corev1.PodConditionType]bool // conditions ever sent, because a report of the source may be older
	removed          bool                             // nothing of the pod is left on the node
	deleteObject     bool                             // after that, the object must be deleted
	overwritten      bool                             // the server's status differs from what was sent
	notFound         bool                             // the object does not exist
	transitional     bool                             // status only says that the pod is starting

	inFlight  bool
	retries   int
	notBefore time.Time // earliest time of the next request
}

const (
	requestTimeout = 15 * time.Second
	retryBase      = 100 * time.Millisecond
	retryMax       = 10 * time.Second
	settleDelay    = time.Second // before an overwritten status is sent again

	// The status of a starting pod changes soon, so it is sent with a delay and for one pod at a
	// time.
	transitionalDelay    = time.Second
	transitionalInterval = 250 * time.Millisecond
)

// New returns a Manager. The caller must call Run.
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
	return &Manager{opt: o, wake: make(chan struct{}, 1), pods: map[types.UID]*podStatus{},
		mirrors: map[types.NamespacedName]*mirror{}}
}

// SetPodStatus sets the status to send. With gone, s is the last snapshot and nothing of the pod is
// left. It never blocks.
func (p *Manager) SetPodStatus(s *status.Snapshot, gone bool) {
	if s.Syncs == 0 && !gone { // no sync yet
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	e := p.pods[s.Pod.UID]
	if e == nil || e.static && e.removed && !gone { // a recreated static pod has the same UID
		e = &podStatus{namespace: s.Pod.Namespace, name: s.Pod.Name, uid: s.Pod.UID, static: podspec.IsStatic(s.Pod)}
		if e.static {
			e.uid = "" // see attachMirror
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

// setStatus sets the next status. A transitional status is delayed, counted from the first one that
// was not sent.
func (e *podStatus) setStatus(st *corev1.PodStatus, passing bool, now time.Time) {
	due := time.Time{}
	switch {
	case !passing:
	case e.transitional && !e.synced && !e.inFlight && e.retries == 0:
		due = e.notBefore
	default:
		due = now.Add(transitionalDelay)
	}
	e.status, e.changedAt, e.transitional, e.synced, e.overwritten, e.retries, e.notBefore = st, now, passing, false,
		false, 0, due
}

// isStarting reports whether the status only says that nothing has started yet and there is no
// error.
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

// PodsStarting reports whether any pod is starting.
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

// PodUpdated is called with the pod on the server, and with gone when the object has been deleted.
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
	e.notFound = false // the report of the source overrides earlier responses
	e.serverUpdated(pod, p.opt.Now())
	p.wakeUp()
}

// serverUpdated records the status on the server.
func (e *podStatus) serverUpdated(pod *corev1.Pod, now time.Time) {
	st := pod.Status
	e.serverStatus = &st
	e.serverConditions = maps.Clone(e.sentConditions)
	for _, c := range st.Conditions {
		if ownedByNode(c) {
			addCondition(&e.serverConditions, c.Type)
		}
	}
	if e.synced && !e.inFlight && !serverMatches(e.status, e.serverStatus) {
		// overwritten by another client, or older than the response
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

// Run sends status updates until ctx is done, then waits for the requests in flight.
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

// Idle reports whether the server is up to date.
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

// startRequests starts the requests that are due, up to the limit, and returns when the next one
// is.
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
			return next // the end of a request starts the next
		}
		if e.transitional {
			p.nextTransitional = now.Add(transitionalInterval)
		}
		p.startRequest(uid, e, run)
	}
	return next
}

// needsRequest reports whether a patch or deletion is pending.
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

// startRequest starts the next request for a pod: a patch of its status, or its deletion.
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

// finishRequest processes the response. NotFound and Conflict are temporary errors while the source
// reports the object, because proxies and webhooks return them too. want is the status that was
// sent. A newer status is neither synced nor rejected by this response.
func (p *Manager) finishRequest(uid types.UID, e *podStatus, what string, want *corev1.PodStatus, err error,
	done func()) {
	e.inFlight = false
	log := p.opt.Log.With("pod", e.namespace+"/"+e.name, "uid", string(uid))
	switch {
	case err == nil:
		e.retries, e.notBefore = 0, time.Time{}
		done()
	case e.static && (apierrors.IsNotFound(err) || apierrors.IsConflict(err)):
		// the source will report that the mirror pod is gone
		e.notBefore = p.opt.Now().Add(settleDelay)
	case e.serverStatus == nil && (apierrors.IsNotFound(err) || apierrors.IsConflict(err)):
		// the pod with this UID is gone
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

// sameStatus compares statuses semantically.
func sameStatus(a, b *corev1.PodStatus) bool { return equality.Semantic.DeepEqual(a, b) }

// serverMatches reports whether the server has the status of this node.
func serverMatches(want, has *corev1.PodStatus) bool {
	if want == nil {
		return true
	}
	if want.Phase != has.Phase || want.Reason != has.Reason || want.Message != has.Message || want.PodIP != has.PodIP ||
		want.HostIP != has.HostIP {
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
			if a, b := &lists[0][i], &lists[1][i]; a.Name != b.Name || a.Ready != b.Ready || a.RestartCount != b.RestartCount ||
				a.ContainerID != b.ContainerID {
				return false
			}
		}
	}
	return sameConditions(want.Conditions, has.Conditions)
}

// sameConditions compares the conditions owned by this node.
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
