package podspec

import (
	corev1 "k8s.io/api/core/v1"
)

// ObjectRef names a ConfigMap or Secret that a pod uses, in the pod's namespace.
type ObjectRef struct {
	Kind     string // ConfigMap or Secret
	Name     string
	Optional bool // the pod can do without it
}

// Refs gives every ConfigMap and Secret that the pod names in environment
// variables, volumes and imagePullSecrets, each once, in the order in which it
// is first named. One that is needed in one place is needed. An image pull
// secret is optional: without it the pull is tried without credentials.
func Refs(pod *corev1.Pod) []ObjectRef {
	var refs refList
	for i := range pod.Spec.Volumes {
		refs.volume(&pod.Spec.Volumes[i].VolumeSource)
	}
	for c := range containersOf(&pod.Spec) {
		refs.env(c)
	}
	for _, s := range pod.Spec.ImagePullSecrets {
		refs.add("Secret", s.Name, true)
	}
	return refs
}

type refList []ObjectRef

func (l *refList) add(kind, name string, optional bool) {
	if name == "" {
		return
	}
	for i, r := range *l {
		if r.Kind == kind && r.Name == name {
			(*l)[i].Optional = r.Optional && optional
			return
		}
	}
	*l = append(*l, ObjectRef{Kind: kind, Name: name, Optional: optional})
}

func (l *refList) volume(v *corev1.VolumeSource) {
	if s := v.ConfigMap; s != nil {
		l.add("ConfigMap", s.Name, isTrue(s.Optional))
	}
	if s := v.Secret; s != nil {
		l.add("Secret", s.SecretName, isTrue(s.Optional))
	}
	if v.Projected == nil {
		return
	}
	for _, p := range v.Projected.Sources {
		if s := p.ConfigMap; s != nil {
			l.add("ConfigMap", s.Name, isTrue(s.Optional))
		}
		if s := p.Secret; s != nil {
			l.add("Secret", s.Name, isTrue(s.Optional))
		}
	}
}

func (l *refList) env(c *corev1.Container) {
	for _, e := range c.EnvFrom {
		if s := e.ConfigMapRef; s != nil {
			l.add("ConfigMap", s.Name, isTrue(s.Optional))
		}
		if s := e.SecretRef; s != nil {
			l.add("Secret", s.Name, isTrue(s.Optional))
		}
	}
	for _, e := range c.Env {
		if e.ValueFrom == nil {
			continue
		}
		if s := e.ValueFrom.ConfigMapKeyRef; s != nil {
			l.add("ConfigMap", s.Name, isTrue(s.Optional))
		}
		if s := e.ValueFrom.SecretKeyRef; s != nil {
			l.add("Secret", s.Name, isTrue(s.Optional))
		}
	}
}

func isTrue(b *bool) bool { return b != nil && *b }
