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
	// Settled reports whether it is known which pods files want: a mirror of none
	// of them is deleted then.
	Settled func() bool
	// Posted hears how long a change of a status took from the pass that made it
	// to the server's answer. May be nil.
	Posted func(took time.Duration)
}

// Posts tells the server about pods. It is safe for concurrent use.
type Posts struct {
	opt  Options
	wake chan struct{} // something is to be done; capacity 1

	mu      sync.Mutex
	pods    map[types.UID]*post
	mirrors map[types.NamespacedName]*mirror
	busy    int
	between time.Time // not before then is a status told that is on the way
}

// post is what is known of one pod's object.
type post struct {
	namespace, name string
	uid             types.UID // of the object: a mirror pod has one of its own
	static          bool
	mirrorOf        *corev1.Pod // the file's pod; nil: an assigned one

	want    *corev1.PodStatus                // nil: nothing was decided yet
	since   time.Time                        // of the pass that made it
	told    bool                             // the server has answered with want
	has     *corev1.PodStatus                // as the server has it; nil: not heard
	had     map[corev1.PodConditionType]bool // this node's conditions that the server may have
	sent    map[corev1.PodConditionType]bool // what it was ever told of them: what is heard may be older
	over    bool                             // nothing of the pod is left
	deleted bool                             // and its object waits for that
	rewrite bool                             // what the server has was not what it was told
	lost    bool                             // there is no such object any more, or was none when it was asked for
	passing bool                             // want says only that the pod is on its way up

	busy  bool
	tries int
	due   time.Time // not before then
}

const (
	requestBound = 15 * time.Second
	retryFirst   = 100 * time.Millisecond
	retryLast    = 10 * time.Second
	settle       = time.Second // before what others have written is written over

	// A pod that is on its way up soon says something better: what it says until
	// then is told only when it takes long, and one pod after the other.
	passingAfter = time.Second
	passingEvery = 250 * time.Millisecond
)

// New returns posts that Run has to be called for.
func New(o Options) *Posts {
	if o.Parallel == 0 {
		o.Parallel = 8
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Posted == nil {
		o.Posted = func(time.Duration) {}
	}
	if o.Settled == nil {
		o.Settled = func() bool { return false }
	}
	if o.NodeUID == nil {
		o.NodeUID = func() types.UID { return "" }
	}
	return &Posts{opt: o, wake: make(chan struct{}, 1), pods: map[types.UID]*post{}, mirrors: map[types.NamespacedName]*mirror{}}
}

// Put takes a pod as its last pass left it; gone: it was the last, and nothing of
// the pod is here any more. It never waits.
func (p *Posts) Put(s *status.Snapshot, gone bool) {
	if s.Passes == 0 && !gone { // nothing was decided yet
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	e := p.pods[s.Pod.UID]
	if e == nil || e.static && e.over && !gone { // a file's pod that was made anew has the UID that it had
		e = &post{namespace: s.Pod.Namespace, name: s.Pod.Name, uid: s.Pod.UID, static: podspec.IsStatic(s.Pod)}
		if e.static {
			e.uid = "" // see show
		}
		p.pods[s.Pod.UID] = e
	}
	if e.static {
		e.mirrorOf = s.Pod
	}
	if s.Passes > 0 {
		st := s.Status
		if e.want == nil || !sameStatus(e.want, &st) {
			e.wants(&st, !gone && s.Pod.DeletionTimestamp == nil && comingUp(&st), p.opt.Now())
		}
	}
	if gone {
		e.over, e.deleted = true, s.Pod.DeletionTimestamp != nil
		if !e.deleted && !e.static || e.lost {
			delete(p.pods, s.Pod.UID)
			return
		}
	}
	p.nudge()
}

// wants takes what is to be told next. What is passing waits for a while, counted
// from the first that was not told.
func (e *post) wants(st *corev1.PodStatus, passing bool, now time.Time) {
	due := time.Time{}
	switch {
	case !passing:
	case e.passing && !e.told && !e.busy && e.tries == 0:
		due = e.due
	default:
		due = now.Add(passingAfter)
	}
	e.want, e.since, e.passing, e.told, e.rewrite, e.tries, e.due = st, now, passing, false, false, 0, due
}

// comingUp reports whether a status says no more than that nothing of the pod has
// been started yet and all is well.
func comingUp(st *corev1.PodStatus) bool {
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

// ComingUp reports whether a pod is on its way up.
func (p *Posts) ComingUp() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, e := range p.pods {
		if e.passing && !e.over && !e.lost {
			return true
		}
	}
	return false
}

// Heard takes a pod as the server has it; gone: there is no such object any more.
func (p *Posts) Heard(pod *corev1.Pod, gone bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if podspec.IsMirror(pod) {
		p.heardMirror(pod, gone)
		return
	}
	e := p.pods[pod.UID]
	if e == nil {
		if gone {
			return
		}
		e = &post{namespace: pod.Namespace, name: pod.Name, uid: pod.UID}
		p.pods[pod.UID] = e
	}
	if gone {
		e.lost = true
		if e.over || e.want == nil {
			delete(p.pods, pod.UID)
		}
		return
	}
	e.lost = false // whatever was answered when something was told
	e.hears(pod, p.opt.Now())
	p.nudge()
}

// hears takes in what the server has of a status.
func (e *post) hears(pod *corev1.Pod, now time.Time) {
	st := pod.Status
	e.has = &st
	e.had = maps.Clone(e.sent)
	for _, c := range st.Conditions {
		if ours(c) {
			note(&e.had, c.Type)
		}
	}
	if e.told && !e.busy && !agrees(e.want, e.has) { // another has written; or it is older than the answer
		e.told, e.rewrite, e.due = false, true, now.Add(settle)
	} else if !e.told && e.rewrite && agrees(e.want, e.has) {
		e.told, e.rewrite = true, false
	}
}

func note(in *map[corev1.PodConditionType]bool, t corev1.PodConditionType) {
	if *in == nil {
		*in = map[corev1.PodConditionType]bool{}
	}
	(*in)[t] = true
}

// Run tells what is to be told until ctx ends, and waits for what is under way.
func (p *Posts) Run(ctx context.Context) error {
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
		if next := p.begin(ctx, &wg); !next.IsZero() {
			timer.Reset(max(0, next.Sub(p.opt.Now())))
		}
	}
}

// Idle reports whether the server has been told all that there is to tell.
func (p *Posts) Idle() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.busy > 0 {
		return false
	}
	for _, e := range p.pods {
		if e.pending() {
			return false
		}
	}
	return true
}

