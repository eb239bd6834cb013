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
	// StaticPodMayExist reports whether a manifest file has a static pod of this name, or has not been read yet. A
	// mirror pod is deleted only if it reports false: a static pod has no status before its first sync.
	StaticPodMayExist func(namespace, name string) bool
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
	// conditions ever sent, because a report of the source may be older
	sentConditions map[corev1.PodConditionType]bool
	removed        bool // nothing of the pod is left on the node
	deleteObject   bool // after that, the object must be deleted
	overwritten    bool // the server's status differs from what was sent
	notFound       bool // the object does not exist
	transitional   bool // status only says that the pod is starting

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
	if o.StaticPodMayExist == nil {
		o.StaticPodMayExist = func(string, string) bool { return true }
	}
	if o.NodeUID == nil {
		o.NodeUID = func() types.UID { return "" }
	}
	return &Manager{opt: o, wake: make(chan struct{}, 1), pods: map[types.UID]*podStatus{},
		mirrors: map[types.NamespacedName]*mirror{}}
}

// SetPodStatus sets the status to send. With deleted, s is the last snapshot and nothing of the pod is
// left. It never blocks.
func (m *Manager) SetPodStatus(s *status.Snapshot, deleted bool) {
	if s.Syncs == 0 && !deleted { // no sync yet
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	ps := m.pods[s.Pod.UID]
	if ps == nil || ps.static && ps.removed && !deleted { // a recreated static pod has the same UID
		ps = &podStatus{namespace: s.Pod.Namespace, name: s.Pod.Name, uid: s.Pod.UID, static: podspec.IsStatic(s.Pod)}
		if ps.static {
			ps.uid = "" // see attachMirror
		}
		m.pods[s.Pod.UID] = ps
	}
	if ps.static {
		ps.staticPod = s.Pod
	}
	if s.Syncs > 0 {
		st := s.Status
		if ps.status == nil || !sameStatus(ps.status, &st) {
			ps.setStatus(&st, !deleted && s.Pod.DeletionTimestamp == nil && isStarting(&st), m.opt.Now())
		}
	}
	if deleted {
		ps.removed, ps.deleteObject = true, s.Pod.DeletionTimestamp != nil
		if !ps.deleteObject && !ps.static || ps.notFound {
			delete(m.pods, s.Pod.UID)
			return
		}
	}
	m.wakeUp()
}

// setStatus sets the next status. A transitional status is delayed, counted from the first one that
// was not sent.
func (ps *podStatus) setStatus(st *corev1.PodStatus, transitional bool, now time.Time) {
	due := time.Time{}
	switch {
	case !transitional:
	case ps.transitional && !ps.synced && !ps.inFlight && ps.retries == 0:
		due = ps.notBefore
	default:
		due = now.Add(transitionalDelay)
	}
	ps.status, ps.changedAt, ps.transitional, ps.synced, ps.overwritten, ps.retries, ps.notBefore = st, now,
		transitional,
		false,
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
			if w == nil || w.Message != "" || list[i].RestartCount > 0 ||
				list[i].LastTerminationState.Terminated != nil {
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
func (m *Manager) PodsStarting() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, ps := range m.pods {
		if ps.transitional && !ps.removed && !ps.notFound {
			return true
		}
	}
	return false
}

// PodUpdated is called with the pod on the server, and with deleted when the object was deleted.
func (m *Manager) PodUpdated(pod *corev1.Pod, deleted bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if podspec.IsMirror(pod) {
		m.mirrorUpdated(pod, deleted)
		return
	}
	ps := m.pods[pod.UID]
	if ps == nil {
		if deleted {
			return
		}
		ps = &podStatus{namespace: pod.Namespace, name: pod.Name, uid: pod.UID}
		m.pods[pod.UID] = ps
	}
	if deleted {
		ps.notFound = true
		if ps.removed || ps.status == nil {
			delete(m.pods, pod.UID)
		}
		return
	}
	ps.notFound = false // the report of the source overrides earlier responses
	ps.serverUpdated(pod, m.opt.Now())
	m.wakeUp()
}

// serverUpdated records the status on the server.
func (ps *podStatus) serverUpdated(pod *corev1.Pod, now time.Time) {
	st := pod.Status
	ps.serverStatus = &st
	ps.serverConditions = maps.Clone(ps.sentConditions)
	for _, c := range st.Conditions {
		if ownedByNode(c) {
			addCondition(&ps.serverConditions, c.Type)
		}
	}
	if ps.synced && !ps.inFlight && !serverMatches(ps.status, ps.serverStatus) {
		// overwritten by another client, or older than the response
		ps.synced, ps.overwritten, ps.notBefore = false, true, now.Add(settleDelay)
	} else if !ps.synced && ps.overwritten && serverMatches(ps.status, ps.serverStatus) {
		ps.synced, ps.overwritten = true, false
	}
}

func addCondition(in *map[corev1.PodConditionType]bool, t corev1.PodConditionType) {
	if *in == nil {
		*in = map[corev1.PodConditionType]bool{}
	}
	(*in)[t] = true
}

// Run sends status updates until ctx is done, then waits for the requests in flight.
func (m *Manager) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-m.wake:
		case <-timer.C:
		}
		if next := m.startRequests(ctx, &wg); !next.IsZero() {
			timer.Reset(max(0, next.Sub(m.opt.Now())))
		}
	}
}

