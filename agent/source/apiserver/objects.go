package apiserver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"berth/agent/plan"
	"berth/agent/source"
	"berth/internal/apiclient"
)

// object is an object that pods use.
type object struct {
	refCount int // number of pods
	since    time.Time
	resolved bool // value is set: resolved, or timed out
	value    plan.Object
	lastErr  string // last error
	stop     context.CancelFunc
	token    token // of a service account token or a pod certificate
}

// setReferences sets the objects that a pod uses. known are its objects of the previous run.
func (s *Source) setReferences(h *trackedPod, keys []source.ObjectKey, known plan.Objects) {
	before := h.references
	h.references = keys
	for _, key := range keys {
		u := s.objects[key]
		if u == nil {
			u = &object{since: s.opt.Now()}
			s.objects[key] = u
			name := key.Name
			if key.Kind == plan.ServiceAccountToken || key.Kind == plan.PodCertificates {
				_, name, _ = strings.Cut(key.Name, "/")
			}
			if o, ok := known[plan.Ref{Kind: key.Kind, Name: name}]; ok && !o.Missing && !o.Pending && o.Err == "" {
				u.resolved, u.value = true, o
			}
			s.watchObject(key, u, h.pod)
			s.dirty = true
		}
		u.refCount++
	}
	for _, key := range before {
		if u := s.objects[key]; u != nil {
			if u.refCount--; u.refCount == 0 {
				u.stop()
				delete(s.objects, key)
				s.dirty = true
			}
		}
	}
}

// watchObject starts to watch or to compute an object.
func (s *Source) watchObject(key source.ObjectKey, u *object, pod *corev1.Pod) {
	ctx, stop := context.WithCancel(s.ctx)
	u.stop = stop
	switch key.Kind {
	case plan.ConfigMap:
		s.watchSingle(ctx, key, u, apiclient.ConfigMaps)
	case plan.Secret:
		s.watchSingle(ctx, key, u, apiclient.Secrets)
	case plan.ServiceAccountToken:
		s.startToken(ctx, key, u, pod)
	case plan.Services:
		s.environment(key, u)
	case plan.RuntimeClass:
		s.class(key, u)
	case plan.ClusterTrustBundle:
		s.watchTrustBundles(ctx, key, u)
	case plan.PodCertificates:
		s.startPodCertificate(ctx, key, u, pod)
	case plan.Claim:
		s.startClaim(ctx, key, u, pod)
	}
}

// watchSingle watches a single object by name.
func (s *Source) watchSingle(ctx context.Context, key source.ObjectKey, u *object, r apiclient.Resource) {
	set := func(o plan.Object) {
		s.do(func() {
			if ctx.Err() == nil {
				s.set(u, o)
			}
		})
	}
	missing := plan.Object{Version: plan.Version{Missing: true}}
	s.watch(ctx, apiclient.WatchOptions{
		Resource: r, Namespace: key.Namespace, FieldSelector: apiclient.ByName(key.Name),
		Transform: trim,
		OnReplace: func(list []runtime.Object) {
			if len(list) == 0 {
				set(missing)
				return
			}
			set(objectOf(list[0]))
		},
		OnUpdate: func(o runtime.Object) { set(objectOf(o)) },
		OnDelete: func(runtime.Object) { set(missing) },
		OnError: func(err error) {
			s.do(func() { u.lastErr = errorText(err) })
		},
	})
}

// set sets the current value of an object.
func (s *Source) set(u *object, o plan.Object) {
	u.lastErr = ""
	if u.resolved && u.value.Version == o.Version {
		return
	}
	u.resolved, u.value, s.dirty = true, o, true
}

// trim removes metadata of a ConfigMap or Secret that pods cannot see.
func trim(o runtime.Object) {
	strip := func(m *metav1.ObjectMeta) {
		*m = metav1.ObjectMeta{Name: m.Name, Namespace: m.Namespace, UID: m.UID, ResourceVersion: m.ResourceVersion}
	}
	switch o := o.(type) {
	case *corev1.ConfigMap:
		strip(&o.ObjectMeta)
	case *corev1.Secret:
		strip(&o.ObjectMeta)
	}
}

func objectOf(o runtime.Object) plan.Object {
	switch o := o.(type) {
	case *corev1.ConfigMap:
		return plan.Object{ConfigMap: o, Version: plan.Version{Version: string(o.UID) + "/" + o.ResourceVersion}}
	case *corev1.Secret:
		return plan.Object{Secret: o, Version: plan.Version{Version: string(o.UID) + "/" + o.ResourceVersion}}
	}
	return plan.Object{Version: plan.Version{Missing: true}}
}

// errorMessage returns why the object is not available, for users.
func (u *object) errorMessage(key source.ObjectKey) string {
	why := cmp.Or(u.lastErr, "the server has not responded")
	switch key.Kind {
	case plan.ConfigMap, plan.Secret:
		return fmt.Sprintf("%s %q: %s", strings.ToLower(string(key.Kind)), key.Namespace+"/"+key.Name, why)
	case plan.ServiceAccountToken:
		return "failed to fetch token: " + why
	case plan.Claim:
		return fmt.Sprintf("error processing PVC %s/%s: %s", key.Namespace, key.Name, why)
	case plan.PodCertificates:
		return "pod certificate: " + why
	case plan.ClusterTrustBundle:
		return fmt.Sprintf("clustertrustbundle %q: %s", key.Name, why)
	default:
		return fmt.Sprintf("%s %s: %s", key.Kind, key.Name, why)
	}
}

// errorText returns the message of the server if it has sent one, otherwise the error.
func errorText(err error) string {
	if status := apierrors.APIStatus(nil); errors.As(err, &status) {
		return status.Status().Message
	}
	return err.Error()
}
