package criconfig

import (
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"berth/agent/plan"
	"berth/podspec"
)

var rewrite = flag.Bool("rewrite", false, "rewrite testdata/*.json")

// TestGolden translates each testdata/*.yaml and compares the result
// with the .json file of the same name.
func TestGolden(t *testing.T) {
	files, err := filepath.Glob("testdata/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no testdata: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".yaml"), func(t *testing.T) {
			got := translate(t, readPod(t, file))
			golden := strings.TrimSuffix(file, ".yaml") + ".json"
			if *rewrite {
				if err := os.WriteFile(golden, got, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), string(got)); diff != "" {
				t.Errorf("%s (-want +got; -rewrite accepts it):\n%s", golden, diff)
			}
		})
	}
}

func readPod(t *testing.T, file string) *corev1.Pod {
	t.Helper()
	pod, err := podOf(file)
	if err != nil {
		t.Fatal(err)
	}
	return pod
}

func podOf(file string) (*corev1.Pod, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	pod := &corev1.Pod{}
	return pod, yaml.UnmarshalStrict(text, pod)
}

// translate returns handler, sandbox and containers of a pod as sorted JSON.
func translate(t *testing.T, pod *corev1.Pod) []byte {
	t.Helper()
	out := map[string]any{}
	handler, err := RuntimeHandler(testNode(), pod)
	out["0 handler"] = resultOrError(handler, err)
	sandbox, err := Sandbox(testNode(), pod, testSandboxSetup())
	out["1 sandbox"] = resultOrError(messageMap(t, sandbox), err)
	_, warnings := DNS(testNode(), pod)
	if len(warnings) > 0 {
		out["1 sandbox warnings"] = texts(warnings)
	}
	for i, c := range allContainers(pod) {
		name := string(rune('a'+i)) + " " + c.kind.String() + " " + c.Name
		setup := testContainerSetup()
		setup.Kind = c.kind
		config, err := Container(testNode(), pod, c.Container, setup)
		out[name] = resultOrError(messageMap(t, config), err)
		if _, warnings, _ := Env(testNode(), pod, c.Container, setup); len(warnings) > 0 {
			out[name+" warnings"] = texts(warnings)
		}
	}
	text, err := yaml.Marshal(out)
	if err != nil {
		t.Fatal(err)
	}
	return indented(t, text)
}

func texts(warnings []Warning) (all []string) {
	for _, w := range warnings {
		all = append(all, w.String())
	}
	return all
}

func indented(t *testing.T, text []byte) []byte {
	t.Helper()
	var v any
	if err := yaml.Unmarshal(text, &v); err != nil {
		t.Fatal(err)
	}
	out, err := jsonIndent(v)
	if err != nil {
		t.Fatal(err)
	}
	return append(out, '\n')
}

func resultOrError(v any, err error) any {
	if err == nil {
		return v
	}
	return map[string]any{"error": err.Error(), "kind": int(plan.KindOf(err))}
}

// messageMap returns a message as a map, without the spec hash, which is defined by another
// package.
func messageMap(t *testing.T, m proto.Message) any {
	t.Helper()
	text, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	var v map[string]any
	if err := yaml.Unmarshal(text, &v); err != nil {
		t.Fatal(err)
	}
	if a, ok := v["annotations"].(map[string]any); ok && a[annotationHash] != nil {
		a[annotationHash] = "HASH"
	}
	if envs, ok := v["envs"].([]any); ok {
		v["envs"] = readable(m, len(envs))
	}
	return v
}

type container struct {
	*corev1.Container
	kind plan.ContainerKind
}

// allContainers returns the pod's containers with their kinds.
func allContainers(pod *corev1.Pod) []container {
	var out []container
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		kind := plan.Init
		if podspec.IsSidecar(c) {
			kind = plan.Sidecar
		}
		out = append(out, container{c, kind})
	}
	for i := range pod.Spec.Containers {
		out = append(out, container{&pod.Spec.Containers[i], plan.Main})
	}
	for i := range pod.Spec.EphemeralContainers {
		c := corev1.Container(pod.Spec.EphemeralContainers[i].EphemeralContainerCommon)
		out = append(out, container{&c, plan.Ephemeral})
	}
	return slices.Clip(out)
}
