package podspec

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/version"
	ndf "k8s.io/component-helpers/nodedeclaredfeatures"
	ndffeatures "k8s.io/component-helpers/nodedeclaredfeatures/features"
)

// TestFeatureLabels checks that the labels of a node identify its features, and that a label with
// another value does not.
func TestFeatureLabels(t *testing.T) {
	t.Parallel()
	features := UnsupportedFeatures()
	labels := FeatureLabels(features)
	for key, value := range labels {
		if errs := append(validation.IsQualifiedName(key), validation.IsValidLabelValue(value)...); len(errs) > 0 {
			t.Errorf("label %s=%s: %q", key, value, errs)
		}
	}
	labels["unsupported.berth.dev/future"] = "true"
	labels["unsupported.berth.dev/disabled"] = "false"
	labels["example.com/csi-volumes"] = "true"
	want := append(slices.Clone(features), "future")
	slices.Sort(want)
	if got := FeaturesFromLabels(labels); !slices.Equal(got, want) {
		t.Errorf("got features %q, want %q", got, want)
	}
	if got := FeaturesFromLabels(nil); len(got) > 0 {
		t.Errorf("no labels: got features %q", got)
	}
}

// TestFeatureOfEveryRejectedField sets each field of a pod spec that makes a manifest invalid. The field
// uses an unsupported feature, unless a joined node supports it or Kubernetes ignores it on Linux.
func TestFeatureOfEveryRejectedField(t *testing.T) {
	t.Parallel()
	used := map[Feature]bool{}
	for _, l := range podLeaves(t) {
		pod := &corev1.Pod{}
		l.set(&pod.Spec)
		_, rejected := UnsupportedFields(pod)
		uses := FeatureUses(pod)
		joined := strings.Contains(l.path, "serviceAccountToken") || strings.Contains(l.path, "clusterTrustBundle") ||
			strings.Contains(l.path, "podCertificate") || strings.Contains(l.path, "windowsOptions") ||
			strings.HasPrefix(l.path, "volumes[].persistentVolumeClaim") ||
			strings.HasPrefix(l.path, "volumes[].ephemeral")
		if want := len(rejected) > 0 && !joined; want != (len(uses) > 0) {
			t.Errorf("%s: got feature uses %v, want any: %v", l.path, uses, want)
		}
		for _, u := range uses {
			used[u.Feature] = true
		}
		for i := 0; i < len(uses) && i < len(rejected); i++ {
			if uses[i].Path.String() != rejected[i].Field {
				t.Errorf("%s: got path %s, want %s", l.path, uses[i].Path, rejected[i].Field)
			}
		}
	}
	for _, f := range UnsupportedFeatures() {
		if !used[f] {
			t.Errorf("feature %s: no field uses it", f)
		}
	}
}

// TestDeclaredFeatures checks with upstream's library which pods and changes a node accepts.
func TestDeclaredFeatures(t *testing.T) {
	t.Parallel()
	framework := ndf.New(slices.Clone(ndffeatures.AllFeatures))
	declared := DeclaredFeatures()
	for _, name := range declared {
		if !slices.ContainsFunc(ndffeatures.AllFeatures, func(f ndf.Feature) bool { return f.Name() == name }) {
			t.Errorf("upstream has no feature %s", name)
		}
	}
	node := &corev1.Node{Status: corev1.NodeStatus{DeclaredFeatures: declared}}
	cpu := func(amount string) *corev1.ResourceRequirements {
		return &corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": resource.MustParse(amount)}}
	}
	onRestart := corev1.ContainerRestartRule{Action: corev1.ContainerRestartRuleActionRestartAllContainers}
	initial := func(amount string) corev1.PodSpec {
		return corev1.PodSpec{InitContainers: []corev1.Container{{Resources: *cpu(amount)}}}
	}
	for name, row := range map[string]struct {
		old  *corev1.PodSpec // nil: a new pod
		spec corev1.PodSpec
		want bool
	}{
		"a plain pod": {want: true},
		"action RestartAllContainers": {want: true, spec: corev1.PodSpec{Containers: []corev1.Container{{
			RestartPolicyRules: []corev1.ContainerRestartRule{onRestart},
		}}}},
		"bind mount options": {spec: corev1.PodSpec{Containers: []corev1.Container{{
			VolumeMounts: []corev1.VolumeMount{{BindMountOptions: []string{"noexec"}}},
		}}}},
		"a resize of the pod's resources": {
			old: &corev1.PodSpec{Resources: cpu("1")}, spec: corev1.PodSpec{Resources: cpu("2")}, want: true,
		},
		"a resize of an init container": {old: new(initial("1")), spec: initial("2")},
	} {
		pod := &ndf.PodInfo{Spec: &row.spec, Status: &corev1.PodStatus{}}
		required, err := framework.InferForPodScheduling(pod, version.MustParse("1.37.0"))
		if row.old != nil {
			old := &ndf.PodInfo{Spec: row.old, Status: &corev1.PodStatus{}}
			required, err = framework.InferForPodUpdate(old, pod, version.MustParse("1.37.0"))
		}
		if err != nil {
			t.Fatal(err)
		}
		result, err := framework.MatchNode(required, node)
		if err != nil || result.IsMatch != row.want {
			t.Errorf("%s: got %+v, %v, want a match: %v", name, result, err, row.want)
		}
	}
}

func TestContainerFeatureUses(t *testing.T) {
	t.Parallel()
	c := &corev1.Container{VolumeMounts: []corev1.VolumeMount{{}, {BindMountOptions: []string{"noexec"}}}}
	uses := ContainerFeatureUses(c)
	want := "volumeMounts[1].bindMountOptions: bind mount options are not supported yet"
	if len(uses) != 1 || uses[0].Feature != FeatureBindMountOptions || uses[0].String() != want {
		t.Errorf("got %v, want %q", uses, want)
	}
	c = &corev1.Container{Name: "c", VolumeDevices: []corev1.VolumeDevice{{Name: "v", DevicePath: "/dev/v"}}}
	if uses := ContainerFeatureUses(c); len(uses) > 0 {
		t.Errorf("a container with fields that are supported: got %v", uses)
	}
}
