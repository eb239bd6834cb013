package validation

import (
	"k8s.io/apimachinery/pkg/runtime/schema"

	"berth/internal/rules"
	workloads "berth/workloads/validation"
)

// Compilers compile CEL expressions. The result depends on the expressions only. Packages deviceselector and
// policyexpressions have those that the API server uses.
type Compilers struct {
	Devices  ExpressionCompiler
	Policies PolicyCompiler
}

// RulesFor returns the rules of a kind. It returns false if there are none. Only devices, admission policies and
// webhooks need compilers.
func RulesFor(kind schema.GroupKind, compilers Compilers) (rules.Rules, bool) {
	for _, group := range otherGroups(compilers) {
		if r, ok := group[kind]; ok {
			return r, true
		}
	}
	return workloads.RulesFor(kind)
}

// otherGroups holds the rules of all kinds that workloads.RulesFor does not know.
func otherGroups(compilers Compilers) []map[schema.GroupKind]rules.Rules {
	return []map[schema.GroupKind]rules.Rules{
		coreRules, storageRules, deviceRules(compilers), autoscalingRules, rbacRules, networkingRules, fairnessRules,
		smallGroupRules, webhookRules(compilers), policyRules(compilers),
	}
}

// Root paths of all objects.
var metadata, spec, status = rules.Metadata(), rules.Spec(), rules.Status()

// definition defines the rules of one type.
type definition[T rules.Object] = rules.Definition[T, *validator]

// validator collects errors.
type validator struct {
	rules.Validator
	compilers Compilers // only for kinds with expressions
}

func newValidator() *validator { return &validator{} }

// compiling returns newValidator for kinds with expressions.
func compiling(compilers Compilers) func() *validator {
	return func() *validator { return &validator{compilers: compilers} }
}
