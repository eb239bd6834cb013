package podspec

import (
	"strconv"

	corev1 "k8s.io/api/core/v1"
)

// ObjectRef is an object that a pod uses: a ConfigMap or Secret in the namespace of the pod, or
// something that only an API server provides.
type ObjectRef struct {
	Kind     string // ConfigMap, Secret, or one of the kinds below
	Name     string
	Optional bool // the pod can run without it
}

// Kinds of ObjectRef that no manifest defines as such.
const (
	KindToken        = "ServiceAccountToken" // Name: see TokenName
	KindServices     = "Services"            // environment of Services; Name: see below
	KindRuntimeClass = "RuntimeClass"
	KindTrustBundle  = "ClusterTrustBundle" // Name: see TrustBundleName
	KindCertificate  = "PodCertificate"     // Name: see PodCertificateName
	// KindClaim is a PersistentVolumeClaim with the volume that it is bound to.
	KindClaim = "PersistentVolumeClaim"
)

// Names of an ObjectRef of KindServices.
const (
	LinkedServices        = "linked" // the Services of the namespace and default/kubernetes
	KubernetesServiceOnly = "server" // enableServiceLinks: false
	LinkedFileServices    = "files"  // for a pod of a file: the Services of files in the namespace
)

// TokenName returns the name of the token of a projection among the tokens of the pod.
func TokenName(p *corev1.ServiceAccountTokenProjection) string {
	seconds := int64(3600)
	if p.ExpirationSeconds != nil {
		seconds = *p.ExpirationSeconds
	}
	return strconv.FormatInt(seconds, 10) + "/" + p.Audience
}

// FromAPIServer reports whether the pod was bound to the node by an API server.
func FromAPIServer(pod *corev1.Pod) bool {
	return pod.Annotations[sourceAnnotation] == sourceControlServer
}

// References returns every ConfigMap and Secret that the pod refers to in environment variables,
// volumes and imagePullSecrets, each once, in the order of the first reference. It is required if
// one reference is. An image pull secret is optional: without it the pull is anonymous. A pod from
// an API server also refers to its Services and its RuntimeClass, and a pod of a file to the Services of
// files, which a node of a cluster does not have.
func References(pod *corev1.Pod) []ObjectRef {
	var refs refList
	for i := range pod.Spec.Volumes {
		refs.volume(&pod.Spec.Volumes[i])
		refs.add(KindClaim, ClaimName(pod, &pod.Spec.Volumes[i]), false)
	}
	for c := range containersOf(&pod.Spec) {
		refs.env(c)
	}
	for _, s := range pod.Spec.ImagePullSecrets {
		refs.add("Secret", s.Name, true)
	}
	linked := pod.Spec.EnableServiceLinks == nil || *pod.Spec.EnableServiceLinks
	switch {
	case FromAPIServer(pod):
		services := LinkedServices
		if !linked {
			services = KubernetesServiceOnly
		}
		refs.add(KindServices, services, false)
		if name := pod.Spec.RuntimeClassName; name != nil {
			refs.add(KindRuntimeClass, *name, false)
		}
	case IsStatic(pod) && linked:
		refs.add(KindServices, LinkedFileServices, true)
	}
	return refs
}

// ClaimName returns the name of the PersistentVolumeClaim of a volume, or "" if it has none. That of an ephemeral
// volume is created for the pod.
func ClaimName(pod *corev1.Pod, v *corev1.Volume) string {
	switch {
	case v.PersistentVolumeClaim != nil:
		return v.PersistentVolumeClaim.ClaimName
	case v.Ephemeral != nil:
		return pod.Name + "-" + v.Name
	}
	return ""
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

func (l *refList) volume(v *corev1.Volume) {
	if s := v.ConfigMap; s != nil {
		l.add("ConfigMap", s.Name, isTrue(s.Optional))
	}
	if s := v.Secret; s != nil {
		l.add("Secret", s.SecretName, isTrue(s.Optional))
	}
	if v.Projected == nil {
		return
	}
	for i, p := range v.Projected.Sources {
		if s := p.ConfigMap; s != nil {
			l.add("ConfigMap", s.Name, isTrue(s.Optional))
		}
		if s := p.Secret; s != nil {
			l.add("Secret", s.Name, isTrue(s.Optional))
		}
		if s := p.ServiceAccountToken; s != nil {
			l.add(KindToken, TokenName(s), false)
		}
		if s := p.ClusterTrustBundle; s != nil {
			l.add(KindTrustBundle, TrustBundleName(s), isTrue(s.Optional))
		}
		if p.PodCertificate != nil {
			l.add(KindCertificate, PodCertificateName(v.Name, i), false)
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
