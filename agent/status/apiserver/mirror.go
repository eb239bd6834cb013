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

// mirror is the mirror pod of a static pod.
//
//	none ──static pod exists──► created ──content differs, or deleted by a user──► deleted ──► none
type mirror struct {
	object    *corev1.Pod // on the server, nil: none known
	inFlight  bool
	retries   int
	notBefore time.Time
	rejection string // last logged error
}

// rejectedRetryInterval is the retry interval after a permanent rejection, which a change of
// permissions may resolve.
const rejectedRetryInterval = 5 * time.Minute

// mirrorUpdated records a mirror pod on the server.
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

// staticPod returns the existing static pod with the name, or nil.
func (p *Manager) staticPod(name types.NamespacedName) *podStatus {
	for _, e := range p.pods {
		if e.static && !e.removed && e.namespace == name.Namespace && e.name == name.Name {
			return e
		}
	}
	return nil
}

// syncMirrors creates missing mirror pods and deletes obsolete ones.
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
		case e == nil && !p.opt.SourcesReady(): // its file may not have been read yet
			m.notBefore = now.Add(settleDelay)
			later(m.notBefore)
		case e == nil, m.object != nil && m.object.DeletionTimestamp != nil, m.object != nil &&
			!mirrorMatches(m.object, e.staticPod):
			p.deleteMirror(name, m, run)
		case m.object == nil:
			p.createMirror(name, m, e, later, run)
		default:
			p.attachMirror(e, m.object)
		}
	}
}

// attachMirror starts to send the status of a static pod to its mirror pod.
func (p *Manager) attachMirror(e *podStatus, object *corev1.Pod) {
	if e.uid != object.UID {
		e.uid, e.synced, e.overwritten = object.UID, false, false
		e.serverUpdated(object, p.opt.Now())
	}
}

// mirrorMatches reports whether the mirror pod belongs to the current version of the static pod.
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

func (p *Manager) createMirror(name types.NamespacedName, m *mirror, e *podStatus, later func(time.Time),
	run func(func(context.Context) func())) {
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

// newMirror returns the mirror pod of a static pod. Its owner is the Node, which restricts its
// creation to the node and deletes it together with the Node.
func newMirror(pod *corev1.Pod, node string, owner types.UID) *corev1.Pod {
	out := &corev1.Pod{Spec: *pod.Spec.DeepCopy()}
	out.ObjectMeta = metav1.ObjectMeta{
		Name: pod.Name, Namespace: pod.Namespace, Labels: maps.Clone(pod.Labels), Annotations: maps.Clone(pod.Annotations),
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node, UID: owner,
			Controller: new(true)}},
	}
	out.Annotations[corev1.MirrorPodAnnotationKey] = string(pod.UID) // under this UID clients find the events of the pod
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
	default: // the source will report an existing object
		if m.retries == 0 {
			p.opt.Log.Debug(what+" is tried again", "pod", name.String(), "err", err)
		}
		m.notBefore = p.opt.Now().Add(min(retryBase<<min(m.retries, 10), retryMax))
		m.retries++
	}
}
