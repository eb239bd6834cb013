package apiserver

import (
	"cmp"
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
func (m *Manager) mirrorUpdated(pod *corev1.Pod, deleted bool) {
	name := types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}
	mp := m.mirrors[name]
	if mp == nil {
		mp = &mirror{}
		m.mirrors[name] = mp
	}
	switch {
	case !deleted:
		mp.object = pod
		if ps := m.staticPod(name); ps != nil && ps.uid == pod.UID {
			ps.serverUpdated(pod, m.opt.Now())
		}
	case mp.object != nil && mp.object.UID == pod.UID:
		mp.object, mp.notBefore = nil, time.Time{}
	}
	m.wakeUp()
}

// staticPod returns the existing static pod with the name, or nil.
func (m *Manager) staticPod(name types.NamespacedName) *podStatus {
	for _, ps := range m.pods {
		if ps.static && !ps.removed && ps.namespace == name.Namespace && ps.name == name.Name {
			return ps
		}
	}
	return nil
}

// syncMirrors creates missing mirror pods and deletes obsolete ones.
func (m *Manager) syncMirrors(now time.Time, later func(time.Time), run func(func(context.Context) func())) {
	for uid, ps := range m.pods {
		name := types.NamespacedName{Namespace: ps.namespace, Name: ps.name}
		switch {
		case !ps.static:
		case ps.removed:
			delete(m.pods, uid)
		case m.mirrors[name] == nil:
			m.mirrors[name] = &mirror{}
		}
	}
	for name, mp := range m.mirrors {
		ps := m.staticPod(name)
		switch {
		case mp.inFlight:
		case now.Before(mp.notBefore):
			later(mp.notBefore)
		case ps == nil && mp.object == nil:
			delete(m.mirrors, name)
		case ps == nil && m.opt.StaticPodMayExist(name.Namespace, name.Name):
			mp.notBefore = now.Add(settleDelay)
			later(mp.notBefore)
		case ps == nil, mp.object != nil && mp.object.DeletionTimestamp != nil, mp.object != nil &&
			!mirrorMatches(mp.object, ps.staticPod):
			m.deleteMirror(name, mp, run)
		case mp.object == nil:
			m.createMirror(name, mp, ps, later, run)
		default:
			m.attachMirror(ps, mp.object)
		}
	}
}

// attachMirror starts to send the status of a static pod to its mirror pod.
func (m *Manager) attachMirror(ps *podStatus, object *corev1.Pod) {
	if ps.uid != object.UID {
		ps.uid, ps.synced, ps.overwritten = object.UID, false, false
		ps.serverUpdated(object, m.opt.Now())
	}
}

// mirrorMatches reports whether the mirror pod belongs to the current version of the static pod.
func mirrorMatches(object, pod *corev1.Pod) bool {
	content := cmp.Or(object.Annotations[source.AnnotationContent], pod.Annotations[source.AnnotationAdopted])
	return object.Annotations[corev1.MirrorPodAnnotationKey] == string(pod.UID) &&
		content == pod.Annotations[source.AnnotationContent]
}

func (m *Manager) deleteMirror(name types.NamespacedName, mp *mirror, run func(func(context.Context) func())) {
	mp.inFlight = true
	uid := mp.object.UID
	for _, ps := range m.pods {
		if ps.static && ps.uid == uid {
			ps.uid = ""
		}
	}
	run(func(ctx context.Context) func() {
		err := m.opt.Client.Delete(ctx, apiclient.Pods, name.Namespace, name.Name, apiclient.DeleteNow(uid))
		return func() {
			if err == nil || apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
				err = nil
				if mp.object != nil && mp.object.UID == uid {
					mp.object = nil
				}
			}
			m.finishMirrorRequest(name, mp, "delete mirror pod", err)
		}
	})
}

func (m *Manager) createMirror(name types.NamespacedName, mp *mirror, ps *podStatus, later func(time.Time),
	run func(func(context.Context) func())) {
	owner := m.opt.NodeUID()
	if owner == "" {
		mp.notBefore = m.opt.Now().Add(retryBase)
		later(mp.notBefore)
		return
	}
	mp.inFlight = true
	object := newMirror(ps.staticPod, m.opt.NodeName, owner)
	run(func(ctx context.Context) func() {
		out := &corev1.Pod{}
		err := m.opt.Client.Create(ctx, apiclient.Pods, name.Namespace, object, out)
		return func() {
			if err == nil && mp.object == nil {
				mp.object = out
			}
			m.finishMirrorRequest(name, mp, "create mirror pod", err)
		}
	})
}

// newMirror returns the mirror pod of a static pod. Its owner is the Node, which restricts its
// creation to the node and deletes it together with the Node.
func newMirror(pod *corev1.Pod, node string, owner types.UID) *corev1.Pod {
	out := &corev1.Pod{Spec: *pod.Spec.DeepCopy()}
	out.ObjectMeta = metav1.ObjectMeta{
		Name: pod.Name, Namespace: pod.Namespace, Labels: maps.Clone(pod.Labels),
		Annotations: maps.Clone(pod.Annotations),
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node, UID: owner,
			Controller: new(true)}},
	}
	// under this UID clients find the events of the pod
	out.Annotations[corev1.MirrorPodAnnotationKey] = string(pod.UID)
	return out
}

func (m *Manager) finishMirrorRequest(name types.NamespacedName, mp *mirror, action string, err error) {
	mp.inFlight = false
	switch {
	case err == nil:
		mp.retries, mp.notBefore, mp.rejection = 0, time.Time{}, ""
	case apierrors.IsForbidden(err), apierrors.IsInvalid(err), apierrors.IsBadRequest(err):
		if mp.rejection != err.Error() {
			mp.rejection = err.Error()
			m.opt.Log.Warn("mirror pod rejected", "pod", name.String(), "err", err)
		}
		mp.notBefore = m.opt.Now().Add(rejectedRetryInterval)
	default: // the source will report an existing object
		if mp.retries == 0 {
			m.opt.Log.Debug("request failed; retrying", "action", action, "pod", name.String(), "err", err)
		}
		mp.notBefore = m.opt.Now().Add(min(retryBase<<min(mp.retries, 10), retryMax))
		mp.retries++
	}
}
