// Package policyexpressions compiles the CEL expressions of admission policies and webhooks for package
// control/validation.
package policyexpressions

import (
	"sync"

	"k8s.io/apimachinery/pkg/util/validation/field"
	plugincel "k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/admission/plugin/policy/mutating/patch"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	apiservercel "k8s.io/apiserver/pkg/cel"
	"k8s.io/apiserver/pkg/cel/environment"

	"berth/control/validation"
)

// withoutVariables compiles expressions of all objects. It has no state, and is created when it is needed.
var withoutVariables = sync.OnceValue(func() plugincel.Compiler { return plugincel.NewCompiler(baseEnvironment()) })

func baseEnvironment() *environment.EnvSet {
	return environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion())
}

// NewCompiler is a validation.PolicyCompiler with the environment in which the API server runs the expressions.
func NewCompiler(variables bool) func(validation.PolicyExpression) *field.Error {
	if !variables {
		return func(e validation.PolicyExpression) *field.Error {
			return problem(withoutVariables().CompileCELExpression(accessor(e), declarations(e), mode(e)))
		}
	}
	composited, err := plugincel.NewCompositedCompiler(baseEnvironment())
	if err != nil {
		return func(validation.PolicyExpression) *field.Error {
			return &field.Error{Type: field.ErrorTypeInternal, Detail: err.Error()}
		}
	}
	return func(e validation.PolicyExpression) *field.Error {
		switch e.Kind {
		case validation.MatchCondition:
			return problem(withoutVariables().CompileCELExpression(accessor(e), declarations(e), mode(e)))
		case validation.Variable:
			variable := &validating.Variable{Name: e.Name, Expression: e.Text}
			return problem(composited.CompileAndStoreVariable(variable, declarations(e), mode(e)))
		default:
			return problem(composited.CompileCELExpression(accessor(e), declarations(e), mode(e)))
		}
	}
}

// accessor returns the expression with the types that it may return.
func accessor(e validation.PolicyExpression) plugincel.ExpressionAccessor {
	switch e.Kind {
	case validation.Message:
		return &validating.MessageExpressionCondition{MessageExpression: e.Text}
	case validation.AuditAnnotation:
		return &validating.AuditAnnotationCondition{ValueExpression: e.Text}
	case validation.Variable:
		return &validating.Variable{Name: e.Name, Expression: e.Text}
	case validation.ApplyConfiguration:
		return &patch.ApplyConfigurationCondition{Expression: e.Text}
	case validation.JSONPatch:
		return &patch.JSONPatchCondition{Expression: e.Text}
	default:
		return &validating.ValidationCondition{Expression: e.Text}
	}
}

// declarations returns the variables of the environment. A message cannot use the authorizer.
func declarations(e validation.PolicyExpression) plugincel.OptionalVariableDeclarations {
	return plugincel.OptionalVariableDeclarations{
		HasParams: e.Params, HasAuthorizer: e.Kind != validation.Message,
		HasPatchTypes: e.Kind == validation.ApplyConfiguration || e.Kind == validation.JSONPatch,
	}
}

func mode(e validation.PolicyExpression) environment.Type {
	if e.Stored {
		return environment.StoredExpressions
	}
	return environment.NewExpressions
}

// problem returns the error of a compilation.
func problem(result plugincel.CompilationResult) *field.Error {
	if result.Error == nil {
		return nil
	}
	out := &field.Error{Type: field.ErrorTypeInternal, Detail: result.Error.Detail}
	switch result.Error.Type {
	case apiservercel.ErrorTypeRequired:
		out.Type = field.ErrorTypeRequired
	case apiservercel.ErrorTypeInvalid:
		out.Type = field.ErrorTypeInvalid
	}
	return out
}
