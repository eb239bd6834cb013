package admission

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"berth/podspec"
)

func TestUnsupportedPodFeatures(t *testing.T) {
	t.Parallel()
	without := func(f ...podspec.Feature) func(*Node) { return func(n *Node) { n.UnsupportedFeatures = f } }
	all := without(podspec.UnsupportedFeatures()...)
	rejected := func(fields string) []Rejection {
		return []Rejection{{
			Reason:  "UnsupportedPodFeature",
			Message: "Pod uses features that are not supported on this node: " + fields,
		}}
	}
	claims := "{resourceClaims: [{name: gpu, resourceClaimName: one}], containers: [{name: main, image: x, " +
		"resources: {claims: [{name: gpu}]}}]}"
	mount := "{name: main, image: x, volumeMounts: [{name: a, mountPath: /a, bindMountOptions: [noexec]}]}"
	check(t, []row{
		{sentence: "a pod without such fields", pod: podOf(t, "{}"), node: all},
		{sentence: "a node that supports all features", pod: podOf(t, claims)},
		{sentence: "a node that lacks another feature", pod: podOf(t, claims),
			node: without(podspec.FeatureCSIVolumes)},
		{sentence: "a service account token", node: all, pod: podOf(t,
			"volumes: [{name: a, projected: {sources: [{serviceAccountToken: {path: t}}]}}]")},
		{sentence: "Windows options, which Linux nodes ignore", node: all, pod: podOf(t,
			"securityContext: {windowsOptions: {runAsUserName: x}}")},
		{sentence: "resource claims", pod: podOf(t, claims), node: all, want: rejected(
			"spec.resourceClaims: dynamic resources are not supported yet; " +
				"spec.containers[0].resources.claims: dynamic resources are not supported yet")},
		{sentence: "claims of the pod's resources", pod: podOf(t, "resources: {claims: [{name: gpu}]}"), node: all,
			want: rejected("spec.resources.claims: dynamic resources are not supported yet")},
		{sentence: "bind mount options of an init container", pod: podOf(t, "initContainers: ["+mount+"]"), node: all,
			want: rejected("spec.initContainers[0].volumeMounts[0].bindMountOptions: " +
				"bind mount options are not supported yet")},
		{sentence: "a persistent volume claim", node: all,
			pod: podOf(t, "volumes: [{name: a, persistentVolumeClaim: {claimName: c}}]")},
		{sentence: "many fields", node: all,
			pod: podOf(t, "containers: ["+strings.TrimSuffix(strings.Repeat(mount+", ", 12), ", ")+"]"),
			want: rejected(strings.Join(fieldsOf(10, "spec.containers[%d].volumeMounts[0].bindMountOptions: "+
				"bind mount options are not supported yet"), "; ") + "; and 2 more fields")},
	})
}

func fieldsOf(n int, format string) (out []string) {
	for i := range n {
		out = append(out, fmt.Sprintf(format, i))
	}
	return out
}

// TestPodFeaturesInvariants builds random pods from fields of known features. A pod is rejected if
// and only if it uses a feature that the node lacks, the message names each such field and no
// other, and no preemption is tried, even for a critical pod.
func TestPodFeaturesInvariants(t *testing.T) {
	t.Parallel()
	features := podspec.UnsupportedFeatures()
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 15))
		node := testNode()
		lacks := map[podspec.Feature]bool{}
		for _, f := range features {
			if r.IntN(2) == 0 {
				lacks[f], node.UnsupportedFeatures = true, append(node.UnsupportedFeatures, f)
			}
		}
		pod := podOf(t, "priorityClassName: system-node-critical")
		uses := map[podspec.Feature]string{}
		for _, f := range features {
			if r.IntN(3) == 0 {
				uses[f] = useFeature(t, pod, f)
			}
		}
		wanted := 0
		got := Check(node, Used{}, pod)
		for f, path := range uses {
			if lacks[f] {
				wanted++
			}
			if named := len(got) > 0 && strings.Contains(got[0].Message, path); named != lacks[f] {
				t.Errorf("seed %d: %s: named is %v, lacking is %v: %v", seed, path, named, lacks[f], got)
			}
		}
		if rejected := len(got) > 0; rejected != (wanted > 0) {
			t.Errorf("seed %d: got %v, want a rejection: %v", seed, got, wanted > 0)
		}
		victim := podOf(t, "{}")
		used := Used{}
		used.Add(victim)
		if wanted > 0 && len(PodsToPreempt(node, used, pod, []*corev1.Pod{victim})) > 0 {
			t.Errorf("seed %d: preemption for a pod that never fits", seed)
		}
	}
}

// useFeature makes the pod use a feature and returns the path of the field.
func useFeature(t *testing.T, pod *corev1.Pod, f podspec.Feature) string {
	t.Helper()
	volume := func(source corev1.VolumeSource, path string) string {
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: string(f), VolumeSource: source})
		return fmt.Sprintf("spec.volumes[%d].%s:", len(pod.Spec.Volumes)-1, path)
	}
	c := &pod.Spec.Containers[0]
	switch f {
	case podspec.FeatureResourceClaims:
		c.Resources.Claims = []corev1.ResourceClaim{{Name: "x"}}
		return "spec.containers[0].resources.claims:"
	case podspec.FeatureBindMountOptions:
		c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{BindMountOptions: []string{"noexec"}})
		return fmt.Sprintf("spec.containers[0].volumeMounts[%d].bindMountOptions:", len(c.VolumeMounts)-1)
	case podspec.FeatureBlockVolumes:
		c.VolumeDevices = []corev1.VolumeDevice{{Name: "x"}}
		return "spec.containers[0].volumeDevices:"
	case podspec.FeatureCSIVolumes:
		return volume(corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{}}, "csi")
	case podspec.FeatureInTreeVolumes:
		return volume(corev1.VolumeSource{NFS: &corev1.NFSVolumeSource{}}, "nfs")
	}
	t.Fatalf("feature %s: not known to the test", f)
	return ""
}
