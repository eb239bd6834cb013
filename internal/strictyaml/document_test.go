package strictyaml

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
)

// one parses an input with one document.
func one(t *testing.T, in string) Document {
	t.Helper()
	docs, err := Parse([]byte(in), Limits{})
	if err != nil {
		t.Fatalf("parse: %v", err)
	}
	if len(docs) != 1 {
		t.Fatalf("got %d documents, want 1", len(docs))
	}
	return docs[0]
}

func TestErrorsNameLineAndField(t *testing.T) {
	tests := []struct{ name, in, want string }{
		{
			"an unknown field",
			"spec:\n  containers:\n  - name: a\n    imaeg: x\n",
			"line 4: spec.containers[0].imaeg: unknown field",
		},
		{
			"a field with wrong case",
			"spec:\n  Containers: []\n",
			"line 2: spec.Containers: unknown field, did you mean containers?",
		},
		{
			"a duplicate field",
			"spec:\n  hostname: a\n  hostPID: true\n  hostname: b\n",
			"line 4: spec.hostname: duplicate field, first on line 2",
		},
		{
			"a duplicate key of a map",
			"metadata:\n  labels:\n    a: x\n    a: y\n",
			"line 4: metadata.labels.a: duplicate field, first on line 3",
		},
		{
			"a number where text is wanted",
			"metadata:\n  name: 12\n",
			"line 2: metadata.name: must be text, is a number: put it in quotes",
		},
		{
			"an old boolean where text is wanted",
			"metadata:\n  name: yes\n",
			"line 2: metadata.name: must be text, is a boolean: put it in quotes",
		},
		{
			"text where a number is wanted",
			"spec:\n  priority: high\n",
			"line 2: spec.priority: must be a whole number with 32 bits, is text",
		},
		{
			"a number that is too large",
			"spec:\n  priority: 3000000000\n",
			"line 2: spec.priority: must be a whole number with 32 bits, is a number",
		},
		{
			"a fraction where a whole number is wanted",
			"spec:\n  priority: 1.5\n",
			"line 2: spec.priority: must be a whole number with 32 bits, is a number",
		},
		{"a list where an object is wanted", "spec:\n- a\n", "line 2: spec: must be an object, is a list"},
		{
			"an object where a list is wanted",
			"spec:\n  containers:\n    name: a\n",
			"line 3: spec.containers: must be a list, is an object",
		},
		{
			"an object where text is wanted",
			"metadata:\n  name: {a: b}\n",
			"line 2: metadata.name: must be text, is an object",
		},
		{"a bad quantity", "spec:\n  containers:\n  - resources:\n      limits:\n        cpu: lots\n",
			"line 5: spec.containers[0].resources.limits.cpu: is not a valid quantity (such as 100m, 1Gi)"},
		{"a bad port", "spec:\n  containers:\n  - readinessProbe:\n      httpGet:\n        port: [1]\n",
			"line 5: spec.containers[0].readinessProbe.httpGet.port: is not a valid number or name"},
		{
			"a bad time",
			"metadata:\n  creationTimestamp: soon\n",
			"line 2: metadata.creationTimestamp: is not a valid time (such as 2006-01-02T15:04:05Z)",
		},
		{
			"an inlined field of an unknown volume",
			"spec:\n  volumes:\n  - name: a\n    flex: {}\n",
			"line 4: spec.volumes[0].flex: unknown field",
		},
		{
			"a key that is an object",
			"metadata:\n  labels:\n    {a: b}: c\n",
			"line 3: metadata.labels: has a key that is not a string",
		},
		{"the whole is a list", "- a\n", "line 1: must be an object, is a list"},
		{
			"JSON too",
			"{\n \"spec\": {\n  \"hostPid\": true}}",
			"line 3: spec.hostPid: unknown field, did you mean hostPID?",
		},
		{
			"duplicates in JSON",
			"{\"spec\": {\"hostPID\": true,\n\"hostPID\": true}}",
			"line 2: spec.hostPID: duplicate field, first on line 1",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := one(t, tt.in).Decode(&corev1.Pod{})
			if err == nil || err.Error() != tt.want {
				t.Errorf("got  %v\nwant %s", err, tt.want)
			}
		})
	}
}