func (p *Posts) nudge() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// begin begins what is due, as far as there is room for it, and returns when more
// will be.
func (p *Posts) begin(ctx context.Context, wg *sync.WaitGroup) (next time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.opt.Now()
	later := func(at time.Time) {
		if next.IsZero() || at.Before(next) {
			next = at
		}
	}
	run := func(do func(ctx context.Context) func()) {
		p.busy++
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, requestBound)
			defer cancel()
			settle := do(ctx)
			p.mu.Lock()
			defer p.mu.Unlock()
			p.busy--
			settle()
			p.nudge()
		})
	}
	p.beginMirrors(now, later, run)
	for uid, e := range p.pods {
		if e.busy || !e.pending() {
			continue
		}
		if now.Before(e.due) {
			later(e.due)
			continue
		}
		if e.passing && now.Before(p.between) {
			later(p.between)
			continue
		}
		if p.busy >= p.opt.Parallel {
			return next // the end of one begins the next
		}
		if e.passing {
			p.between = now.Add(passingEvery)
		}
		p.beginPost(uid, e, run)
	}
	return next
}

// pending reports whether the server has something to be told.
func (e *post) pending() bool {
	switch {
	case e.lost || e.uid == "":
		return false
	case e.want != nil && !e.told:
		return true
	default:
		return e.over && e.deleted
	}
}

// beginPost begins the next request about a pod: its status, or its deletion.
func (p *Posts) beginPost(uid types.UID, e *post, run func(func(context.Context) func())) {
	e.busy = true
	namespace, name, object, want := e.namespace, e.name, e.uid, e.want
	if e.told || e.want == nil {
		run(func(ctx context.Context) func() {
			err := p.opt.Client.Delete(ctx, apiclient.Pods, namespace, name, apiclient.DeleteNow(object))
			return func() { p.settle(uid, e, "delete pod", want, err, func() { delete(p.pods, uid) }) }
		})
		return
	}
	since := e.since
	patch, err := patchOf(object, want, e.had)
	for _, c := range want.Conditions {
		if plan.OwnsCondition(c.Type) {
			note(&e.sent, c.Type)
			note(&e.had, c.Type)
		}
	}
	run(func(ctx context.Context) func() {
		if err == nil {
			err = p.opt.Client.Patch(ctx, apiclient.Pods, namespace, name, types.StrategicMergePatchType, patch, nil, "status")
		}
		return func() {
			p.settle(uid, e, "status of pod", want, err, func() {
				e.told = e.want == want
				p.opt.Posted(p.opt.Now().Sub(since))
			})
		}
	})
}

// settle takes in the server's answer. That an object is not there is no more than a
// failure while the source shows it: what is on the way to the server answers so, too,
// and so do webhooks. When it is gone the source says so. want is what was to be told
// when it was asked: what has come since is neither taken nor refused.
func (p *Posts) settle(uid types.UID, e *post, what string, want *corev1.PodStatus, err error, done func()) {
	e.busy = false
	log := p.opt.Log.With("pod", e.namespace+"/"+e.name, "uid", string(uid))
	switch {
	case err == nil:
		e.tries, e.due = 0, time.Time{}
		done()
	case e.static && (apierrors.IsNotFound(err) || apierrors.IsConflict(err)): // the mirror is gone: that will be heard
		e.due = p.opt.Now().Add(settle)
	case e.has == nil && (apierrors.IsNotFound(err) || apierrors.IsConflict(err)): // it, or one of that UID, is gone
		e.lost = true
		if e.over {
			delete(p.pods, uid)
		}
		log.Debug("the server has no such pod any more", "err", err)
	case apierrors.IsInvalid(err), apierrors.IsBadRequest(err):
		log.Error("the server does not take the "+what, "err", err)
		if e.want == want { // until it changes
			e.told, e.due = true, p.opt.Now().Add(retryLast)
		}
	default:
		if e.tries == 0 {
			log.Debug(what+" is tried again", "err", err)
		}
		e.due = p.opt.Now().Add(min(retryFirst<<min(e.tries, 10), retryLast))
		e.tries++
	}
}

// sameStatus compares what is told.
func sameStatus(a, b *corev1.PodStatus) bool { return equality.Semantic.DeepEqual(a, b) }

// agrees reports whether the server has what this node wants it to have.
func agrees(want, has *corev1.PodStatus) bool {
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
