package source

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/podspec"
)

// Annotations of a file pod, as upstream sets them.
const (
	AnnotationSource = "kubernetes.io/config.source" // File
	AnnotationSeen   = "kubernetes.io/config.seen"   // when this content was first seen, RFC 3339
	AnnotationHash   = "kubernetes.io/config.hash"   // the UID, which is part of the name of the log directory
)

// AnnotationContent is berth's own annotation: the hash of the whole manifest of the pod.
const AnnotationContent = podspec.ContentAnnotation

// AnnotationAdopted is the hash of the manifest of a static pod when berth adopted it from the kubelet.
// A mirror pod without AnnotationContent, which the kubelet created, belongs to this version.
const AnnotationAdopted = podspec.AdoptedAnnotation

var serverAnnotations = []string{AnnotationSource, AnnotationSeen, AnnotationHash, AnnotationContent, AnnotationAdopted,
	corev1.MirrorPodAnnotationKey, "kubectl.kubernetes.io/last-applied-configuration"}

// Identity turns a manifest into a pod of this node.
type Identity struct {
	NodeName       string
	SuffixNodeName bool // append the node name to the pod name, as needed for mirror pods
}

// apply sets the identity of a decoded pod, which it changes. The hashes cover the text as written,
// so that a release with other defaults does not replace running pods.
func (id Identity) apply(pod *corev1.Pod, written []byte, modified, now time.Time) []string {
	warnings := strip(pod)
	if pod.Spec.NodeName != "" && pod.Spec.NodeName != id.NodeName {
		warnings = append(
			warnings,
			fmt.Sprintf(
				"spec.nodeName %.253s is ignored: a pod in a file runs on this node, %s",
				pod.Spec.NodeName,
				id.NodeName,
			),
		)
	}
	pod.Spec.NodeName = ""
	for _, a := range serverAnnotations {
		delete(pod.Annotations, a)
	}
	hash, uid := id.sums(pod, written)
	if id.SuffixNodeName {
		pod.Name += "-" + strings.ToLower(id.NodeName)
	}
	pod.UID = uid
	pod.Generation = 1
	pod.CreationTimestamp = metav1.NewTime(modified.UTC().Truncate(time.Second))
	pod.Spec.NodeName = id.NodeName
	if pod.Annotations == nil {
		pod.Annotations = map[string]string{}
	}
	pod.Annotations[AnnotationSource] = File
	pod.Annotations[AnnotationSeen] = now.UTC().Format(time.RFC3339Nano)
	pod.Annotations[AnnotationHash] = string(uid)
	pod.Annotations[AnnotationContent] = hash
	everything := corev1.Toleration{Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute}
	if !slices.Contains(pod.Spec.Tolerations, everything) {
		pod.Spec.Tolerations = append(pod.Spec.Tolerations, everything)
	}
	return warnings
}

// strip removes metadata and status that belong to an API server. Manifests exported from a server
// contain them.
func strip(pod *corev1.Pod) (warnings []string) {
	if pod.UID != "" {
		warnings = append(warnings, "metadata.uid is ignored: the UID of a pod in a file is derived from its content")
	}
	if pod.DeletionTimestamp != nil {
		warnings = append(warnings, "metadata.deletionTimestamp is ignored: remove the file to delete the pod")
	}
	pod.ObjectMeta = metav1.ObjectMeta{
		Name: pod.Name, Namespace: pod.Namespace, Labels: pod.Labels, Annotations: pod.Annotations,
	}
	pod.Status = corev1.PodStatus{}
	return warnings
}

// sums returns the hash of the whole pod, and its UID. The UID is the same for pods that differ in
// images only, or in amounts of CPU and memory as far as a running pod can be resized: of
// containers, sidecars and the pod itself, with the same resources named and the same QoS class.
// written is the manifest as written, so that a newer release of the API types results in the same
// hashes.
func (id Identity) sums(pod *corev1.Pod, written []byte) (string, types.UID) {
	var tree struct {
		Metadata struct {
			Labels      map[string]any `json:"labels,omitempty"`
			Annotations map[string]any `json:"annotations,omitempty"`
		} `json:"metadata"`
		Spec map[string]any `json:"spec"`
	}
	if err := json.Unmarshal(written, &tree); err != nil {
		panic("source: decoded manifest is not JSON") // it was decoded from JSON
	}
	for _, a := range serverAnnotations {
		delete(tree.Metadata.Annotations, a)
	}
	delete(tree.Spec, "nodeName")
	whole := sum(id.NodeName, pod.Namespace, pod.Name, tree)
	resizable := blankAmounts(tree.Spec)
	for _, list := range []string{"initContainers", "containers"} {
		containers, _ := tree.Spec[list].([]any)
		for _, c := range containers {
			if c, ok := c.(map[string]any); ok {
				delete(c, "image")
				if restart, _ := c["restartPolicy"].(string); list == "containers" ||
					restart == string(corev1.ContainerRestartPolicyAlways) {
					resizable = blankAmounts(c) || resizable
				}
			}
		}
	}
	what := []any{id.NodeName, pod.Namespace, pod.Name, tree}
	if resizable {
		complete := pod.DeepCopy()
		podspec.SetDefaults(complete)
		what = append(what, podspec.QOSClass(complete))
	}
	return hex.EncodeToString(whole[:16]), uidFrom(sum(what...))
}

