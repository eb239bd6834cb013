package admission

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"berth/podspec"
)

// ReasonUnsupportedPodFeature is the reason of a pod with fields that the node does not support.
const ReasonUnsupportedPodFeature = "UnsupportedPodFeature"

// maxFeatureFields limits the number of fields in a message. A pod can use a feature in each of its
// containers.
const maxFeatureFields = 10

// podFeatures rejects a pod that uses a feature that the node does not support. The message names
// the fields. Without this check the pod would run without what it requests.
func podFeatures(node Node, _ Used, pod *corev1.Pod) []Rejection {
	if len(node.UnsupportedFeatures) == 0 {
		return nil
	}
	var fields []string
	for _, u := range podspec.FeatureUses(pod) {
		if slices.Contains(node.UnsupportedFeatures, u.Feature) {
			fields = append(fields, u.String())
		}
	}
	if len(fields) == 0 {
		return nil
	}
	message := "Pod uses features that are not supported on this node: "
	if more := len(fields) - maxFeatureFields; more > 0 {
		message += fmt.Sprintf("%s; and %d more fields", strings.Join(fields[:maxFeatureFields], "; "), more)
	} else {
		message += strings.Join(fields, "; ")
	}
	return []Rejection{{Reason: ReasonUnsupportedPodFeature, Message: message}}
}
