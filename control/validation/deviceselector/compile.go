// Package deviceselector compiles the CEL expressions of device selectors for package control/validation.
package deviceselector

import (
	"k8s.io/apimachinery/pkg/util/validation/field"
	apiservercel "k8s.io/apiserver/pkg/cel"
	"k8s.io/apiserver/pkg/cel/environment"
	"k8s.io/dynamic-resource-allocation/cel"
)

// Compile is an ExpressionCompiler with the library that the scheduler uses. The library caches its
// compiler. Of the error, type and detail are set.
func Compile(text string, derived bool) (cost uint64, problem *field.Error) {
	compiler := cel.GetCompiler(cel.Features{EnableConsumableCapacity: true, EnableListTypeAttributes: true})
	got := compiler.CompileCELExpression(
		text,
		cel.Options{EnvType: new(environment.NewExpressions), DerivedAttribute: derived},
	)
	if got.Error == nil {
		return got.MaxCost, nil
	}
	problem = &field.Error{Type: field.ErrorTypeInternal, Detail: got.Error.Detail}
	switch got.Error.Type {
	case apiservercel.ErrorTypeRequired:
		problem.Type = field.ErrorTypeRequired
	case apiservercel.ErrorTypeInvalid:
		problem.Type = field.ErrorTypeInvalid
	}
	return 0, problem
}
