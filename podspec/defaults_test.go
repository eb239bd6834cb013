package podspec

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// Each golden file contains a pod as written, and the same pod with defaults.
func TestSetDefaultsGolden(t *testing.T) {
	for file, raw := range goldenFiles(t) {
		t.Run(file, func(t *testing.T) {
			docs := splitDocuments(raw)
			var got, want corev1.Pod
			for pod, text := range map[*corev1.Pod][]byte{&got: docs[0], &want: docs[1]} {
				if err := yaml.UnmarshalStrict(text, pod); err != nil {
					t.Fatal(err)
				}
			}
			SetDefaults(&got)
			if diff := cmp.Diff(plainly(t, &want), plainly(t, &got)); diff != "" {
				t.Errorf("want (-) got (+):\n%s", diff)
			}
			SetDefaults(&got)
			if diff := cmp.Diff(plainly(t, &want), plainly(t, &got)); diff != "" {
				t.Errorf("SetDefaults is not idempotent:\n%s", diff)
			}
		})
	}
}

// plainly returns the YAML form of a value.
func plainly(t testing.TB, v any) string {
	t.Helper()
	out, err := yaml.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

func TestSetDefaultsOverwritesNothing(t *testing.T) {
	const spec = `
restartPolicy: Never
dnsPolicy: Default
schedulerName: mine
terminationGracePeriodSeconds: 0
enableServiceLinks: false
securityContext: {runAsUser: 1}
serviceAccountName: a
serviceAccount: a
volumes:
- {name: v, configMap: {name: c, defaultMode: 0}}
- {name: h, hostPath: {path: /, type: Directory}}
containers:
- name: main
  image: x
  imagePullPolicy: Never
  terminationMessagePath: /t
  terminationMessagePolicy: FallbackToLogsOnError
  ports: [{containerPort: 1, protocol: SCTP}]
  resources: {limits: {cpu: "2"}, requests: {cpu: "1"}}
  livenessProbe:
    httpGet: {port: 1, path: /x, scheme: HTTPS}
    timeoutSeconds: 2
    periodSeconds: 2
    successThreshold: 2
    failureThreshold: 2
`
	var before corev1.PodSpec
	if err := yaml.UnmarshalStrict([]byte(spec), &before); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(plainly(t, before), plainly(t, podOf(t, spec).Spec)); diff != "" {
		t.Errorf("the argument was modified:\n%s", diff)
	}
}

func TestPullPolicy(t *testing.T) {
	for _, row := range []struct {
		sentence, image string
		want            corev1.PullPolicy
	}{
		{"no tag is latest", "nginx", corev1.PullAlways},
		{"no tag at a registry with a port is latest", "registry:5000/nginx", corev1.PullAlways},
		{"latest", "nginx:latest", corev1.PullAlways},
		{"other tags", "nginx:1.14.2", corev1.PullIfNotPresent},
		{"a digest", "nginx@sha256:abc", corev1.PullIfNotPresent},
		{"latest beside a digest is still latest", "nginx:latest@sha256:abc", corev1.PullAlways},
		{"a tag that starts with latest", "nginx:latest-1", corev1.PullIfNotPresent},
		{"an empty image is validated elsewhere", "", corev1.PullIfNotPresent},
	} {
		t.Run(row.sentence, func(t *testing.T) {
			if got := pullPolicy(row.image); got != row.want {
				t.Errorf("%q: %s, want %s", row.image, got, row.want)
			}
		})
	}
}

func TestSystemPriorityClasses(t *testing.T) {
	for spec, want := range map[string]string{
		"priorityClassName: system-node-critical":                   "2000001000",
		"priorityClassName: system-cluster-critical":                "2000000000",
		"{priorityClassName: system-cluster-critical, priority: 5}": "5",
		"priorityClassName: gold":                                   "null",
		"{}":                                                        "null",
	} {
		pod := podOf(t, spec)
		SetDefaults(pod)
		if got, _ := json.Marshal(pod.Spec.Priority); string(got) != want {
			t.Errorf("%s: %s, want %s", spec, got, want)
		}
	}
}

func TestAppArmorAnnotationsSetFields(t *testing.T) {
	const prefix = corev1.DeprecatedAppArmorBetaContainerAnnotationKeyPrefix
	pod := &corev1.Pod{}
	pod.Annotations = map[string]string{
		prefix + "a": "localhost/strict", prefix + "b": "runtime/default", prefix + "c": "unconfined",
		prefix + "d": "nonsense",
	}
	own := &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeRuntimeDefault}
	pod.Spec.Containers = []corev1.Container{
		{Name: "a"}, {Name: "b"}, {Name: "d"},
		{Name: "c", SecurityContext: &corev1.SecurityContext{AppArmorProfile: own}},
	}
	SetDefaults(pod)
	cs := pod.Spec.Containers
	if p := cs[0].SecurityContext.AppArmorProfile; p.Type != corev1.AppArmorProfileTypeLocalhost ||
		*p.LocalhostProfile != "strict" {
		t.Errorf("a: %v", p)
	}
	if p := cs[1].SecurityContext.AppArmorProfile; p.Type != corev1.AppArmorProfileTypeRuntimeDefault ||
		p.LocalhostProfile != nil {
		t.Errorf("b: %v", p)
	}
	if cs[2].SecurityContext != nil {
		t.Errorf("d: an invalid annotation became %v", cs[2].SecurityContext)
	}
	if cs[3].SecurityContext.AppArmorProfile != own {
		t.Errorf("c: the annotation took precedence over the field")
	}
}

func TestSetSecretDefaults(t *testing.T) {
	s := &corev1.Secret{
		Data:       map[string][]byte{"a": []byte("old"), "b": []byte("b")},
		StringData: map[string]string{"a": "new"},
	}
	SetSecretDefaults(s)
	if s.Type != corev1.SecretTypeOpaque || string(s.Data["a"]) != "new" || string(s.Data["b"]) != "b" ||
		s.StringData != nil {
		t.Errorf("got %v", s)
	}
}

func TestSetConfigMapDefaults(t *testing.T) {
	cm := &corev1.ConfigMap{}
	SetConfigMapDefaults(cm)
	if cm.Data == nil {
		t.Error("data is nil")
	}
}

func splitDocuments(raw []byte) [][]byte { return bytes.Split(raw, []byte("\n---\n")) }

// goldenFiles returns the golden files by name.
func goldenFiles(t testing.TB) map[string][]byte {
	t.Helper()
	files, err := filepath.Glob("testdata/defaults/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no golden files: %v", err)
	}
	out := map[string][]byte{}
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		out[filepath.Base(file)] = raw
	}
	return out
}
