// Package rulestest tests rules of package rules: with cases of YAML files, and with invariants that hold for any
// object.
package rulestest

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	"berth/internal/rules"
)

// Kinds is what the tests need to know about the kinds of a package.
type Kinds struct {
	RulesFor func(schema.GroupKind) (rules.Rules, bool)
	// Empty returns an empty object of the stored type.
	Empty func(t testing.TB, kind schema.GroupKind) runtime.Object
}

// Case is an object, optionally an update of it, and all expected errors.
type Case struct {
	Case   string   `json:"case"` // description
	Kind   string   `json:"kind"` // Kind or Kind.group
	Object string   `json:"object"`
	Change string   `json:"change"` // the updated object; empty for a new one
	Status bool     `json:"status"` // the update is one of the status
	Want   []string `json:"want"`   // prefix of each expected error
	Filled []string `json:"filled"` // lines in the object with defaults
}

// RunCases runs the cases of testdata/*.yaml as parallel tests.
func (k Kinds) RunCases(t *testing.T) {
	t.Helper()
	files, err := filepath.Glob("testdata/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal("no cases", err)
	}
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var cases []Case
		if err := yaml.UnmarshalStrict(raw, &cases); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		for _, c := range cases {
			t.Run(filepath.Base(file)+"/"+c.Case, func(t *testing.T) {
				t.Parallel()
				k.run(t, c)
			})
		}
	}
}

func (k Kinds) run(t *testing.T, c Case) {
	t.Helper()
	kind := schema.ParseGroupKind(c.Kind)
	r, ok := k.RulesFor(kind)
	if !ok {
		t.Fatalf("no rules for %s", kind)
	}
	obj := k.read(t, kind, c.Object)
	r.Prepare(obj)
	errs := r.Validate(obj)
	if c.Change != "" {
		if len(errs) > 0 {
			t.Fatalf("old object is invalid: %v", errs)
		}
		next := k.read(t, kind, c.Change)
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
}

// read decodes a manifest and sets defaults.
func (k Kinds) read(t *testing.T, kind schema.GroupKind, manifest string) runtime.Object {
	t.Helper()
	obj := k.Empty(t, kind)
	if err := yaml.UnmarshalStrict([]byte(manifest), obj); err != nil {
		t.Fatalf("read manifest: %v\n%s", err, manifest)
	}
	r, _ := k.RulesFor(kind)
	r.Default(obj)
	return obj
}

// CheckInvariants checks for two objects of a kind that defaulting is idempotent, that validation does not change
// them, and that no rule panics.
func (k Kinds) CheckInvariants(t testing.TB, kind schema.GroupKind, obj, old runtime.Object) {
	t.Helper()
	r, _ := k.RulesFor(kind)
	for _, o := range []runtime.Object{obj, old} {
		r.Default(o)
		once := encoded(t, o)
		r.Default(o)
		if diff := cmp.Diff(once, encoded(t, o)); diff != "" {
			t.Fatalf("%s: defaulting is not idempotent:\n%s", kind, diff)
		}
	}
	r.Prepare(old)
	r.PrepareUpdate(obj, old)
	before := encoded(t, []any{obj, old})
	r.Validate(obj)
	r.ValidateUpdate(obj, old)
	r.ValidateStatus(obj, old)
	if diff := cmp.Diff(before, encoded(t, []any{obj, old})); diff != "" {
		t.Fatalf("%s: validation modified the object:\n%s", kind, diff)
	}
}

func encoded(t testing.TB, obj any) string {
	t.Helper()
	raw, err := json.Marshal(obj)
	if err != nil {
		t.Skip(err) // objects that cannot be encoded are never stored
	}
	return string(raw)
}