func TestSyntaxErrorsNameLine(t *testing.T) {
	tests := []struct{ name, in, want string }{
		{"YAML with a tab", "a: b\n\tc: d\n", "line 2"},
		{"YAML that is not closed", "a: [b\nc: d\n", "not valid YAML"},
		{"an unknown anchor", "c: d\na: *b\n", "line 2: not valid YAML"},
		{"JSON that ends too early", "{\"a\": {\n\"b\": 1", "line 2: not valid JSON: unexpected end"},
		{"JSON with a mistake", "{\"a\": 1,\n\"b\" 2}", "line 2"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := Parse([]byte(tt.in), Limits{})
			if _, ok := errors.AsType[*Error](err); !ok || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want error with %q", err, tt.want)
			}
		})
	}
}

func TestErrorsDoNotQuoteValues(t *testing.T) {
	const secret = "hunter2hunter2"
	for _, in := range []string{
		"kind: Secret\ndata:\n  a: " + secret + "!\n",
		"kind: Secret\ndata:\n  a: [" + secret + "]\n",
		"kind: Secret\ndata: " + secret + "\n",
		"kind: Secret\nstringData:\n  a: {b: " + secret + "}\n",
		"kind: Secret\nimmutable: " + secret + "\n",
		"kind: Secret\nstringData:\n  a: \"" + secret + "\n",
		"kind: Secret\nstringData:\n  a: '" + secret + "' b\n",
		"kind: Secret\nstringData:\n  a: b: " + secret + "\n",
		"{\"data\": {\"a\": \"" + secret + "\n\"}}",
		"{\"data\": {\"a\": " + secret + "}}",
		"metadata:\n  creationTimestamp: " + secret + "\n",
	} {
		docs, err := Parse([]byte(in), Limits{})
		if err == nil && len(docs) == 1 {
			_, err = docs[0].Decode(&corev1.Secret{})
		}
		if err == nil {
			t.Errorf("%q was accepted", in)
		} else if strings.Contains(err.Error(), secret) {
			t.Errorf("the error of %q quotes the secret: %v", in, err)
		}
	}
}

