package validation

import (
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"berth/internal/rules/rulestest"
)

// tested describes the kinds to rulestest. The fuzz test of control/validation covers these kinds too.
var tested = rulestest.Kinds{RulesFor: RulesFor, Empty: func(t testing.TB, kind schema.GroupKind) runtime.Object {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := appsv1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	if err := batchv1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	obj, err := scheme.New(kind.WithVersion("v1"))
	if err != nil {
		t.Fatal(err)
	}
	return obj
}}

// TestRules reads cases from testdata/*.yaml.
func TestRules(t *testing.T) {
	t.Parallel()
	tested.RunCases(t)
}

func TestKindsHaveRules(t *testing.T) {
	t.Parallel()
	kinds := Kinds()
	if len(kinds) != 7 {
		t.Errorf("got %d kinds, want 5 of apps and 2 of batch: %v", len(kinds), kinds)
	}
	for _, kind := range kinds {
		if _, known := RulesFor(kind); !known {
			t.Errorf("no rules for %s", kind)
		}
		tested.CheckInvariants(t, kind, tested.Empty(t, kind), tested.Empty(t, kind))
	}
	if _, known := RulesFor(schema.GroupKind{Kind: "Pod"}); known {
		t.Error("rules for a kind of another group")
	}
}
