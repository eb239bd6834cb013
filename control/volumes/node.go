package volumes

import (
	"cmp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	storagehelpers "k8s.io/component-helpers/storage/volume"
)

// PodClaims are the claims of a pod that wait for its node.
type PodClaims struct {
	Claims  []*corev1.PersistentVolumeClaim
	Classes map[string]*storagev1.StorageClass // of the claims, by name
	// Volumes are the volumes that can be bound: those of the classes of the claims that no other pod is about to bind.
	Volumes []*corev1.PersistentVolume
	// Capacities are what drivers report that they can provide, by class. A class whose driver does not report it is
	// not in the map.
	Capacities map[string][]*storagev1.CSIStorageCapacity
}

// Mismatch is why a node cannot provide for the claims of a pod, in the words of kube-scheduler, or "".
type Mismatch string

// The mismatches.
const (
	NoVolumes        Mismatch = "node(s) didn't find available persistent volumes to bind"
	NotEnoughStorage Mismatch = "node(s) did not have enough free storage"
)

// Assignment is what a node provides to the claims of a pod.
type Assignment struct {
	Bind      []Binding                       // to an existing volume
	Provision []*corev1.PersistentVolumeClaim // by the external provisioner of the class
}

// Binding is a claim and the volume that it is to be bound to.
type Binding struct {
	Claim  *corev1.PersistentVolumeClaim
	Volume *corev1.PersistentVolume
}

// MatchNode decides which volumes the claims get on a node, or why the node cannot provide them. The smallest claims
// choose first.
func MatchNode(pod PodClaims, node *corev1.Node) (out Assignment, why Mismatch) {
	claims := slices.Clone(pod.Claims)
	slices.SortStableFunc(claims, func(a, b *corev1.PersistentVolumeClaim) int {
		x, y := a.Spec.Resources.Requests[corev1.ResourceStorage], b.Spec.Resources.Requests[corev1.ResourceStorage]
		return x.Cmp(y)
	})
	chosen := map[string]*corev1.PersistentVolume{}
	for _, claim := range claims {
		// A provisioner is working on it for one node.
		if selected := claim.Annotations[storagehelpers.AnnSelectedNode]; selected != "" {
			if selected != node.Name {
				return Assignment{}, NoVolumes
			}
			out.Provision = append(out.Provision, claim)
			continue
		}
		className := storagehelpers.GetPersistentVolumeClaimClass(claim)
		ofClass := sortedByName(pod.Volumes, func(v *corev1.PersistentVolume) bool {
			// A reserved volume that the node cannot use must not be replaced by another one.
			return storagehelpers.GetPersistentVolumeClass(v) == className &&
				(v.Spec.ClaimRef != nil || AllowsNode(v, node))
		})
		v, err := storagehelpers.FindMatchingVolume(claim, ofClass, node, chosen, true, true)
		switch {
		case err == nil && v != nil && AllowsNode(v, node):
			chosen[v.Name] = v
			out.Bind = append(out.Bind, Binding{claim, v})
		case err == nil && v == nil && canProvision(pod.Classes[className], node):
			out.Provision = append(out.Provision, claim)
		default:
			return Assignment{}, NoVolumes
		}
	}
	for _, claim := range out.Provision {
		class := storagehelpers.GetPersistentVolumeClaimClass(claim)
		if capacities, limited := pod.Capacities[class]; limited && !hasCapacity(capacities, claim, node) {
			return Assignment{}, NotEnoughStorage
		}
	}
	return out, ""
}

// hasCapacity reports whether one of the capacities of a class is that of the node and large enough for a claim.
func hasCapacity(list []*storagev1.CSIStorageCapacity, claim *corev1.PersistentVolumeClaim, node *corev1.Node) bool {
	size := claim.Spec.Resources.Requests[corev1.ResourceStorage]
	return slices.ContainsFunc(list, func(c *storagev1.CSIStorageCapacity) bool {
		limit := cmp.Or(c.MaximumVolumeSize, c.Capacity)
		if limit == nil || limit.Cmp(size) < 0 || c.NodeTopology == nil {
			return false
		}
		selector, err := metav1.LabelSelectorAsSelector(c.NodeTopology)
		return err == nil && selector.Matches(labels.Set(node.Labels))
	})
}

// canProvision reports whether the provisioner of a class can create a volume for a node.
func canProvision(class *storagev1.StorageClass, node *corev1.Node) bool {
	return class != nil && class.Provisioner != "" && class.Provisioner != storagehelpers.NotSupportedProvisioner &&
		allowsTopology(class.AllowedTopologies, node)
}

// allowsTopology reports whether a node matches one of the terms. No terms match every node.
func allowsTopology(terms []corev1.TopologySelectorTerm, node *corev1.Node) bool {
	return len(terms) == 0 || slices.ContainsFunc(terms, func(t corev1.TopologySelectorTerm) bool {
		return !slices.ContainsFunc(t.MatchLabelExpressions, func(e corev1.TopologySelectorLabelRequirement) bool {
			value, has := node.Labels[e.Key]
			return !has || !slices.Contains(e.Values, value)
		})
	})
}

// AllowsNode reports whether the node affinity of a volume allows a node.
func AllowsNode(v *corev1.PersistentVolume, node *corev1.Node) bool {
	if v.Spec.NodeAffinity == nil || v.Spec.NodeAffinity.Required == nil {
		return true
	}
	selector, err := nodeaffinity.NewNodeSelector(v.Spec.NodeAffinity.Required)
	return err == nil && selector.Match(node)
}

// zoneLabels are the labels of a volume that bind it to a zone or region, and the current form of each.
var zoneLabels = [...][2]string{
	{corev1.LabelTopologyZone, corev1.LabelTopologyZone},
	{corev1.LabelTopologyRegion, corev1.LabelTopologyRegion},
	{corev1.LabelFailureDomainBetaZone, corev1.LabelTopologyZone},
	{corev1.LabelFailureDomainBetaRegion, corev1.LabelTopologyRegion},
}

// AllowsZone reports whether the zone labels of a volume allow a node. A node without zone labels is allowed. A label
// of a volume has several zones joined by two underscores.
func AllowsZone(v *corev1.PersistentVolume, node map[string]string) bool {
	zoned := false
	for _, keys := range zoneLabels {
		zoned = zoned || node[keys[0]] != ""
	}
	if !zoned {
		return true
	}
	for _, keys := range zoneLabels {
		values, has := v.Labels[keys[0]]
		if !has {
			continue
		}
		own := cmp.Or(node[keys[0]], node[keys[1]])
		if !slices.Contains(strings.Split(values, "__"), own) {
			return false
		}
	}
	return true
}
