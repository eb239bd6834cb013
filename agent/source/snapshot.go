package source

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/agent/plan"
	"berth/podspec"
)

// File is Snapshot.Source of manifest files, and the value of annotation
// kubernetes.io/config.source.
const File = "file"

// APIServer is Snapshot.Source of an API server, and the value of annotation
// kubernetes.io/config.source.
const APIServer = "api"

// Snapshot is everything that one source desires. It is immutable with everything in it. Unchanged
// objects have the same pointers as in the previous Snapshot.
type Snapshot struct {
	Source     string
	Ready      bool // the source was read completely once; absent pods are not desired
	Pods       []*corev1.Pod
	Pending    map[types.UID]bool        // desired pods that are not in Pods yet; they must not be terminated
	Workloads  []Workload                // of files, by kind, namespace and name
	Services   []*corev1.Service         // of files, by namespace and name
	Objects    map[ObjectKey]plan.Object // of files, the version is a hash of the content
	FileErrors []FileError               // by path and line
	Warnings   []Warning                 // by file
}

// CountInvalidFiles counts the invalid files of all sources.
func CountInvalidFiles(sources []*Snapshot) int {
	bad := map[string]bool{}
	for _, s := range sources {
		for _, f := range s.FileErrors {
			bad[f.Path] = true
		}
	}
	return len(bad)
}

// ObjectKey identifies an object that pods of a source refer to.
type ObjectKey struct {
	Kind plan.RefKind
	types.NamespacedName
}

// KeyOf returns the key of the object that a pod refers to. A token or certificate belongs to its pod, and a
// ClusterTrustBundle to no namespace.
func KeyOf(pod *corev1.Pod, ref plan.Ref) ObjectKey {
	key := ObjectKey{Kind: ref.Kind, NamespacedName: types.NamespacedName{Namespace: pod.Namespace, Name: ref.Name}}
	switch ref.Kind {
	case plan.ServiceAccountToken, plan.PodCertificates:
		key.Name = string(pod.UID) + "/" + ref.Name
	case plan.ClusterTrustBundle:
		key.Namespace = ""
	default:
	}
	return key
}

// HasStaticPod reports whether one of the snapshots has a static pod of this name.
func HasStaticPod(all []*Snapshot, namespace, name string) bool {
	return slices.ContainsFunc(all, func(s *Snapshot) bool {
		return slices.ContainsFunc(s.Pods, func(p *corev1.Pod) bool {
			return podspec.IsStatic(p) && p.Namespace == namespace && p.Name == name
		})
	})
}

// FileError is one error of a file. Message does not contain content of the file.
type FileError struct {
	Path         string
	Line         int    // from 1; 0: the whole file
	Field        string // path like spec.containers[0].image; empty: the file or document
	Message      string
	Since        time.Time // when the error was first found
	LastGoodKept bool      // the last good version stays in effect
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

// Warning is about something in a file that may not have the effect its author expects.
type Warning struct {
	Pod     types.NamespacedName // zero: not about a pod
	File    string
	Line    int // 0: unknown
	Message string
}
