package source

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/agent/plan"
)

// pod is a small valid manifest.
func pod(name, image string) string {
	return fmt.Sprintf(
		"apiVersion: v1\nkind: Pod\nmetadata:\n  name: %s\nspec:\n  containers:\n  - name: main\n    image: %s\n",
		name,
		image,
	)
}

var (
	modified = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	id       = Identity{NodeName: "node1"}
)

// mustValidate validates a manifest without errors.
func mustValidate(t *testing.T, in string, before *DesiredState) *DesiredState {
	t.Helper()
	w, err := Validate(
		Input{Path: "a.yaml", Data: []byte(in), Modified: modified, Now: modified.Add(time.Hour)},
		id,
		before,
	)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func TestDecodeFormats(t *testing.T) {
	const jsonPod = `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"%s"},` +
		`"spec":{"containers":[{"name":"c","image":"i:1"}]}}`
	tests := []struct{ name, in, want string }{
		{"one pod", pod("a", "i:1"), "a"},
		{"several documents", pod("a", "i:1") + "---\n" + pod("b", "i:1") + "---\n---\n# nothing\n", "a b"},
		{"JSON", fmt.Sprintf(jsonPod, "a"), "a"},
		{"several JSON documents", fmt.Sprintf(jsonPod, "a") + "\n" + fmt.Sprintf(jsonPod, "b"), "a b"},
		{
			"a List",
			"apiVersion: v1\nkind: List\nitems:\n- " + fmt.Sprintf(jsonPod, "a") + "\n- " + fmt.Sprintf(jsonPod, "b"),
			"a b",
		},
		{
			"a PodList with items without a kind",
			`{"apiVersion":"v1","kind":"PodList","items":[` +
				`{"metadata":{"name":"a"},"spec":{"containers":[{"name":"c","image":"i:1"}]}}]}`,
			"a",
		},
		{"an empty List", "apiVersion: v1\nkind: List\nitems: []\n", ""},
		{"an empty file", "", ""},
		{"only a comment", "# later\n", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var names []string
			for _, p := range mustValidate(t, tt.in, nil).Pods {
				names = append(names, p.Name)
			}
			if got := strings.Join(names, " "); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

func TestErrorsNameLineAndField(t *testing.T) {
	tests := []struct{ name, in, want string }{
		{"an unknown field", pod("a", "i:1") + "  nodeSelektor: {}\n", "line 9: spec.nodeSelektor: unknown field"},
		{
			"the second document",
			pod("a", "i:1") + "---\n" + pod("b", "i:1") + "  x: 1\n",
			"line 18: spec.x: unknown field",
		},
		{
			"an item of a List",
			"apiVersion: v1\nkind: List\nitems:\n- apiVersion: v1\n  kind: Pod\n  metadata: {name: a}\n" +
				"  spec:\n    x: 1\n",
			"line 8: spec.x: unknown field",
		},
		{"no kind", "apiVersion: v1\nmetadata: {name: a}\n", "line 1: kind: must be specified"},
		{"no version", "kind: Pod\n", "line 1: apiVersion: must be specified (v1)"},
		{"a wrong version", "apiVersion: v2\nkind: Pod\n", "line 1: apiVersion: must be v1 for kind Pod"},
		{"no name", "apiVersion: v1\nkind: Pod\nmetadata: {}\n", "line 3: metadata.name: must be specified"},
		{
			"one name twice",
			pod("a", "i:1") + "---\n" + pod("a", "i:2"),
			"line 13: metadata.name: Pod default/a is in this file twice, first on line 4",
		},
		{
			"a validation error",
			pod("a", "i:1") + "    ports: [{containerPort: 70000}]\n",
			"line 9: spec.containers[0].ports[0].containerPort: ",
		},
		{
			"no image",
			strings.Replace(pod("a", "i:1"), "    image: i:1\n", "", 1),
			"line 7: spec.containers[0].image: Required value",
		},
		{"a bad name", pod("a_b", "i:1"), "line 4: metadata.name: Invalid value"},
		{
			"a list in a list",
			"apiVersion: v1\nkind: List\nitems: [{apiVersion: v1, kind: List}]\n",
			"line 3: kind: a list within a list is not supported",
		},
		{
			"another kind in a PodList",
			"apiVersion: v1\nkind: PodList\nitems: [{apiVersion: v1, kind: Secret}]\n",
			"line 3: kind: must be Pod in this list",
		},
		{"too many documents", strings.Repeat("---\n{}\n", MaxDocuments+1), "more than 1000 documents"},
		{
			"too many items",
			"apiVersion: v1\nkind: List\nitems: [" + strings.Repeat(
				"{apiVersion: v1, kind: X},",
				MaxDocuments+1,
			) + "]\n",
			"more than 1000 objects",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w, err := Validate(Input{Path: "a.yaml", Data: []byte(tt.in), Modified: modified, Now: modified}, id, nil)
			if w != nil || err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got  %v\nwant %s", err, tt.want)
			}
		})
	}
}

func TestUnsupportedKindIsWarning(t *testing.T) {
	w := mustValidate(
		t,
		pod("a", "i:1")+"---\napiVersion: apps/v1\nkind: ReplicaSet\nmetadata: {name: web}\nspec: {anything: goes}\n",
		nil,
	)
	if len(w.Pods) != 1 || len(w.Warnings) != 1 {
		t.Fatalf("%d pods, warnings %v", len(w.Pods), w.Warnings)
	}
	got := w.Warnings[0]
	if got.File != "a.yaml" || got.Line != 10 || !strings.HasPrefix(got.Message, "apps/v1 ReplicaSet web is ignored") {
		t.Errorf("got %+v", got)
	}
}

func TestPodIdentity(t *testing.T) {
	in := strings.Replace(pod("web", "i:1"), "  name: web\n", `  name: web
  uid: mine
  resourceVersion: "5"
  creationTimestamp: 2001-01-01T00:00:00Z
  annotations: {a: b, kubernetes.io/config.source: api, kubernetes.io/config.hash: x, berth.dev/config.content: y}
`, 1) + "  nodeName: other\nstatus: {phase: Running}\n"
	w := mustValidate(t, in, nil)
	p := w.Pods[0]
	for _, v := range []struct{ name, got, want string }{
		{"namespace", p.Namespace, "default"}, {"name", p.Name, "web"}, {"node", p.Spec.NodeName, "node1"},
		{"source", p.Annotations[AnnotationSource], "file"},
		{"seen", p.Annotations[AnnotationSeen], "2026-01-02T04:04:05Z"},
		{"annotation", p.Annotations["a"], "b"}, {"phase", string(p.Status.Phase), ""},
		{"version", p.ResourceVersion, ""},
		{"modified", p.CreationTimestamp.UTC().Format(time.RFC3339), "2026-01-02T03:04:05Z"},
		{"toleration", fmt.Sprint(p.Spec.Tolerations),
			fmt.Sprint([]corev1.Toleration{{Operator: "Exists", Effect: "NoExecute"}})},
		{"defaults", string(p.Spec.RestartPolicy), "Always"},
	} {
		if v.got != v.want {
			t.Errorf("%s: %q, want %q", v.name, v.got, v.want)
		}
	}
	if len(p.UID) != 36 || p.UID == "mine" || p.Annotations[AnnotationHash] != string(p.UID) ||
		len(p.Annotations[AnnotationContent]) != 32 {
		t.Errorf("UID %s, annotations %v", p.UID, p.Annotations)
	}
	if len(w.Warnings) != 2 || w.Warnings[0].Pod.Name != "web" {
		t.Errorf("warnings %v", w.Warnings)
	}
}

// TestUIDIsStableAcrossReleases pins the UID of a manifest. Another one would replace every file
// pod at an upgrade.
func TestUIDIsStableAcrossReleases(t *testing.T) { // S3
	p := mustValidate(t, pod("web", "i:1")+"  priority: 5\n", nil).Pods[0]
	if p.UID != "e1be23b5-b970-8c31-8bba-da364e3b67e3" ||
		p.Annotations[AnnotationContent] != "4032f08e8d611d4d783fb732b764572d" {
		t.Errorf("UID %s and hash %s have changed", p.UID, p.Annotations[AnnotationContent])
	}
}

func TestUIDDependsOnContent(t *testing.T) { // S3
	base := mustValidate(t, pod("web", "i:1"), nil).Pods[0]
	tests := []struct {
		name, in       string
		sameUID, whole bool
	}{
		{"the same again", pod("web", "i:1"), true, true},
		{
			"another order and form",
			`{"kind":"Pod","apiVersion":"v1","spec":{"containers":[{"image":"i:1","name":"main"}]},` +
				`"metadata":{"name":"web"}}`,
			true,
			true,
		},
		{"another image", pod("web", "i:2"), true, false},
		{
			"another label",
			strings.Replace(pod("web", "i:1"), "  name: web\n", "  name: web\n  labels: {a: b}\n", 1),
			false,
			false,
		},
		{
			"an empty label",
			strings.Replace(pod("web", "i:1"), "  name: web\n", "  name: web\n  labels: {a: \"\"}\n", 1),
			false,
			false,
		},
		{"another environment", pod("web", "i:1") + "    env: [{name: A, value: b}]\n", false, false},
		{"another name", pod("web2", "i:1"), false, false},
		{
			"what a server adds",
			strings.Replace(
				pod("web", "i:1"),
				"  name: web\n",
				"  name: web\n  uid: x\n  generation: 4\n",
				1,
			) + "status: {}\n",
			true,
			true,
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := mustValidate(t, tt.in, nil).Pods[0]
			if (p.UID == base.UID) != tt.sameUID ||
				(p.Annotations[AnnotationContent] == base.Annotations[AnnotationContent]) != tt.whole {
				t.Errorf(
					"UID %s and %s, hash %s and %s",
					base.UID,
					p.UID,
					base.Annotations[AnnotationContent],
					p.Annotations[AnnotationContent],
				)
			}
		})
	}
	sized := func(text string) *corev1.Pod {
		return mustValidate(t, pod("web", "i:1")+"    resources: "+text+"\n", nil).Pods[0]
	}
	was := sized("{requests: {cpu: 1, memory: 1Gi}, limits: {memory: 2Gi}}")
	for text, same := range map[string]bool{
		"{requests: {cpu: 500m, memory: 1536Mi}, limits: {memory: 3Gi}}": true, // a resize
		// another amount is named
		"{requests: {cpu: 1, memory: 1Gi}, limits: {memory: 2Gi, cpu: 2}}":                 false,
		"{requests: {cpu: 1, memory: 1Gi}}":                                                false,
		"{requests: {cpu: 1, memory: 1Gi, ephemeral-storage: 1Gi}, limits: {memory: 2Gi}}": false,
	} {
		if p := sized(text); (p.UID == was.UID) != same {
			t.Errorf("%s: same UID %v", text, !same)
		}
	}
	if a, b := sized("{limits: {cpu: 1, memory: 1Gi}, requests: {cpu: 1, memory: 1Gi}}"),
		sized("{limits: {cpu: 1, memory: 1Gi}, requests: {cpu: 1, memory: 1Mi}}"); a.UID == b.UID {
		t.Error("another QoS class must change the UID")
	}
	whole := func(text string) *corev1.Pod {
		return mustValidate(t, pod("web", "i:1")+"  resources: "+text+"\n", nil).Pods[0]
	}
	was = whole("{requests: {memory: 1Gi}, limits: {memory: 2Gi}}")
	for text, same := range map[string]bool{
		// a resize of the pod as a whole
		"{requests: {memory: 1536Mi}, limits: {memory: 3Gi}}":                                      true,
		"{requests: {memory: 2Gi}, limits: {memory: 2Gi, cpu: 2}}":                                 false,
		"{requests: {memory: 1Gi, hugepages-2Mi: 2Mi}, limits: {memory: 2Gi, hugepages-2Mi: 2Mi}}": false,
	} {
		if p := whole(text); (p.UID == was.UID) != same {
			t.Errorf("%s: same UID %v", text, !same)
		}
	}
	other := Identity{NodeName: "node2", SuffixNodeName: true}
	w, err := Validate(Input{Data: []byte(pod("web", "i:1")), Modified: modified, Now: modified}, other, nil)
	if err != nil || w.Pods[0].UID == base.UID || w.Pods[0].Name != "web-node2" {
		t.Errorf("on another node: %v, %v", w, err)
	}
}

func TestUnchangedObjectsKeepPointers(t *testing.T) { // S4
	const objects = "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\ndata: {a: b}\n"
	before := mustValidate(t, pod("a", "i:1")+"---\n"+pod("b", "i:1")+objects, nil)
	w, err := Validate(
		Input{
			Path:     "a.yaml",
			Data:     []byte(pod("a", "i:1") + "---\n" + pod("b", "i:2") + objects),
			Modified: modified.Add(time.Hour),
			Now:      modified.Add(2 * time.Hour),
		},
		id,
		before,
	)
	if err != nil {
		t.Fatal(err)
	}
	if w.Pods[0] != before.Pods[0] {
		t.Error("a pod that did not change has another pointer")
	}
	b, old := w.Pods[1], before.Pods[1]
	if b == old || b.UID != old.UID || !b.CreationTimestamp.Equal(&old.CreationTimestamp) || b.Generation != 2 ||
		old.Generation != 1 {
		t.Errorf(
			"a new image: UID %s modified %s generation %d, before %s %s %d",
			b.UID,
			b.CreationTimestamp,
			b.Generation,
			old.UID,
			old.CreationTimestamp,
			old.Generation,
		)
	}
	key := ObjectKey{plan.ConfigMap, types.NamespacedName{Namespace: "default", Name: "c"}}
	if w.Objects[key].ConfigMap != before.Objects[key].ConfigMap {
		t.Error("a ConfigMap that did not change has another pointer")
	}
}

func TestObjectVersionIsContentHash(t *testing.T) {
	version := func(in string) (string, *DesiredState) {
		w := mustValidate(t, in, nil)
		for _, o := range w.Objects {
			return o.Version.Version, w
		}
		t.Fatal("no object")
		return "", nil
	}
	const secret = "apiVersion: v1\nkind: Secret\nmetadata: {name: s, namespace: n}\n"
	plain, w := version(secret + "stringData: {a: b}\n")
	encoded, _ := version(secret + "data: {a: Yg==}\n")
	other, _ := version(secret + "stringData: {a: c}\n")
	empty, _ := version(secret + "stringData: {a: \"\"}\n")
	if plain != encoded || plain == other || plain == empty || other == empty {
		t.Errorf("versions: plain %s, encoded %s, other %s, empty %s", plain, encoded, other, empty)
	}
	s := w.Objects[ObjectKey{Kind: plan.Secret, NamespacedName: types.NamespacedName{Namespace: "n", Name: "s"}}].Secret
	if s == nil || string(s.Data["a"]) != "b" || s.StringData != nil || s.Type != corev1.SecretTypeOpaque {
		t.Errorf("got %v", s)
	}
}

func TestErrorsDoNotContainSecrets(t *testing.T) { // S5
	const secret = "hunter2hunter2"
	const head = "apiVersion: v1\nkind: Secret\nmetadata: {name: s}\n"
	for _, in := range []string{
		head + "data: {a: " + secret + "!}\n",
		head + "data: " + secret + "\n",
		head + "type: kubernetes.io/dockerconfigjson\nstringData: {.dockerconfigjson: " + secret + "}\n",
		head + "type: kubernetes.io/tls\nstringData: {tls.crt: " + secret + "}\n",
		head + "stringData: {\"a/b\": " + secret + "}\n",
		head + "stringData: {a: " + secret + "\n",
	} {
		_, err := Validate(Input{Path: "a.yaml", Data: []byte(in), Modified: modified, Now: modified}, id, nil)
		if err == nil {
			t.Errorf("%q was accepted", in)
		} else if strings.Contains(err.Error(), secret) {
			t.Errorf("the error of %q contains the secret: %v", in, err)
		}
	}
}

func FuzzValidate(f *testing.F) {
	f.Add([]byte(pod("a", "i:1")))
	f.Add([]byte(pod("a", "i:1") + "---\n" + pod("b", "i:2")))
	f.Add(
		[]byte(
			"apiVersion: v1\nkind: List\nitems: [{apiVersion: v1, kind: Secret, metadata: {name: s}, " +
				"stringData: {a: b}}]\n",
		),
	)
	f.Add([]byte("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\nbinaryData: {a: Yg==}\n"))
	f.Add(
		[]byte(
			`{"apiVersion":"v1","kind":"PodList","items":[{"metadata":{"name":"a"},"spec":{"containers":[null]}}]}`,
		),
	)
	f.Add(
		[]byte(
			"apiVersion: v1\nkind: Pod\nmetadata: &m {name: a, annotations: {b: c}}\nspec: {containers: [{<<: *m, " +
				"image: x}]}\n",
		),
	)
	f.Fuzz(func(t *testing.T, data []byte) {
		in := Input{Path: "a.yaml", Data: data, Modified: modified, Now: modified}
		w, err := Validate(in, id, nil)
		if (w == nil) == (err == nil) {
			t.Fatalf("result %v and error %v", w, err)
		}
		if err != nil {
			return
		}
		again, err := Validate(in, id, w)
		if err != nil || len(again.Pods) != len(w.Pods) {
			t.Fatalf("the second time: %v", err)
		}
		for i := range w.Pods {
			if again.Pods[i] != w.Pods[i] {
				t.Fatalf("pod %s has another pointer the second time", w.Pods[i].Name)
			}
		}
	})
}

func TestRestartKeepsCreationTimestampAndGeneration(t *testing.T) { // S4
	was := mustValidate(t, pod("a", "i:1"), nil).Pods[0].DeepCopy()
	was.Generation = 3
	known := func(uid types.UID) *corev1.Pod {
		if uid == was.UID {
			return was
		}
		return nil
	}
	again := func(in string) *corev1.Pod {
		t.Helper()
		w, err := Validate(
			Input{
				Path:        "a.yaml",
				Data:        []byte(in),
				Modified:    modified.Add(time.Hour),
				Now:         modified.Add(2 * time.Hour),
				PreviousPod: known,
			},
			id,
			nil,
		)
		if err != nil {
			t.Fatal(err)
		}
		return w.Pods[0]
	}
	if got := again(pod("a", "i:1")); !got.CreationTimestamp.Equal(&was.CreationTimestamp) || got.Generation != 3 ||
		got.Annotations[AnnotationSeen] != was.Annotations[AnnotationSeen] {
		t.Errorf(
			"the same pod: creation timestamp %s, generation %d, config.seen %s",
			got.CreationTimestamp,
			got.Generation,
			got.Annotations[AnnotationSeen],
		)
	}
	if got := again(pod("a", "i:2")); !got.CreationTimestamp.Equal(&was.CreationTimestamp) || got.Generation != 4 ||
		got.Annotations[AnnotationSeen] == was.Annotations[AnnotationSeen] {
		t.Errorf(
			"a new image: creation timestamp %s, generation %d, config.seen %s",
			got.CreationTimestamp,
			got.Generation,
			got.Annotations[AnnotationSeen],
		)
	}
	delete(was.Annotations, AnnotationContent) // as in earlier releases
	was.Annotations[AnnotationHash] = again(pod("a", "i:1")).Annotations[AnnotationContent]
	if got := again(pod("a", "i:1")); got.Generation != 3 || ManifestChanged(was, got) ||
		!ManifestChanged(was, again(pod("a", "i:2"))) {
		t.Errorf("of an earlier release: generation %d, edited %v", got.Generation, ManifestChanged(was, got))
	}
	if got := again(pod("b", "i:1")); got.Generation != 1 ||
		!got.CreationTimestamp.Time.Equal(modified.Add(time.Hour)) {
		t.Errorf("another pod: modified %s generation %d", got.CreationTimestamp, got.Generation)
	}
}
