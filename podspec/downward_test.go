package podspec

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func downwardPod() *corev1.Pod {
	list := func(cpu, memory string) corev1.ResourceList {
		return corev1.ResourceList{
			corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse(memory),
		}
	}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: "web", Namespace: "shop", UID: "u-1",
			Labels:      map[string]string{"app": "web", "a": "1"},
			Annotations: map[string]string{"note/x": "two\nlines \"q\""},
		},
		Spec: corev1.PodSpec{
			ServiceAccountName: "robot",
			InitContainers: []corev1.Container{{Name: "init", Resources: corev1.ResourceRequirements{
				Requests: list("100m", "1Mi")}}},
			Containers: []corev1.Container{
				{Name: "full", Resources: corev1.ResourceRequirements{
					Limits:   list("1500m", "64Mi"),
					Requests: list("250m", "32Mi")}},
				{Name: "bare"},
				{Name: "limited", Resources: corev1.ResourceRequirements{Limits: list("2", "10")}},
			},
		},
	}
}

func TestFieldRef(t *testing.T) {
	info := RuntimeInfo{
		NodeName: "n1",
		HostIPs:  []string{"10.0.0.1", "fd00::1"},
		PodIPs:   []string{"10.1.0.5", "fd01::5"},
	}
	for _, row := range []struct{ sentence, path, want, err string }{
		{"the name", "metadata.name", "web", ""},
		{"the namespace", "metadata.namespace", "shop", ""},
		{"the UID", "metadata.uid", "u-1", ""},
		{"all labels come sorted and quoted", "metadata.labels", "a=\"1\"\napp=\"web\"", ""},
		{"an annotation's newline and quotes are escaped in the list", "metadata.annotations",
			`note/x="two\nlines \"q\""`, ""},
		{"one label", "metadata.labels['app']", "web", ""},
		{"one annotation is returned unchanged", "metadata.annotations['note/x']", "two\nlines \"q\"", ""},
		{"an absent label is empty", "metadata.labels['none']", "", ""},
		{"the node name of an unbound pod", "spec.nodeName", "n1", ""},
		{"the service account", "spec.serviceAccountName", "robot", ""},
		{"the host's address", "status.hostIP", "10.0.0.1", ""},
		{"the host's addresses", "status.hostIPs", "10.0.0.1,fd00::1", ""},
		{"the pod's address", "status.podIP", "10.1.0.5", ""},
		{"the pod's addresses", "status.podIPs", "10.1.0.5,fd01::5", ""},
		{"an unknown path is named", "spec.hostname", "", `fieldPath "spec.hostname" is not supported`},
		{"only maps take a key", "metadata.name['x']", "", "only metadata.labels"},
		{"an open bracket is not a key", "metadata.labels['app", "", "not supported"},
		{"an empty path is an error", "", "", "not supported"},
	} {
		t.Run(row.sentence, func(t *testing.T) {
			got, err := FieldRef(downwardPod(), row.path, info)
			expectRef(t, got, err, row.want, row.err)
		})
	}
}

func TestFieldRefWithoutAddresses(t *testing.T) {
	got, err := FieldRef(downwardPod(), "status.podIP", RuntimeInfo{})
	expectRef(t, got, err, "", "")
}

func TestResourceRef(t *testing.T) {
	node := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("4"), corev1.ResourceMemory: resource.MustParse("8Gi"),
	}
	for _, row := range []struct{ sentence, of, name, resource, divisor, want, err string }{
		{"a CPU limit in cores is rounded up", "full", "", "limits.cpu", "", "2", ""},
		{"a CPU limit in thousandths", "full", "", "limits.cpu", "1m", "1500", ""},
		{"a memory limit in bytes", "full", "", "limits.memory", "", "67108864", ""},
		{"a memory limit in MiB", "full", "", "limits.memory", "1Mi", "64", ""},
		{"a part of a unit is rounded up", "limited", "", "limits.memory", "1Mi", "1", ""},
		{"a CPU request", "full", "", "requests.cpu", "1m", "250", ""},
		{"an absent request is the limit", "limited", "", "requests.cpu", "", "2", ""},
		{"an absent request without a limit is 0", "bare", "", "requests.memory", "", "0", ""},
		{"an absent CPU limit is the node's", "bare", "", "limits.cpu", "", "4", ""},
		{"an absent memory limit is the node's", "bare", "", "limits.memory", "1Gi", "8", ""},
		{"unknown storage is 0", "bare", "", "limits.ephemeral-storage", "", "0", ""},
		{"hugepages never fall back", "bare", "", "limits.hugepages-2Mi", "", "0", ""},
		{"another container by its name", "bare", "full", "limits.memory", "1Mi", "64", ""},
		{"an init container by its name", "bare", "init", "requests.cpu", "1m", "100", ""},
		{"an unknown container is named", "bare", "ghost", "limits.cpu", "", "", `containerName "ghost"`},
		{"an unknown resource is named", "full", "", "limits.gpu", "", "", `"limits.gpu" is not supported`},
		{"neither limits nor requests", "full", "", "used.cpu", "", "", "must start with limits or requests"},
		{"a negative divisor is an error", "full", "", "limits.cpu", "-1", "", "divisor"},
	} {
		t.Run(row.sentence, func(t *testing.T) {
			pod := downwardPod()
			sel := &corev1.ResourceFieldSelector{ContainerName: row.name, Resource: row.resource}
			if row.divisor != "" {
				sel.Divisor = resource.MustParse(row.divisor)
			}
			got, err := ResourceRef(pod, downwardContainer(pod, row.of), sel, node)
			expectRef(t, got, err, row.want, row.err)
		})
	}
}

func TestResourceRefPrefersPodLimitOverAllocatable(t *testing.T) {
	pod := downwardPod()
	pod.Spec.Resources = &corev1.ResourceRequirements{
		Limits: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("1Gi")},
	}
	got, err := ResourceRef(pod, &pod.Spec.Containers[1], &corev1.ResourceFieldSelector{Resource: "limits.memory"},
		corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("8Gi")})
	expectRef(t, got, err, "1073741824", "")
}

func expectRef(t *testing.T, got string, err error, want, wantErr string) {
	t.Helper()
	if wantErr != "" {
		if err == nil || !strings.Contains(err.Error(), wantErr) {
			t.Fatalf("error %v, want one with %q", err, wantErr)
		}
		return
	}
	if err != nil || got != want {
		t.Fatalf("got %q, %v; want %q", got, err, want)
	}
}
