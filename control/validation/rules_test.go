package validation

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"
)

// read decodes a manifest and sets defaults.
func read(t *testing.T, kind schema.GroupKind, manifest string) runtime.Object {
	t.Helper()
	obj := empty(t, kind)
	if err := yaml.UnmarshalStrict([]byte(manifest), obj); err != nil {
		t.Fatalf("read manifest: %v\n%s", err, manifest)
	}
	rulesByKind[kind].Default(obj)
	return obj
}

// TestRules reads cases from testdata/*.yaml: an object, optionally an update of it, and all
// expected errors.
func TestRules(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal("no cases", err)
	}
	type testCase struct {
		Case   string   `json:"case"` // description
		Kind   string   `json:"kind"` // Kind or Kind.group
		Object string   `json:"object"`
		Change string   `json:"change"` // the updated object; empty for a new one
		Status bool     `json:"status"` // the update is one of the status
		Want   []string `json:"want"`   // prefix of each expected error
		Filled []string `json:"filled"` // lines in the object with defaults
	}
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var cases []testCase
		if err := yaml.UnmarshalStrict(raw, &cases); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		for _, c := range cases {
			t.Run(filepath.Base(file)+"/"+c.Case, func(t *testing.T) {
				t.Parallel()
				kind := schema.ParseGroupKind(c.Kind)
				r, ok := RulesFor(kind)
				if !ok {
					t.Fatalf("no rules for %s", kind)
				}
				obj := read(t, kind, c.Object)
				r.Prepare(obj)
				errs := r.Validate(obj)
				if c.Change != "" {
					if len(errs) > 0 {
						t.Fatalf("old object is invalid: %v", errs)
					}
					next := read(t, kind, c.Change)
					r.PrepareUpdate(next, obj)
					if errs = r.ValidateUpdate(next, obj); c.Status {
						errs = r.ValidateStatus(next, obj)
					}
				}
				var got []string
				for _, e := range errs {
					got = append(got, e.Error())
				}
				for _, want := range c.Want {
					if !slices.ContainsFunc(got, func(g string) bool { return strings.HasPrefix(g, want) }) {
						t.Errorf("missing error: %s", want)
					}
				}
				if len(got) != len(c.Want) {
					t.Errorf("got %d errors, want %d:\n%s", len(got), len(c.Want), strings.Join(got, "\n"))
				}
				text, err := yaml.Marshal(obj)
				if err != nil {
					t.Fatal(err)
				}
				for _, line := range c.Filled {
					if !strings.Contains(string(text), line) {
						t.Errorf("%q is not in\n%s", line, text)
					}
				}
			})
		}
	}
}