func TestDecodesLikeKubernetes(t *testing.T) {
	const in = `
apiVersion: v1
kind: Pod
metadata: {name: a, creationTimestamp: null, labels: {date: 2001-01-01, n: "1"}}
spec:
  hostPID: yes
  priority: 1e3
  terminationGracePeriodSeconds: 0x10
  containers:
  - &c
    name: a
    resources: {limits: {cpu: 0.5, memory: 1Gi}}
    ports: [{containerPort: 80}]
    readinessProbe: {httpGet: {port: http}}
  - <<: *c
    name: b
  volumes:
  - name: v
    configMap: {name: c, defaultMode: 0644}
`
	var got corev1.Pod
	if _, err := one(t, in).Decode(&got); err != nil {
		t.Fatal(err)
	}
	var want corev1.Pod
	if err := json.Unmarshal([]byte(
		`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a","labels":{"date":"2001-01-01","n":"1"}},
		"spec":{"hostPID":true,"priority":1000,"terminationGracePeriodSeconds":16,"containers":[
		{"name":"a","resources":{"limits":{"cpu":0.5,"memory":"1Gi"}},"ports":[{"containerPort":80}],
			"readinessProbe":{"httpGet":{"port":"http"}}},
		{"name":"b","resources":{"limits":{"cpu":0.5,"memory":"1Gi"}},"ports":[{"containerPort":80}],
			"readinessProbe":{"httpGet":{"port":"http"}}}],
		"volumes":[{"name":"v","configMap":{"name":"c","defaultMode":420}}]}}`), &want); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

func TestJSONEscapes(t *testing.T) {
	var got corev1.ConfigMap
	if _, err := one(t, "\ufeff{\t\"data\": {\"a\": \"\\ud83d\\ude00\\/\"}}").Decode(&got); err != nil {
		t.Fatal(err)
	}
	if got.Data["a"] != "😀/" {
		t.Errorf("got %q", got.Data["a"])
	}
}

func TestLimits(t *testing.T) {
	laughs := "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n"
	for i := 1; i < 10; i++ {
		p, n := string(rune('0'+i-1)), string(rune('0'+i))
		laughs += "a" + n + ": &a" + n + " [" + strings.Repeat("*a"+p+", ", 9) + "*a" + p + "]\n"
	}
	merges := "a0: &a0 {x: y}\n"
	for i := 1; i < 10; i++ {
		p, n := string(rune('0'+i-1)), string(rune('0'+i))
		merges += "a" + n + ": &a" + n + "\n  <<: [" + strings.Repeat("*a"+p+", ", 9) + "*a" + p + "]\n"
	}
	for name, in := range map[string]string{
		"a billion laughs": "metadata:\n  managedFields:\n  - fieldsV1:\n" + indent(laughs, 6),
		"a billion merges": "metadata:\n  managedFields:\n  - fieldsV1:\n" + indent(merges, 6),
		"deep nesting": "metadata: {managedFields: [{fieldsV1: " + strings.Repeat("[", 5000) +
			strings.Repeat("]", 5000) + "}]}",
		"deep nesting (JSON)": "{\"metadata\": " + strings.Repeat("[", 100000),
		"a circle":            "metadata: {managedFields: [{fieldsV1: &a {b: *a}}]}",
	} {
		t.Run(name, func(t *testing.T) {
			docs, err := Parse([]byte(in), Limits{})
			for _, d := range docs {
				_, err = d.Decode(&corev1.Pod{})
			}
			if err == nil {
				t.Error("was accepted")
			} else if len(err.Error()) > 5000 {
				t.Errorf("got an error of %d bytes", len(err.Error()))
			}
		})
	}
	if _, err := Parse([]byte(strings.Repeat("---\na: b\n", 1001)), Limits{}); err == nil {
		t.Error("1001 documents were accepted")
	}
}

func indent(s string, n int) string {
	pad := strings.Repeat(" ", n)
	return pad + strings.ReplaceAll(strings.TrimSuffix(s, "\n"), "\n", "\n"+pad) + "\n"
}

func TestLineFindsFields(t *testing.T) {
	d := one(
		t,
		"metadata:\n  name: a\n  labels:\n    a.b/c: d\nspec:\n  containers:\n  - name: x\n  - name: y\n    ports:\n"+
			"    - containerPort: 1\n",
	)
	for path, want := range map[string]int{
		"metadata.name":                            2,
		"metadata.labels[a.b/c]":                   4,
		"spec.containers[1].name":                  8,
		"spec.containers[1].ports[0].hostPort":     10,
		"spec.containers[1].image":                 8,
		"spec.volumes":                             5,
		"spec.containers[7]":                       6,
		"nothing":                                  1,
		"spec.containers[0].resources.limits[cpu]": 7,
	} {
		if got := d.Line(path); got != want {
			t.Errorf("%s: got line %d, want %d", path, got, want)
		}
	}
}

func TestEmptyDocumentsAreSkipped(t *testing.T) {
	for in, want := range map[string]int{"": 0, "---\n---\n": 0, "# only words\n": 0, "---\na: b\n---\n---\nc: d\n": 2,
		"null": 0, "{}{}": 2} {
		docs, err := Parse([]byte(in), Limits{})
		if err != nil || len(docs) != want {
			t.Errorf("%q: got %d documents (%v), want %d", in, len(docs), err, want)
		}
	}
}

func FuzzDecode(f *testing.F) {
	for _, s := range []string{
		"apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {containers: [{name: a, image: b}]}\n",
		"a: &a [*a]", "<<: [{a: b}, {c: d}]", "? {a: b}\n: c", "{\"a\": [1, 2.5, null, true, \"x\"]}",
		"spec:\n  containers:\n  - &c {name: a}\n  - <<: *c\n", "--- !!binary aGk=\n", "spec: !!set {a}",
		"metadata: {name: ! 12}",
		"spec: {priority: 0777777777777777777777}", "spec: {priority: .inf}", "\xff\xfe", "a: 'b", "%YAML 1.1\n---\n",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		docs, err := Parse(data, Limits{Nodes: 1 << 14})
		if err != nil {
			return
		}
		for _, d := range docs {
			d.Kind()
			_, _ = d.Items()
			d.Line("spec.containers[0].image")
			var pod, again corev1.Pod
			written, err := d.Decode(&pod)
			if err != nil {
				continue
			}
			if err := json.Unmarshal(written, &again); err != nil {
				t.Fatalf("the JSON form cannot be decoded: %v", err)
			}
			if d := cmp.Diff(pod, again); d != "" {
				t.Fatal(d)
			}
		}
	})
}