// Idle reports whether the server is up to date.
func (m *Manager) Idle() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.inFlight > 0 {
		return false
	}
	for _, ps := range m.pods {
		if ps.needsRequest() {
			return false
		}
	}
	return true
}

func (m *Manager) wakeUp() {
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// startRequests starts the requests that are due, up to the limit, and returns when the next one
// is.
func (m *Manager) startRequests(ctx context.Context, wg *sync.WaitGroup) (next time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.opt.Now()
	later := func(at time.Time) {
		if next.IsZero() || at.Before(next) {
			next = at
		}
	}
	run := func(do func(ctx context.Context) func()) {
		m.inFlight++
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, requestTimeout)
			defer cancel()
			settle := do(ctx)
			m.mu.Lock()
			defer m.mu.Unlock()
			m.inFlight--
			settle()
			m.wakeUp()
		})
	}
	m.syncMirrors(now, later, run)
	for uid, ps := range m.pods {
		if ps.inFlight || !ps.needsRequest() {
			continue
		}
		if now.Before(ps.notBefore) {
			later(ps.notBefore)
			continue
		}
		if ps.transitional && now.Before(m.nextTransitional) {
			later(m.nextTransitional)
			continue
		}
		if m.inFlight >= m.opt.Parallel {
			return next // the end of a request starts the next
		}
		if ps.transitional {
			m.nextTransitional = now.Add(transitionalInterval)
		}
		m.startRequest(uid, ps, run)
	}
	return next
}

// needsRequest reports whether a patch or deletion is pending.
func (ps *podStatus) needsRequest() bool {
	switch {
	case ps.notFound || ps.uid == "":
		return false
	case ps.status != nil && !ps.synced:
		return true
	default:
		return ps.removed && ps.deleteObject
	}
}

// startRequest starts the next request for a pod: a patch of its status, or its deletion.
func (m *Manager) startRequest(uid types.UID, ps *podStatus, run func(func(context.Context) func())) {
	ps.inFlight = true
	namespace, name, object, want := ps.namespace, ps.name, ps.uid, ps.status
	if ps.synced || ps.status == nil {
		run(func(ctx context.Context) func() {
			err := m.opt.Client.Delete(ctx, apiclient.Pods, namespace, name, apiclient.DeleteNow(object))
			return func() { m.finishRequest(uid, ps, "delete pod", want, err, func() { delete(m.pods, uid) }) }
		})
		return
	}
	since := ps.changedAt
	patch, err := statusPatch(object, want, ps.serverConditions)
	for _, c := range want.Conditions {
		if plan.OwnsCondition(c.Type) {
			addCondition(&ps.sentConditions, c.Type)
			addCondition(&ps.serverConditions, c.Type)
		}
	}
	run(func(ctx context.Context) func() {
		if err == nil {
			err = m.opt.Client.Patch(ctx, apiclient.Pods, namespace, name, types.StrategicMergePatchType, patch, nil,
				"status")
		}
		return func() {
			m.finishRequest(uid, ps, "patch pod status", want, err, func() {
				ps.synced = ps.status == want
				m.opt.StatusUpdated(m.opt.Now().Sub(since))
			})
		}
	})
}

