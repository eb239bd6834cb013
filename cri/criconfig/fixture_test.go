package criconfig

import (
	"encoding/json"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/agent/plan"
)

func testNode() Node {
	return Node{
		Name:          "node-1",
		Capacity:      resources("cpu", "4", "memory", "8Gi"),
		Allocatable:   resources("cpu", "3900m", "memory", "7Gi"),
		ClusterDNS:    []string{"10.96.0.10"},
		ClusterDomain: "cluster.local",
		HostResolvConf: ResolvConf{Nameservers: []string{"192.0.2.53"}, Searches: []string{"example.org"},
			Options: []string{"edns0"}},
		SeccompProfileRoot: "/var/lib/kubelet/seccomp",
		SeccompDefault:     true,
		Handlers:           map[string]string{"plain": "runc", "virtual": "kata"},
		Features: map[string]HandlerFeatures{
			"": {RecursiveReadOnlyMounts: true, UserNamespaces: true}, "runc": {RecursiveReadOnlyMounts: true},
			"kata": {},
		},
		SupplementalGroupsPolicy: true,
		UserIDs:                  func(string) (IDRange, error) { return IDRange{First: 131072, Count: 65536}, nil },
		CgroupV2:                 true,
		CanLimitSwap:             true,
		HugePageSizes:            []string{"2MB", "1GB"},
	}
}

func testSandboxSetup() plan.SandboxConfig {
	return plan.SandboxConfig{Attempt: 2, CgroupParent: "/kubepods/burstable/podu-1",
		LogDir: "/var/log/pods/shop_web_u-1"}
}

func testContainerSetup() plan.ContainerConfig {
	return plan.ContainerConfig{
		Attempt: 3,
		Sandbox: plan.Sandbox{ID: "sandbox", IPs: []string{"10.1.0.5", "fd01::5"}},
		LogDir:  "/var/log/pods/shop_web_u-1",
		Image:   plan.Image{ID: "sha256:0123", Ref: "example.org/web@sha256:4567"},
		HostIPs: []string{"192.0.2.1"},
		Objects: plan.Objects{
			{Kind: plan.ConfigMap, Name: "settings"}: {ConfigMap: &corev1.ConfigMap{
				ObjectMeta: metav1.ObjectMeta{Name: "settings"},
				Data:       map[string]string{"color": "blue", "size": "10", "ключ": "not ASCII"},
				BinaryData: map[string][]byte{"picture": {1, 2}}}},
			{Kind: plan.Secret, Name: "keys"}: {Secret: &corev1.Secret{
				ObjectMeta: metav1.ObjectMeta{Name: "keys"},
				Data: map[string][]byte{"password": []byte("s3cret"), "nul": {'a', 0, 'b'},
					"raw": {0xff, 0xfe}}}},
			{Kind: plan.ConfigMap, Name: "gone"}:   {Version: plan.Version{Missing: true}},
			{Kind: plan.Secret, Name: "forbidden"}: {Version: plan.Version{Err: "read forbidden: permission denied"}},
		},
		Mounts: []plan.Mount{
			{HostPath: "/h/data", ContainerPath: "/data"},
			{HostPath: "/h/ro", ContainerPath: "/ro", ReadOnly: true, RecursiveReadOnly: true},
			{HostPath: "/h/shared", ContainerPath: "/shared", Propagation: corev1.MountPropagationBidirectional,
				SELinuxRelabel: true},
			{Image: "sha256:89ab", ImageSubPath: "models", ContainerPath: "/models"},
		},
	}
}

func resources(pairs ...string) corev1.ResourceList {
	out := corev1.ResourceList{}
	for i := 0; i < len(pairs); i += 2 {
		out[corev1.ResourceName(pairs[i])] = resource.MustParse(pairs[i+1])
	}
	return out
}

// makePod returns a pod with one container, with the given changes.
func makePod(change ...func(*corev1.Pod, *corev1.Container)) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "shop", UID: "u-1"},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "app", Image: "example.org/web:1"}}},
	}
	for _, c := range change {
		c(pod, &pod.Spec.Containers[0])
	}
	return pod
}

// appOf returns the configuration of the first container of a pod.
func appOf(t *testing.T, node Node, pod *corev1.Pod, setup plan.ContainerConfig) *runtimeapi.ContainerConfig {
	t.Helper()
	config, err := Container(node, pod, &pod.Spec.Containers[0], setup)
	if err != nil {
		t.Fatal(err)
	}
	return config
}

func expectError(t *testing.T, err error, kind plan.ErrorKind, text string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), text) {
		t.Fatalf("got error %v, want %q", err, text)
	}
	if got := plan.KindOf(err); got != kind {
		t.Fatalf("error %v: got kind %d, want %d", err, got, kind)
	}
}

func jsonIndent(v any) ([]byte, error) { return json.MarshalIndent(v, "", "  ") }

// readable returns an environment as NAME=value strings in its order.
func readable(m proto.Message, n int) []any {
	out := make([]any, 0, n)
	for _, e := range m.(*runtimeapi.ContainerConfig).Envs {
		out = append(out, e.Key+"="+string(e.Value))
	}
	return out
}
