package validation

import (
	"k8s.io/apimachinery/pkg/runtime/schema"

	"berth/internal/rules"
	workloads "berth/workloads/validation"
)

// RulesFor returns the rules of a kind. It returns false if there are none. Only devices need compile.
func RulesFor(kind schema.GroupKind, compile ExpressionCompiler) (rules.Rules, bool) {
	for _, group := range otherGroups(compile) {
		if r, ok := group[kind]; ok {
			return r, true
		}
	}
	return workloads.RulesFor(kind)
}

// otherGroups holds the rules of all kinds that workloads.RulesFor does not know.
func otherGroups(compile ExpressionCompiler) []map[schema.GroupKind]rules.Rules {
	return []map[schema.GroupKind]rules.Rules{
		coreRules, storageRules, deviceRules(compile), autoscalingRules, rbacRules, networkingRules, fairnessRules,
		smallGroupRules,
	}
}

// Root paths of all objects.
var metadata, spec, status = rules.Metadata(), rules.Spec(), rules.Status()

// definition defines the rules of one type.
type definition[T rules.Object] = rules.Definition[T, *validator]

// validator collects errors.
type validator struct {
	rules.Validator
	compile ExpressionCompiler // only for devices
}

func newValidator() *validator { return &validator{} }

// compiling returns newValidator for kinds with expressions.
func compiling(compile ExpressionCompiler) func() *validator {
	return func() *validator { return &validator{compile: compile} }
}