// finishRequest processes the response. NotFound and Conflict are temporary errors while the source
// reports the object, because proxies and webhooks return them too. want is the status that was
// sent. A newer status is neither synced nor rejected by this response.
func (m *Manager) finishRequest(uid types.UID, ps *podStatus, action string, want *corev1.PodStatus, err error,
	done func()) {
	ps.inFlight = false
	log := m.opt.Log.With("pod", ps.namespace+"/"+ps.name, "podUID", string(uid))
	switch {
	case err == nil:
		ps.retries, ps.notBefore = 0, time.Time{}
		done()
	case ps.static && (apierrors.IsNotFound(err) || apierrors.IsConflict(err)):
		// the source will report that the mirror pod is deleted
		ps.notBefore = m.opt.Now().Add(settleDelay)
	case ps.serverStatus == nil && (apierrors.IsNotFound(err) || apierrors.IsConflict(err)):
		// the pod with this UID does not exist
		ps.notFound = true
		if ps.removed {
			delete(m.pods, uid)
		}
		log.Debug("pod not found on the server", "err", err)
	case apierrors.IsInvalid(err), apierrors.IsBadRequest(err):
		log.Error("request rejected", "action", action, "err", err)
		if ps.status == want { // until it changes
			ps.synced, ps.notBefore = true, m.opt.Now().Add(retryMax)
		}
	default:
		if ps.retries == 0 {
			log.Debug("request failed; retrying", "action", action, "err", err)
		}
		ps.notBefore = m.opt.Now().Add(min(retryBase<<min(ps.retries, 10), retryMax))
		ps.retries++
	}
}

// sameStatus compares statuses semantically.
func sameStatus(a, b *corev1.PodStatus) bool { return equality.Semantic.DeepEqual(a, b) }

// serverMatches reports whether the server has the status of this node.
func serverMatches(want, server *corev1.PodStatus) bool {
	if want == nil {
		return true
	}
	if want.Phase != server.Phase || want.Reason != server.Reason || want.Message != server.Message ||
		want.PodIP != server.PodIP ||
		want.HostIP != server.HostIP {
		return false
	}
	for _, lists := range [][2][]corev1.ContainerStatus{
		{want.ContainerStatuses, server.ContainerStatuses}, {want.InitContainerStatuses, server.InitContainerStatuses},
		{want.EphemeralContainerStatuses, server.EphemeralContainerStatuses},
	} {
		if len(lists[0]) != len(lists[1]) {
			return false
		}
		for i := range lists[0] {
			if a, b := &lists[0][i], &lists[1][i]; a.Name != b.Name || a.Ready != b.Ready ||
				a.RestartCount != b.RestartCount ||
				a.ContainerID != b.ContainerID {
				return false
			}
		}
	}
	return sameConditions(want.Conditions, server.Conditions)
}

// sameConditions compares the conditions owned by this node.
func sameConditions(want, server []corev1.PodCondition) bool {
	owned := map[corev1.PodConditionType]corev1.PodCondition{}
	for _, c := range server {
		if plan.OwnsCondition(c.Type) {
			owned[c.Type] = c
		}
	}
	n := 0
	for _, c := range want {
		if !plan.OwnsCondition(c.Type) {
			continue
		}
		n++
		if h, found := owned[c.Type]; !found || h.Status != c.Status || h.Reason != c.Reason || h.Message != c.Message {
			return false
		}
	}
	return n == len(owned)
}
