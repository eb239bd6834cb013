package apiserver

import (
	"context"
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/agent/source"
	"berth/internal/apiclient"
)

// mirror is the object that shows a file's pod to the users of the server.
//
//	none ──the file's pod is here──► made ──content differs, or users delete it──► deleted ──► none
type mirror struct {
	object    *corev1.Pod // as the server has it; nil: it has none, as far as is known
	inFlight  bool
	retries   int
	notBefore time.Time
	rejection string // why the server does not take it, as it was last said
}

// rejectedRetryInterval is how long after a refusal another try is made: what is refused
// may be allowed some day.
const rejectedRetryInterval = 5 * time.Minute

// mirrorUpdated takes in a mirror pod as the server has it.
func (p *Manager) mirrorUpdated(pod *corev1.Pod, gone bool) {
	name := types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}
	m := p.mirrors[name]
	if m == nil {
		m = &mirror{}
		p.mirrors[name] = m
	}
	switch {
	case !gone:
		m.object = pod
		if e := p.staticPod(name); e != nil && e.uid == pod.UID {
			e.serverUpdated(pod, p.opt.Now())
		}
	case m.object != nil && m.object.UID == pod.UID:
		m.object, m.notBefore = nil, time.Time{}
	}
	p.wakeUp()
}

// staticPod is the file's pod of that name that is here, not one that is over.
func (p *Manager) staticPod(name types.NamespacedName) *podStatus {
	for _, e := range p.pods {
		if e.static && !e.removed && e.namespace == name.Namespace && e.name == name.Name {
			return e
		}
	}
	return nil
}

// syncMirrors makes the mirrors that are not there and deletes those that should
// not be as they are.
func (p *Manager) syncMirrors(now time.Time, later func(time.Time), run func(func(context.Context) func())) {
	for uid, e := range p.pods {
		name := types.NamespacedName{Namespace: e.namespace, Name: e.name}
		switch {
		case !e.static:
		case e.removed:
			delete(p.pods, uid)
		case p.mirrors[name] == nil:
			p.mirrors[name] = &mirror{}
		}
	}
	for name, m := range p.mirrors {
		e := p.staticPod(name)
		switch {
		case m.inFlight:
		case now.Before(m.notBefore):
			later(m.notBefore)
		case e == nil && m.object == nil:
			delete(p.mirrors, name)
		case e == nil && !p.opt.SourcesReady(): // its file may not be read yet
			m.notBefore = now.Add(settleDelay)
			later(m.notBefore)
		case e == nil, m.object != nil && m.object.DeletionTimestamp != nil, m.object != nil && !mirrorMatches(m.object, e.staticPod):
			p.deleteMirror(name, m, run)
		case m.object == nil:
			p.createMirror(name, m, e, later, run)
		default:
			p.attachMirror(e, m.object)
		}
	}
}

// attachMirror has the status of a file's pod told to the mirror that there is.
func (p *Manager) attachMirror(e *podStatus, object *corev1.Pod) {
	if e.uid != object.UID {
		e.uid, e.synced, e.overwritten = object.UID, false, false
		e.serverUpdated(object, p.opt.Now())
	}
}

// mirrorMatches reports whether a mirror is that of the pod as it is now.
func mirrorMatches(object, pod *corev1.Pod) bool {
	return object.Annotations[corev1.MirrorPodAnnotationKey] == string(pod.UID) &&
		object.Annotations[source.AnnotationContent] == pod.Annotations[source.AnnotationContent]
}

func (p *Manager) deleteMirror(name types.NamespacedName, m *mirror, run func(func(context.Context) func())) {
	m.inFlight = true
	uid := m.object.UID
	for _, e := range p.pods {
		if e.static && e.uid == uid {
			e.uid = ""
		}
	}
	run(func(ctx context.Context) func() {
		err := p.opt.Client.Delete(ctx, apiclient.Pods, name.Namespace, name.Name, apiclient.DeleteNow(uid))
		return func() {
			if err == nil || apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
				err = nil
				if m.object != nil && m.object.UID == uid {
					m.object = nil
				}
			}
			p.finishMirrorRequest(name, m, "delete mirror pod", err)
		}
	})
}

func (p *Manager) createMirror(name types.NamespacedName, m *mirror, e *podStatus, later func(time.Time), run func(func(context.Context) func())) {
	owner := p.opt.NodeUID()
	if owner == "" {
		m.notBefore = p.opt.Now().Add(retryBase)
		later(m.notBefore)
		return
	}
	m.inFlight = true
	object := newMirror(e.staticPod, p.opt.NodeName, owner)
	run(func(ctx context.Context) func() {
		out := &corev1.Pod{}
		err := p.opt.Client.Create(ctx, apiclient.Pods, name.Namespace, object, out)
		return func() {
			if err == nil && m.object == nil {
				m.object = out
			}
			p.finishMirrorRequest(name, m, "make mirror pod", err)
		}
	})
}

// newMirror is the object that shows a file's pod. The Node owns it: that it may be
// made by nobody else, and goes with the Node.
func newMirror(pod *corev1.Pod, node string, owner types.UID) *corev1.Pod {
	out := &corev1.Pod{Spec: *pod.Spec.DeepCopy()}
	out.ObjectMeta = metav1.ObjectMeta{
		Name: pod.Name, Namespace: pod.Namespace, Labels: maps.Clone(pod.Labels), Annotations: maps.Clone(pod.Annotations),
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node, UID: owner, Controller: new(true)}},
	}
	out.Annotations[corev1.MirrorPodAnnotationKey] = string(pod.UID) // under which users find its events, too
	return out
}

func (p *Manager) finishMirrorRequest(name types.NamespacedName, m *mirror, what string, err error) {
	m.inFlight = false
	switch {
	case err == nil:
		m.retries, m.notBefore, m.rejection = 0, time.Time{}, ""
	case apierrors.IsForbidden(err), apierrors.IsInvalid(err), apierrors.IsBadRequest(err):
		if m.rejection != err.Error() {
			m.rejection = err.Error()
			p.opt.Log.Warn("the pod of a file runs and cannot be shown to the server's users", "pod", name.String(), "err", err)
		}
		m.notBefore = p.opt.Now().Add(rejectedRetryInterval)
	default: // one that is there will be heard of
		if m.retries == 0 {
			p.opt.Log.Debug(what+" is tried again", "pod", name.String(), "err", err)
		}
		m.notBefore = p.opt.Now().Add(min(retryBase<<min(m.retries, 10), retryMax))
		m.retries++
	}
}
