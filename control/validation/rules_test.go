package validation_test

import (
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"berth/control/validation"
	"berth/control/validation/deviceselector"
	"berth/control/validation/policyexpressions"
	"berth/internal/rules"
	"berth/internal/rules/rulestest"
)

// tested describes the kinds to rulestest.
var tested = rulestest.Kinds{
	RulesFor: func(kind schema.GroupKind) (rules.Rules, bool) {
		return validation.RulesFor(kind,
			validation.Compilers{Devices: deviceselector.Compile, Policies: policyexpressions.NewCompiler})
	},
	Empty: empty,
}

// TestRules reads cases from testdata/*.yaml.
func TestRules(t *testing.T) {
	t.Parallel()
	tested.RunCases(t)
}

func TestRulesForKnowsWorkloads(t *testing.T) {
	t.Parallel()
	for _, kind := range []schema.GroupKind{{Group: "apps", Kind: "Deployment"}, {Group: "batch", Kind: "Job"}} {
		if _, known := tested.RulesFor(kind); !known {
			t.Errorf("no rules for %s", kind)
		}
	}
	if _, known := tested.RulesFor(schema.GroupKind{Group: "example.com", Kind: "Deployment"}); known {
		t.Error("rules for an unknown group")
	}
}
