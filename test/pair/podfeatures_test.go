package pair

import (
	"regexp"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/podspec"
	"berth/test/images"
)

// TestUnsupportedPodFeatureIsRejected binds pods to a node that does not support fields of them. The
// node rejects each pod with a message and an event that name the fields, starts no container of it,
// and runs other pods. Labels of the node name the features, so the scheduler does not assign such
// pods to it.
func TestUnsupportedPodFeatureIsRejected(t *testing.T) {
	t.Parallel()
	p := startPair(t, pairOptions{})
	for _, f := range podspec.UnsupportedFeatures() {
		label := strings.ReplaceAll(podspec.FeatureLabelPrefix+string(f), ".", `\.`)
		if got := p.field("node", p.Node, ".metadata.labels."+label); got != "true" {
			t.Errorf("node label of %s: got %q, want true", f, got)
		}
	}
	declared := strings.Join(podspec.DeclaredFeatures(), " ")
	if got := p.field("node", p.Node, ".status.declaredFeatures[*]"); got != declared {
		t.Errorf("declared features: got %q, want %q", got, declared)
	}
	claims := "resourceClaims: [{name: gpu, resourceClaimName: one}]"
	for _, row := range []struct{ name, spec, container, fields string }{
		{"claims", claims, "resources: {claims: [{name: gpu}]}",
			"spec.resourceClaims: dynamic resources are not supported yet; " +
				"spec.containers[0].resources.claims: dynamic resources are not supported yet"},
		{"options", "volumes: [{name: a, emptyDir: {}}]",
			"volumeMounts: [{name: a, mountPath: /a, bindMountOptions: [noexec]}]",
			"spec.containers[0].volumeMounts[0].bindMountOptions: bind mount options are not supported yet"},
		{"nfs", "volumes: [{name: a, nfs: {server: files.example, path: /}}]", "",
			"spec.volumes[0].nfs: volumes of type nfs are not supported yet"},
	} {
		message := "Pod uses features that are not supported on this node: " + row.fields
		p.Apply(t, withSpec(p.pod(row.name, row.container, "sleep"), row.spec))
		p.waitForRejection(row.name, "UnsupportedPodFeature", regexp.QuoteMeta(message))
		p.waitUntil("the message in the event of "+row.name, func() string {
			out := p.Kubectl(t, "get", "events", "--field-selector", "involvedObject.name="+row.name+
				",reason=UnsupportedPodFeature", "-o", `jsonpath={range .items[*]}{.type} {.message}{end}`)
			if !strings.Contains(out, row.fields) || !strings.HasPrefix(out, "Warning ") {
				return "got " + out
			}
			return ""
		})
		if got := p.field("pod", row.name, ".status.containerStatuses"); got != "" {
			t.Errorf("pod %s: got container statuses %s, want none", row.name, got)
		}
	}
	p.Apply(t, withSpec(p.pod("plain", "", "sleep"), "volumes: [{name: scratch, emptyDir: {}}]"))
	p.waitForField("pod", "plain", ".status.phase", "Running")

	p.Apply(t, strings.Replace(withSpec(p.pod("unbound", "", "sleep"), claims), "  nodeName: "+p.Node+"\n", "", 1))
	p.waitUntil("pod unbound to be unschedulable", func() string {
		text := p.field("pod", "unbound", `.status.conditions[?(@.type=="PodScheduled")].message`)
		if !strings.Contains(text, "1 node(s) didn't support pod features resource-claims") {
			return "got " + text
		}
		return ""
	})

	// An ephemeral container is added to a running pod, which is not admitted again.
	pods := p.Client.CoreV1().Pods(metav1.NamespaceDefault)
	debug := []corev1.EphemeralContainer{{
		EphemeralContainerCommon: corev1.EphemeralContainerCommon{
			Name: "debug", Image: images.TestboxRef, Args: []string{"sleep"},
			TerminationMessagePolicy: corev1.TerminationMessageReadFile, ImagePullPolicy: corev1.PullIfNotPresent,
			VolumeMounts: []corev1.VolumeMount{{
				Name: "scratch", MountPath: "/a", BindMountOptions: []string{"noexec"},
			}},
		},
	}}
	p.waitUntil("the ephemeral container to be added", func() string { // the agent may report a status meanwhile
		plain, err := pods.Get(t.Context(), "plain", metav1.GetOptions{})
		if err == nil {
			plain.Spec.EphemeralContainers = debug
			_, err = pods.UpdateEphemeralContainers(t.Context(), "plain", plain, metav1.UpdateOptions{})
		}
		if err != nil {
			return err.Error()
		}
		return ""
	})
	const waiting = ".status.ephemeralContainerStatuses[0].state.waiting"
	p.waitForField("pod", "plain", waiting+".reason", "CreateContainerConfigError")
	want := "volumeMounts[0].bindMountOptions: bind mount options are not supported yet"
	if got := p.field("pod", "plain", waiting+".message"); !strings.Contains(got, want) {
		t.Errorf("ephemeral container: got message %q, want %q", got, want)
	}
	if got := p.field("pod", "plain", ".status.phase"); got != "Running" {
		t.Errorf("pod with an ephemeral container that cannot start: got phase %s, want Running", got)
	}
}

// withSpec adds a line with fields to the spec of a pod.
func withSpec(manifest, fields string) string {
	return strings.Replace(manifest, "spec:\n", "spec:\n  "+fields+"\n", 1)
}
