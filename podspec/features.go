package podspec

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Feature names a group of pod fields that berth does not support on any node, whatever the source
// of the pod. It is part of the API: it is the name of a node label, see FeatureLabels.
type Feature string

// The features that some nodes do not support. Fields that a node with an API server supports, and fields
// that Kubernetes ignores on Linux nodes, have no feature.
const (
	FeatureResourceClaims   Feature = "resource-claims"
	FeatureBlockVolumes     Feature = "block-volumes" // supported, but not by nodes of earlier versions
	FeatureBindMountOptions Feature = "bind-mount-options"
	FeatureCSIVolumes       Feature = "csi-volumes" // supported, but not by nodes of earlier versions
	FeatureInTreeVolumes    Feature = "in-tree-volumes"
)

// FeatureUse is a field of a pod that uses an unsupported feature.
type FeatureUse struct {
	Feature Feature
	Path    *field.Path
	Reason  string
}

func (u FeatureUse) String() string { return u.Path.String() + ": " + u.Reason }

// UnsupportedFeatures returns the features that berth does not support, sorted.
func UnsupportedFeatures() []Feature {
	var out []Feature
	for _, row := range unsupported {
		if row.feature != "" {
			out = append(out, row.feature)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// FeatureUses returns the fields of a pod that use a feature that some nodes do not support, in the
// order of the table.
func FeatureUses(pod *corev1.Pod) (uses []FeatureUse) {
	return featureUses(pod, slices.Concat(unsupported, unsupportedEarlier))
}

func featureUses(pod *corev1.Pod, table []unsupportedField) (uses []FeatureUse) {
	for _, row := range table {
		if row.feature == "" {
			continue
		}
		row.find(pod, func(at *field.Path, detail string) {
			uses = append(uses, FeatureUse{row.feature, at, row.message(detail)})
		})
	}
	return uses
}

// ContainerFeatureUses returns the fields of one container that use a feature that this version does not
// support. Their paths begin at the container.
func ContainerFeatureUses(c *corev1.Container) (uses []FeatureUse) {
	const prefix = "spec.containers[0]."
	for _, u := range featureUses(&corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{*c}}}, unsupported) {
		u.Path = field.NewPath(strings.TrimPrefix(u.Path.String(), prefix))
		uses = append(uses, u)
	}
	return uses
}

// FeatureLabelPrefix is the prefix of the node labels that name unsupported features.
const FeatureLabelPrefix = "unsupported.berth.dev/"

// featureUnsupported is the value of these labels.
const featureUnsupported = "true"

// FeatureLabels returns the node labels for features that a node does not support.
func FeatureLabels(features []Feature) map[string]string {
	out := make(map[string]string, len(features))
	for _, f := range features {
		out[FeatureLabelPrefix+string(f)] = featureUnsupported
	}
	return out
}

// FeaturesFromLabels returns the features that a node does not support according to its labels,
// sorted. It includes names that this version does not know.
func FeaturesFromLabels(labels map[string]string) (out []Feature) {
	for key, value := range labels {
		if name, ok := strings.CutPrefix(key, FeatureLabelPrefix); ok && value == featureUnsupported {
			out = append(out, Feature(name))
		}
	}
	slices.Sort(out)
	return out
}

// DeclaredFeatures returns the features that a node declares in its status, sorted: those of upstream's
// registry (k8s.io/component-helpers/nodedeclaredfeatures) that berth supports. Upstream's scheduler
// assigns a pod only to a node that declares what the pod needs, and the API server rejects a change
// of a pod that its node does not declare.
func DeclaredFeatures() []string {
	return []string{
		"InPlacePodLevelResourcesVerticalScaling", // resize of spec.resources
		"RestartAllContainersOnContainerExits",    // action RestartAllContainers of a restart rule
	}
}

// message returns the reason of a row for the detail that its finder has reported.
func (u *unsupportedField) message(detail string) string {
	if detail == "" {
		return u.why
	}
	return fmt.Sprintf(u.why, detail)
}
