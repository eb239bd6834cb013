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
	object *corev1.Pod // as the server has it; nil: it has none, as far as is known
	busy   bool
	tries  int
	due    time.Time
	refuse string // why the server does not take it, as it was last said
}

// refusedAgain is how long after a refusal another try is made: what is refused
// may be allowed some day.
const refusedAgain = 5 * time.Minute

// heardMirror takes in a mirror pod as the server has it.
func (p *Posts) heardMirror(pod *corev1.Pod, gone bool) {
	name := types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}
	m := p.mirrors[name]
	if m == nil {
		m = &mirror{}
		p.mirrors[name] = m
	}
	switch {
	case !gone:
		m.object = pod
		if e := p.static(name); e != nil && e.uid == pod.UID {
			e.hears(pod, p.opt.Now())
		}
	case m.object != nil && m.object.UID == pod.UID:
		m.object, m.due = nil, time.Time{}
	}
	p.nudge()
}

// static is the file's pod of that name that is here, not one that is over.
func (p *Posts) static(name types.NamespacedName) *post {
	for _, e := range p.pods {
		if e.static && !e.over && e.namespace == name.Namespace && e.name == name.Name {
			return e
		}
	}
	return nil
}

// beginMirrors makes the mirrors that are not there and deletes those that should
// not be as they are.
func (p *Posts) beginMirrors(now time.Time, later func(time.Time), run func(func(context.Context) func())) {
	for uid, e := range p.pods {
		name := types.NamespacedName{Namespace: e.namespace, Name: e.name}
		switch {
		case !e.static:
		case e.over:
			delete(p.pods, uid)
		case p.mirrors[name] == nil:
			p.mirrors[name] = &mirror{}
		}
	}
	for name, m := range p.mirrors {
		e := p.static(name)
		switch {
		case m.busy:
		case now.Before(m.due):
			later(m.due)
		case e == nil && m.object == nil:
			delete(p.mirrors, name)
		case e == nil && !p.opt.Settled(): // its file may not be read yet
			m.due = now.Add(settle)
			later(m.due)
		case e == nil, m.object != nil && m.object.DeletionTimestamp != nil, m.object != nil && !shows(m.object, e.mirrorOf):
			p.deleteMirror(name, m, run)
		case m.object == nil:
			p.makeMirror(name, m, e, later, run)
		default:
			p.show(e, m.object)
		}
	}
}

// show has the status of a file's pod told to the mirror that there is.
func (p *Posts) show(e *post, object *corev1.Pod) {
	if e.uid != object.UID {
		e.uid, e.told, e.rewrite = object.UID, false, false
		e.hears(object, p.opt.Now())
	}
}

// shows reports whether a mirror is that of the pod as it is now.
func shows(object, pod *corev1.Pod) bool {
	return object.Annotations[corev1.MirrorPodAnnotationKey] == string(pod.UID) &&
		object.Annotations[source.AnnotationContent] == pod.Annotations[source.AnnotationContent]
}

func (p *Posts) deleteMirror(name types.NamespacedName, m *mirror, run func(func(context.Context) func())) {
	m.busy = true
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
			p.settleMirror(name, m, "delete mirror pod", err)
		}
	})
}

func (p *Posts) makeMirror(name types.NamespacedName, m *mirror, e *post, later func(time.Time), run func(func(context.Context) func())) {
	owner := p.opt.NodeUID()
	if owner == "" {
		m.due = p.opt.Now().Add(retryFirst)
		later(m.due)
		return
	}
	m.busy = true
	object := mirrorOf(e.mirrorOf, p.opt.NodeName, owner)
	run(func(ctx context.Context) func() {
		out := &corev1.Pod{}
		err := p.opt.Client.Create(ctx, apiclient.Pods, name.Namespace, object, out)
		return func() {
			if err == nil && m.object == nil {
				m.object = out
			}
			p.settleMirror(name, m, "make mirror pod", err)
		}
	})
}

// mirrorOf is the object that shows a file's pod. The Node owns it: that it may be
// made by nobody else, and goes with the Node.
func mirrorOf(pod *corev1.Pod, node string, owner types.UID) *corev1.Pod {
	out := &corev1.Pod{Spec: *pod.Spec.DeepCopy()}
	out.ObjectMeta = metav1.ObjectMeta{
		Name: pod.Name, Namespace: pod.Namespace, Labels: maps.Clone(pod.Labels), Annotations: maps.Clone(pod.Annotations),
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node, UID: owner, Controller: new(true)}},
	}
	out.Annotations[corev1.MirrorPodAnnotationKey] = string(pod.UID) // under which users find its events, too
	return out
}

func (p *Posts) settleMirror(name types.NamespacedName, m *mirror, what string, err error) {
	m.busy = false
	switch {
	case err == nil:
		m.tries, m.due, m.refuse = 0, time.Time{}, ""
	case apierrors.IsForbidden(err), apierrors.IsInvalid(err), apierrors.IsBadRequest(err):
		if m.refuse != err.Error() {
			m.refuse = err.Error()
			p.opt.Log.Warn("the pod of a file runs and cannot be shown to the server's users", "pod", name.String(), "err", err)
		}
		m.due = p.opt.Now().Add(refusedAgain)
	default: // one that is there will be heard of
		if m.tries == 0 {
			p.opt.Log.Debug(what+" is tried again", "pod", name.String(), "err", err)
		}
		m.due = p.opt.Now().Add(min(retryFirst<<min(m.tries, 10), retryLast))
		m.tries++
	}
}
