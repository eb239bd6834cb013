package podspec

import (
	"encoding/json"
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// FuzzValidate checks P1 to P3 for any decoded object: no function panics, defaults are idempotent,
// functions do not change the pod, and a valid pod stays valid after encoding and decoding.
func FuzzValidate(f *testing.F) {
	for _, seed := range seeds(f) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		var pod corev1.Pod
		if json.Unmarshal(raw, &pod) != nil {
			return
		}
		SetDefaults(&pod)
		once := encode(t, &pod)
		errs := Validate(&pod)
		UnsupportedFields(&pod)
		callAll(&pod)
		if diff := cmp.Diff(once, encode(t, &pod)); diff != "" {
			t.Fatalf("a function modified the pod:\n%s", diff)
		}
		SetDefaults(&pod)
		if diff := cmp.Diff(once, encode(t, &pod)); diff != "" {
			t.Fatalf("defaults set twice differ:\n%s", diff)
		}
		var again corev1.Pod
		if err := json.Unmarshal([]byte(once), &again); err != nil {
			t.Fatalf("the encoded pod cannot be decoded: %v", err)
		}
		SetDefaults(&again)
		if late := Validate(&again); len(errs) == 0 && len(late) > 0 {
			t.Fatalf("a valid pod is invalid after encoding and decoding: %v", late)
		}
	})
}

// FuzzObjects is FuzzValidate for ConfigMaps and Secrets.
func FuzzObjects(f *testing.F) {
	f.Add(
		[]byte(
			`{"metadata":{"name":"a","namespace":"b"},"data":{"k":"dg=="},` +
				`"stringData":{"s":"t"},"type":"kubernetes.io/tls"}`,
		),
	)
	f.Add([]byte(`{"binaryData":{"..":"dg=="},"type":"kubernetes.io/dockercfg","data":{".dockercfg":"e30="}}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		var cm corev1.ConfigMap
		if json.Unmarshal(raw, &cm) == nil {
			SetConfigMapDefaults(&cm)
			ValidateConfigMap(&cm)
		}
		var s corev1.Secret
		if json.Unmarshal(raw, &s) == nil {
			SetSecretDefaults(&s)
			ValidateSecret(&s)
			once := encode(t, &s)
			if SetSecretDefaults(&s); once != encode(t, &s) {
				t.Fatal("defaults set twice differ")
			}
		}
	})
}

// FuzzExpand checks that text without a dollar is unchanged, and that a known name is replaced
// unless its dollar is escaped.
func FuzzExpand(f *testing.F) {
	for _, s := range []string{"", "$(A)", "$$(A)", "$(", "a$", "$$$(B)$", "$(A$(B))"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if got := Expand(s, func(string) (string, bool) { return "", false }); len(got) > len(s) {
			t.Fatalf("Expand(%q) returned the longer %q without known names", s, got)
		}
		if got := Expand("$(A)"+s, func(n string) (string, bool) { return "v", n == "A" }); got == "" ||
			got[0] != 'v' {
			t.Fatalf("Expand($(A)%q) returned %q", s, got)
		}
	})
}

// callAll calls every function that takes a pod.
func callAll(pod *corev1.Pod) {
	QOSClass(pod)
	Requests(pod)
	Limits(pod)
	Limited(pod, corev1.ResourceMemory)
	Priority(pod)
	GracePeriod(pod)
	IsCritical(pod, true)
	IsCritical(pod, false)
	for _, a := range HostPorts(pod) {
		for _, b := range HostPorts(pod) {
			a.Conflicts(b)
		}
	}
	References(pod)
	for c := range containersOf(&pod.Spec) {
		ContainerHash(c)
	}
}

func encode(t *testing.T, v any) string {
	t.Helper()
	out, err := json.Marshal(v)
	if err != nil {
		t.Fatalf("encoding failed: %v", err)
	}
	return string(out)
}

// seeds are the golden pods and inputs that once failed.
func seeds(f *testing.F) [][]byte {
	out := [][]byte{
		[]byte(`{}`),
		[]byte(
			`{"spec":{"containers":[{"resources":{"requests":{"cpu":"9e999","hugepages-":"1","a/b":"1.5"},` +
				`"limits":{"hugepages-2Mi":"-1n"}}}]}}`,
		),
		[]byte(
			`{"spec":{"volumes":[{"projected":{"sources":[{},{"secret":{}}]}},{"emptyDir":{"medium":"HugePages-"}}]}}`,
		),
		[]byte(
			`{"spec":{"resources":{"requests":{"cpu":"1"}},` +
				`"containers":[{"resources":{"limits":{"memory":"1","cpu":"1"}}}]}}`,
		),
		[]byte(
			`{"metadata":{"annotations":{"container.apparmor.security.beta.kubernetes.io/":"localhost/"}},` +
				`"spec":{"containers":[{"lifecycle":{"preStop":{"sleep":{}}},` +
				`"livenessProbe":{"httpGet":{"port":"x"}}}]}}`,
		),
		[]byte(
			`{"spec":{"affinity":{"nodeAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":{` +
				`"nodeSelectorTerms":[{"matchExpressions":[{"operator":"Gt"}]}]}}},` +
				`"securityContext":{"sysctls":[{"name":"a/b.c"}]}}}`,
		),
		[]byte(
			`{"spec":{"containers":[{"env":[{"name":"a","valueFrom":` +
				`{"resourceFieldRef":{"resource":"limits.cpu","divisor":"1e-9"}}}],` +
				`"ports":[{"hostPort":1,"hostIP":"fe80::1%a"}]}]}}`,
		),
	}
	golden := goldenFiles(f)
	for _, file := range slices.Sorted(maps.Keys(golden)) {
		raw := golden[file]
		for _, text := range splitDocuments(raw) {
			seed, err := yaml.YAMLToJSON(text)
			if err != nil {
				f.Fatal(err)
			}
			out = append(out, seed)
		}
	}
	return out
}
