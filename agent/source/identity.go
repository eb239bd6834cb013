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

// Annotations of a file pod, named as upstream names them.
const (
	AnnotationSource = "kubernetes.io/config.source" // File
	AnnotationSeen   = "kubernetes.io/config.seen"   // when this content was first seen, RFC 3339
	AnnotationHash   = "kubernetes.io/config.hash"   // the UID: the directory of the pod's logs has it in its name
)

// AnnotationContent is berth's own: the hash of the whole manifest of the pod.
const AnnotationContent = "berth.dev/config.content"

var serverAnnotations = []string{AnnotationSource, AnnotationSeen, AnnotationHash, AnnotationContent,
	corev1.MirrorPodAnnotationKey, "kubectl.kubernetes.io/last-applied-configuration"}

// Identity is what makes a manifest this node's pod.
type Identity struct {
	NodeName       string
	SuffixNodeName bool // name becomes name-nodename: what mirror pods on a server need
}

// apply gives a decoded pod, which it changes, its identity. The hashes are of
// what the author wrote: a newer berth with another default ends no running pod.
func (id Identity) apply(pod *corev1.Pod, written []byte, modified, now time.Time) []string {
	warnings := strip(pod)
	if pod.Spec.NodeName != "" && pod.Spec.NodeName != id.NodeName {
		warnings = append(warnings, fmt.Sprintf("spec.nodeName %.253s is ignored: a pod in a file runs on this node, %s", pod.Spec.NodeName, id.NodeName))
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

// strip takes out what belongs to a server: it is there when a manifest was
// exported from one.
func strip(pod *corev1.Pod) (warnings []string) {
	if pod.UID != "" {
		warnings = append(warnings, "metadata.uid is ignored: the UID of a pod in a file follows from its content")
	}
	if pod.DeletionTimestamp != nil {
		warnings = append(warnings, "metadata.deletionTimestamp is ignored: remove the file to end the pod")
	}
	pod.ObjectMeta = metav1.ObjectMeta{
		Name: pod.Name, Namespace: pod.Namespace, Labels: pod.Labels, Annotations: pod.Annotations,
	}
	pod.Status = corev1.PodStatus{}
	return warnings
}

// sums returns the hash of the whole pod, and the UID, which is the same for
// pods that differ in images only, or in amounts of CPU and memory as far as a
// running pod can be resized: of mains, sidecars and the pod itself, with the
// same amounts named and the same quality of service. written is the manifest as
// its author wrote it, so that a newer release of the API types gives the same
// sums.
func (id Identity) sums(pod *corev1.Pod, written []byte) (string, types.UID) {
	var tree struct {
		Metadata struct {
			Labels      map[string]any `json:"labels,omitempty"`
			Annotations map[string]any `json:"annotations,omitempty"`
		} `json:"metadata"`
		Spec map[string]any `json:"spec"`
	}
	if err := json.Unmarshal(written, &tree); err != nil {
		panic("source: a decoded manifest is no JSON") // it was decoded from it
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
				if restart, _ := c["restartPolicy"].(string); list == "containers" || restart == string(corev1.ContainerRestartPolicyAlways) {
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
	u := sum(what...)[:16]
	u[6] = u[6]&0x0f | 0x80 // version 8: made by a rule of our own
	u[8] = u[8]&0x3f | 0x80
	return hex.EncodeToString(whole[:16]),
		types.UID(fmt.Sprintf("%x-%x-%x-%x-%x", u[:4], u[4:6], u[6:8], u[8:10], u[10:]))
}

// blankAmounts takes the amounts of CPU and memory out of what has resources, not that
// they are named, and reports whether there were any.
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
		panic("source: " + err.Error()) // all of it came from JSON
	}
	s := sha256.Sum256(b)
	return s[:]
}

// continueFrom makes next, the new form of the pod before, its successor: the same
// pointer if nothing changed, else the same birth if it has the same UID.
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

// restoreIdentity gives next the birth that an earlier life of the agent gave it: a
// restart makes no pod younger, and a generation is never used twice.
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

// contentHash is the hash of the whole manifest of a pod. Pods of stores that earlier
// releases wrote have it where the UID is now.
func contentHash(pod *corev1.Pod) string {
	if hash, own := pod.Annotations[AnnotationContent]; own {
		return hash
	}
	return pod.Annotations[AnnotationHash]
}

// contentVersion is the version of a ConfigMap or Secret: a hash of what a pod
// can see of it.
func contentVersion(content ...any) string {
	return hex.EncodeToString(sum(content...)[:8])
}

// SameRevision reports whether two forms of a pod are the same wish: by version, or else
// by hash and images.
func SameRevision(a, b *corev1.Pod) bool {
	if a == b {
		return true
	}
	if a.ResourceVersion != "" || b.ResourceVersion != "" {
		return a.ResourceVersion == b.ResourceVersion
	}
	return contentHash(a) != "" && contentHash(a) == contentHash(b) &&
		maps.EqualFunc(imageByName(a), imageByName(b), func(x, y string) bool { return x == y })
}

// ManifestChanged reports whether a file wants something else of a pod than before.
func ManifestChanged(was, now *corev1.Pod) bool {
	if was == nil || now == nil || now.Annotations[AnnotationSource] != File {
		return false
	}
	before, after := contentHash(was), contentHash(now)
	return before != "" && after != "" && before != after
}

// imageByName maps the containers of a pod to their images: what may change in
// place.
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