// blankAmounts removes the amounts of CPU and memory, but not their names, from resources. It
// reports whether there were any.
func blankAmounts(c map[string]any) (some bool) {
	resources, _ := c["resources"].(map[string]any)
	for _, list := range []string{"requests", "limits"} {
		amounts, _ := resources[list].(map[string]any)
		for _, name := range []string{"cpu", "memory"} {
			if _, named := amounts[name]; named {
				amounts[name], some = "", true
			}
		}
	}
	return some
}

// sum hashes values by their JSON form, whose keys are sorted.
func sum(values ...any) []byte {
	b, err := json.Marshal(values)
	if err != nil {
		panic("source: " + err.Error()) // all values came from JSON
	}
	s := sha256.Sum256(b)
	return s[:]
}

// continueFrom makes next the successor of the pod before: the same pointer if nothing changed,
// else the same creation timestamp if it has the same UID.
func continueFrom(before, next *corev1.Pod) *corev1.Pod {
	if before.UID != next.UID || before.Name != next.Name {
		return next
	}
	if contentHash(before) == contentHash(next) {
		return before
	}
	next.CreationTimestamp = before.CreationTimestamp
	next.Generation = before.Generation + 1
	return next
}

// restoreIdentity gives next the creation timestamp and generation of the previous run of the
// agent. A generation is never used twice.
func restoreIdentity(was, next *corev1.Pod) {
	if was == nil || was.Name != next.Name || was.Generation == 0 {
		return
	}
	next.CreationTimestamp, next.Generation = was.CreationTimestamp, was.Generation
	if contentHash(was) != contentHash(next) {
		next.Generation++
	} else if seen := was.Annotations[AnnotationSeen]; seen != "" {
		next.Annotations[AnnotationSeen] = seen
	}
}

// contentHash is the hash of the whole manifest of a pod. Pods stored by earlier releases have it
// in the annotation that now contains the UID.
func contentHash(pod *corev1.Pod) string {
	if hash, own := pod.Annotations[AnnotationContent]; own {
		return hash
	}
	return pod.Annotations[AnnotationHash]
}

// contentVersion is the version of a ConfigMap or Secret: a hash of the content visible to pods.
func contentVersion(content ...any) string {
	return hex.EncodeToString(sum(content...)[:8])
}

// SameRevision reports whether two objects are the same revision of a pod: by resource version, or
// else by content hash and images. A deletion is a revision of its own.
func SameRevision(a, b *corev1.Pod) bool {
	if a == b {
		return true
	}
	if (a.DeletionTimestamp == nil) != (b.DeletionTimestamp == nil) {
		return false
	}
	if a.ResourceVersion != "" || b.ResourceVersion != "" {
		return a.ResourceVersion == b.ResourceVersion
	}
	return contentHash(a) != "" && contentHash(a) == contentHash(b) &&
		maps.EqualFunc(imageByName(a), imageByName(b), func(x, y string) bool { return x == y })
}

// ManifestChanged reports whether the manifest of a file pod has changed.
func ManifestChanged(was, now *corev1.Pod) bool {
	if was == nil || now == nil || now.Annotations[AnnotationSource] != File {
		return false
	}
	before, after := contentHash(was), contentHash(now)
	return before != "" && after != "" && before != after
}

// imageByName maps the containers of a pod to their images, which may change in place.
func imageByName(pod *corev1.Pod) map[string]string {
	m := make(map[string]string, len(pod.Spec.Containers)+len(pod.Spec.InitContainers))
	for i := range pod.Spec.InitContainers {
		m[pod.Spec.InitContainers[i].Name] = pod.Spec.InitContainers[i].Image
	}
	for i := range pod.Spec.Containers {
		m[pod.Spec.Containers[i].Name] = pod.Spec.Containers[i].Image
	}
	return m
}
