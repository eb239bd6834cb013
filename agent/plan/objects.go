package plan

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"berth/podspec"
)

// RefKind is the kind of a referenced object.
type RefKind string

const (
	ConfigMap RefKind = "ConfigMap"
	Secret    RefKind = "Secret"
	// These kinds are used by pods from an API server only. Package podspec defines their names.
	ServiceAccountToken RefKind = "ServiceAccountToken"
	Services            RefKind = "Services"
	RuntimeClass        RefKind = "RuntimeClass"
	ClusterTrustBundle  RefKind = "ClusterTrustBundle"
	PodCertificates     RefKind = "PodCertificate"
	Claim               RefKind = "PersistentVolumeClaim"
)

// Ref references an object in the namespace of the pod.
type Ref struct {
	Kind RefKind
	Name string
}

func (r Ref) String() string { return string(r.Kind) + " " + r.Name }

// notFound returns the message for a required object that does not exist.
func (r Ref) notFound() string {
	if r.Kind == ClusterTrustBundle {
		return podspec.TrustBundleNotFound(r.Name)
	}
	return fmt.Sprintf("%s %q not found", strings.ToLower(string(r.Kind)), r.Name)
}

// Version is the state of a referenced object.
type Version struct {
	Version string // changes with the content, empty with Missing or Err
	Missing bool   // the object does not exist
	Err     string // the object could not be read
	Pending bool   // the object is being fetched: whatever needs it waits and reports no reason
}

// Object is a referenced object. The field of its kind is set unless Version.Missing, Version.Err
// or Version.Pending is set. It is shared and read-only.
type Object struct {
	Version
	ConfigMap *corev1.ConfigMap
	Secret    *corev1.Secret
	Token     string          // service account token bound to this pod
	Env       []corev1.EnvVar // environment variables of services, sorted by name
	Handler   string          // handler of a RuntimeClass
	// TrustBundle has the certificates of the ClusterTrustBundles of a projection, in PEM.
	TrustBundle string
	// PodCertificate is the key and certificate of a projection of this pod.
	PodCertificate *PodCertificate
	// Volume is the volume that a PersistentVolumeClaim is bound to: its name and spec.
	Volume *corev1.PersistentVolume
}

// PodCertificate is a private key with its certificate chain, in PEM.
type PodCertificate struct {
	Key   string `json:"key"`
	Chain string `json:"chain"`
}

// Objects holds the objects that a pod references, read at the same time.
type Objects map[Ref]Object

// EnvFile names a file in an emptyDir with environment variables.
type EnvFile struct {
	Volume string
	Path   string // relative, as in the spec
}

// EnvFileContent is the content of an EnvFile, read just before the start of the container.
type EnvFileContent struct {
	Content string
	Missing bool   // the file does not exist
	Err     string // the file could not be read
}

// EnvFiles holds the files that the environment of a container references.
type EnvFiles map[EnvFile]EnvFileContent
