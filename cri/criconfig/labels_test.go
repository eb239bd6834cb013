package criconfig

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/agent/plan"
	"berth/podspec"
)

func fullPod(t *testing.T) *corev1.Pod { return readPod(t, "testdata/full.yaml") }

func sandboxOf(t *testing.T, pod *corev1.Pod) *runtimeapi.PodSandboxConfig {
	t.Helper()
	config, err := Sandbox(testNode(), pod, testSandboxSetup())
	if err != nil {
		t.Fatal(err)
	}
	return config
}

func TestParseReversesBuild(t *testing.T) { // C3
	pod := fullPod(t)
	config := sandboxOf(t, pod)
	sandbox, ok := ParseSandbox(config.Labels, config.Annotations)
	want := SandboxLabels{UID: "u-1", Namespace: "shop", Name: "web", Attempt: 2, Source: "file",
		GraceSeconds: new(int64(42))}
	if diff := cmp.Diff(want, sandbox); !ok || diff != "" {
		t.Errorf("ok %t: %s", ok, diff)
	}
	for i, c := range allContainers(pod) {
		setup := testContainerSetup()
		setup.Kind = c.kind
		config, err := Container(testNode(), pod, c.Container, setup)
		if err != nil {
			t.Fatal(err)
		}
		got, ok := ParseContainer(config.Labels, config.Annotations)
		want := ContainerLabels{
			UID: "u-1", Namespace: "shop", PodName: "web", Name: c.Name, Kind: c.kind,
			Position: []int{0, 1, 0, 0}[i], Attempt: 3, SpecHash: podspec.ContainerHash(c.Container), Image: c.Image,
			TerminationMessagePath: c.TerminationMessagePath, TerminationMessagePolicy: c.TerminationMessagePolicy,
			GraceSeconds: new(int64(42)), Ports: c.Ports,
		}
		if c.Lifecycle != nil {
			want.PreStop, want.StopSignal = c.Lifecycle.PreStop, c.Lifecycle.StopSignal
		}
		if diff := cmp.Diff(want, got); !ok || diff != "" {
			t.Errorf("%s: ok %t: %s", c.Name, ok, diff)
		}
	}
}

func TestParseRequiresOwnerLabel(t *testing.T) { // C4
	config := sandboxOf(t, makePod())
	pod := makePod()
	app := appOf(t, testNode(), pod, testContainerSetup())
	for _, row := range []struct {
		name, key string
		value     *string
	}{
		{"no owner label", OwnerLabel, nil},
		{"unknown version", OwnerLabel, new("v2")},
		{"no UID", labelPodUID, nil},
		{"no name", labelPodName, new("")},
		{"no namespace", labelPodNamespace, nil},
	} {
		t.Run(row.name, func(t *testing.T) {
			change := func(labels map[string]string) map[string]string {
				out := maps.Clone(labels)
				delete(out, row.key)
				if row.value != nil {
					out[row.key] = *row.value
				}
				return out
			}
			if _, ok := ParseSandbox(change(config.Labels), config.Annotations); ok {
				t.Error("the sandbox was accepted as owned")
			}
			if _, ok := ParseContainer(change(app.Labels), app.Annotations); ok {
				t.Error("the container was accepted as owned")
			}
			if PodFromSandbox(change(config.Labels), config.Annotations) != nil {
				t.Error("a pod was restored from it")
			}
		})
	}
	if _, ok := ParseContainer(nil, nil); ok {
		t.Error("empty labels were accepted as owned")
	}
}

// kubernetesKeys are all keys of the kubelet that berth writes.
var kubernetesKeys = []string{
	"io.kubernetes.pod.name", "io.kubernetes.pod.namespace", "io.kubernetes.pod.uid", "io.kubernetes.container.name",
	"io.kubernetes.container.restartCount", "io.kubernetes.container.hash",
	"io.kubernetes.container.terminationMessagePath",
	"io.kubernetes.container.terminationMessagePolicy", "io.kubernetes.container.preStopHandler",
	"io.kubernetes.container.ports",
	"io.kubernetes.pod.terminationGracePeriod", "io.kubernetes.pod.deletionGracePeriod",
}

// TestKubeletKeysAreReserved checks that the list above is complete, because C5 is tested with
// that list.
func TestKubeletKeysAreReserved(t *testing.T) {
	pod := fullPod(t)
	sandbox := sandboxOf(t, pod)
	maps := []map[string]string{sandbox.Labels, sandbox.Annotations}
	for _, c := range allContainers(pod) {
		setup := testContainerSetup()
		setup.Kind = c.kind
		config, err := Container(testNode(), pod, c.Container, setup)
		if err != nil {
			t.Fatal(err)
		}
		maps = append(maps, config.Labels, config.Annotations)
	}
	for _, m := range maps {
		for k := range m {
			if strings.HasPrefix(k, "io.kubernetes.") && !slices.Contains(kubernetesKeys, k) {
				t.Errorf("%s is written but not listed", k)
			}
		}
	}
}

