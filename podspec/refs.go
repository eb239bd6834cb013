package podspec

import (
	"strconv"

	corev1 "k8s.io/api/core/v1"
)

// ObjectRef names what a pod uses and does not have in itself: a ConfigMap or
// Secret in the pod's namespace, or what only a server can give it.
type ObjectRef struct {
	Kind     string // ConfigMap, Secret, or one of the kinds below
	Name     string
	Optional bool // the pod can do without it
}

// Kinds of ObjectRef that only a server can give.
const (
	KindToken        = "ServiceAccountToken" // Name: see TokenName
	KindServices     = "Services"            // the environment that services make; Name: LinkedServices or ServerOnly
	KindRuntimeClass = "RuntimeClass"
)

// Names of a Ref of KindServices.
const (
	LinkedServices        = "linked" // the services of the pod's namespace, and the server itself
	KubernetesServiceOnly = "server" // enableServiceLinks: false
)

// TokenName names the token that a projection asks for among those of its pod.
func TokenName(p *corev1.ServiceAccountTokenProjection) string {
	seconds := int64(3600)
	if p.ExpirationSeconds != nil {
		seconds = *p.ExpirationSeconds
	}
	return strconv.FormatInt(seconds, 10) + "/" + p.Audience
}

// FromAPIServer reports whether a server has assigned the pod to its node.
func FromAPIServer(pod *corev1.Pod) bool {
	return pod.Annotations[sourceAnnotation] == sourceControlServer
}

// References gives every ConfigMap and Secret that the pod names in environment
// variables, volumes and imagePullSecrets, each once, in the order in which it
// is first named. One that is needed in one place is needed. An image pull
// secret is optional: without it the pull is tried without credentials. A pod
// that a server has assigned names its services and its RuntimeClass too.
func References(pod *corev1.Pod) []ObjectRef {
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
	if FromAPIServer(pod) {
		refs.server(&pod.Spec)
	}
	return refs
}

func (l *refList) server(s *corev1.PodSpec) {
	services := LinkedServices
	if s.EnableServiceLinks != nil && !*s.EnableServiceLinks {
		services = KubernetesServiceOnly
	}
	l.add(KindServices, services, false)
	if s.RuntimeClassName != nil {
		l.add(KindRuntimeClass, *s.RuntimeClassName, false)
	}
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
		if s := p.ServiceAccountToken; s != nil {
			l.add(KindToken, TokenName(s), false)
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
