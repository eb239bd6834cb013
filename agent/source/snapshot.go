package source

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/agent/plan"
)

// File is Snapshot.Source of manifest files and the value of annotation
// kubernetes.io/config.source.
const File = "file"

// APIServer is Snapshot.Source of pods that a server assigns, and likewise.
const APIServer = "api"

// Snapshot is everything one source wants now. It is immutable, and so is
// everything in it; what has not changed since the last Snapshot is the same
// pointer.
type Snapshot struct {
	Source     string
	Ready      bool // the source has been read in full once: what is absent is not wanted
	Pods       []*corev1.Pod
	Objects    map[ObjectKey]plan.Object // the version is a hash of the content
	FileErrors []FileError               // by path and line
	Warnings   []Warning                 // by file
}

// ObjectKey names what pods of a source use and do not have in themselves.
type ObjectKey struct {
	Kind plan.RefKind
	types.NamespacedName
}

// KeyOf names the object behind a pod's reference. A token is the pod's own.
func KeyOf(pod *corev1.Pod, ref plan.Ref) ObjectKey {
	key := ObjectKey{Kind: ref.Kind, NamespacedName: types.NamespacedName{Namespace: pod.Namespace, Name: ref.Name}}
	if ref.Kind == plan.Token {
		key.Name = string(pod.UID) + "/" + ref.Name
	}
	return key
}

// FileError is one complaint about a file. Message has no content of the file.
type FileError struct {
	Path         string
	Line         int    // from 1; 0: the whole file
	Field        string // as in spec.containers[0].image; empty: the file or document
	Message      string
	Since        time.Time // when the file was first found bad
	LastGoodKept bool      // the last good version is still wanted
}

func (b FileError) String() string {
	s := b.Path
	if b.Line > 0 {
		s += fmt.Sprintf(":%d", b.Line)
	}
	if b.Field != "" {
		s += ": " + b.Field
	}
	return s + ": " + b.Message
}

// Warning is something in a file that will not do what its author may expect.
type Warning struct {
	Pod     types.NamespacedName // zero: not about a pod
	File    string
	Line    int // 0: unknown
	Message string
}