// TestRuntimeAnnotationsArePassedThrough checks annotations with any other prefix.
func TestRuntimeAnnotationsArePassedThrough(t *testing.T) {
	own := map[string]string{"io.kubernetes.cri-o.TTY": "true", "io.kubernetes.cri.untrusted-workload": "x",
		"cpu-load-balancing.crio.io": "disable"}
	config := sandboxOf(t, makePod(func(p *corev1.Pod, _ *corev1.Container) { p.Annotations = maps.Clone(own) }))
	back := PodFromSandbox(config.Labels, config.Annotations)
	for k, v := range own {
		if config.Annotations[k] != v {
			t.Errorf("%s: the sandbox has %q", k, config.Annotations[k])
		}
		if back.Annotations[k] != v {
			t.Errorf("%s: the restored pod has %q", k, back.Annotations[k])
		}
	}
}

func TestPodCannotForgeOwnedKeys(t *testing.T) { // C5
	pod := makePod(func(p *corev1.Pod, _ *corev1.Container) {
		p.Labels = map[string]string{labelPodUID: "other", OwnerLabel: "v9"}
		p.Annotations = map[string]string{annotationAttempt: "99", annotationGrace: "99", annotationHostNetwork: "true",
			annotationPodMeta: "{}"}
		for _, k := range kubernetesKeys {
			p.Labels[k], p.Annotations[k] = "forged", "forged"
		}
	})
	config := sandboxOf(t, pod)
	for _, maps := range []map[string]string{config.Labels, config.Annotations} {
		for k, v := range maps {
			if v == "forged" {
				t.Errorf("pod forged %s", k)
			}
		}
	}
	got, ok := ParseSandbox(config.Labels, config.Annotations)
	if want := (SandboxLabels{UID: "u-1", Namespace: "shop", Name: "web", Attempt: 2}); !ok || !cmp.Equal(want, got) {
		t.Errorf("ok %t, got %+v", ok, got)
	}
}

func TestPodFromSandbox(t *testing.T) {
	pod := fullPod(t)
	config := sandboxOf(t, pod)
	var labels []ContainerLabels
	for _, c := range allContainers(pod) {
		for _, attempt := range []uint32{3, 4} {
			setup := testContainerSetup()
			setup.Kind, setup.Attempt = c.kind, attempt
			config, err := Container(testNode(), pod, c.Container, setup)
			if err != nil {
				t.Fatal(err)
			}
			l, _ := ParseContainer(config.Labels, config.Annotations)
			labels = append([]ContainerLabels{l}, labels...)
		}
	}
	labels = append(labels, ContainerLabels{UID: "other", Name: "stranger"})
	got := PodFromSandbox(config.Labels, config.Annotations, labels...)
	if got.Name != "web" || got.Namespace != "shop" || got.UID != "u-1" ||
		*got.Spec.TerminationGracePeriodSeconds != 42 {
		t.Errorf("identity or grace period differs: %+v", got)
	}
	if got.Labels["app"] != "web" || got.Annotations["note"] != "kept" || *got.Spec.Priority != 1000 ||
		*got.Spec.RuntimeClassName != "plain" {
		t.Errorf("labels, annotations, priority or class differ: %+v", got)
	}
	var names []string
	for _, c := range allContainers(got) {
		names = append(names, c.kind.String()+" "+c.Name)
	}
	if want := []string{"init prepare", "sidecar proxy", "main app", "ephemeral debug"}; !cmp.Equal(want, names) {
		t.Errorf("containers %q, want %q", names, want)
	}
	app := got.Spec.Containers[0]
	if app.Lifecycle == nil || app.Lifecycle.PreStop == nil || app.Lifecycle.PreStop.Exec.Command[0] != "drain" ||
		len(app.Ports) != 2 {
		t.Errorf("hook or its ports differ: %+v", app)
	}
}

func TestDamagedAnnotationsAffectOnlyTheirField(t *testing.T) {
	pod := makePod()
	app := appOf(t, testNode(), pod, testContainerSetup())
	a := maps.Clone(app.Annotations)
	a[annotationRestarts], a[annotationPorts], a[annotationPreStop], a[annotationGrace] = "-1", "[", "{\"exec\":1}",
		"-5"
	got, ok := ParseContainer(app.Labels, a)
	if !ok || got.Name != "app" || got.Attempt != 0 || got.Ports != nil || got.PreStop != nil ||
		got.GraceSeconds != nil {
		t.Errorf("ok %t, got %+v", ok, got)
	}
	if a[annotationKind] = "strange"; true {
		if _, ok := ParseContainer(app.Labels, a); ok {
			t.Error("a container of unknown kind was accepted as owned")
		}
	}
	if kind, ok := parseKind(plan.Sidecar.String()); !ok || kind != plan.Sidecar {
		t.Error("container kinds differ after parsing")
	}
}
