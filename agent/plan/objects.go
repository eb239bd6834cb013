package plan

import corev1 "k8s.io/api/core/v1"

// RefKind is the kind of an object that a pod names.
type RefKind string

const (
	ConfigMap RefKind = "ConfigMap"
	Secret    RefKind = "Secret"
	// Of pods that a server assigns, as package podspec names them.
	ServiceAccountToken RefKind = "ServiceAccountToken"
	Services            RefKind = "Services"
	RuntimeClass        RefKind = "RuntimeClass"
)

// Ref names an object that a pod uses, in the pod's own namespace.
type Ref struct {
	Kind RefKind
	Name string
}

func (r Ref) String() string { return string(r.Kind) + " " + r.Name }

// Version is what is known of the object behind a Ref.
type Version struct {
	Version string // changes whenever the content does; empty with Missing or Err
	Missing bool   // there is no such object
	Err     string // it could not be read
	Pending bool   // it has been asked for and will be known in a moment: what needs it waits, without a word
}

// Object is the object behind a Ref: the field of its kind is set unless
// Version.Missing, Version.Err or Version.Late says why not. Shared, read-only.
type Object struct {
	Version
	ConfigMap *corev1.ConfigMap
	Secret    *corev1.Secret
	Token     string          // of a service account, for this pod alone
	Env       []corev1.EnvVar // that the cluster's services make, by name
	Handler   string          // of a RuntimeClass, as the runtime knows it
}

// Objects holds the objects that a pod names, taken at one moment.
type Objects map[Ref]Object

// EnvFile names a file of an emptyDir that holds variables of containers.
type EnvFile struct {
	Volume string
	Path   string // relative, as in the spec
}

// EnvFileContent is what such a file held when it was read, just before a start.
type EnvFileContent struct {
	Content string
	Missing bool   // there is no such file
	Err     string // it could not be read
}

// EnvFiles holds the files that a container's environment names.
type EnvFiles map[EnvFile]EnvFileContent
