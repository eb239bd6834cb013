package validation

import (
	"errors"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	apiservercel "k8s.io/apiserver/pkg/cel"
	"k8s.io/apiserver/pkg/cel/environment"
	"k8s.io/dynamic-resource-allocation/cel"
)

// deviceSelectors validates device selectors. stored means that they are unchanged stored
// selectors.
func (k *validator) deviceSelectors(at *field.Path, list []resourcev1.DeviceSelector, stored bool) {
	if !k.atMost(at, len(list), resourcev1.DeviceSelectorsMaxSize) {
		return
	}
	for i, s := range list {
		at := at.Index(i).Child("cel")
		if s.CEL == nil {
			k.required(at, "")
		} else if !stored {
			k.expression(at.Child("expression"), s.CEL.Expression, false)
		}
	}
}

// expression compiles a CEL expression about a device with the library that the scheduler uses, and
// returns its estimated cost. The library caches its compiler. The result depends on the expression
// only.
func (k *validator) expression(at *field.Path, text string, derived bool) (cost uint64) {
	if len(text) > resourcev1.CELSelectorExpressionMaxLength {
		k.add(field.TooLong(at, "", resourcev1.CELSelectorExpressionMaxLength))
		return 0
	}
	compiler := cel.GetCompiler(cel.Features{EnableConsumableCapacity: true, EnableListTypeAttributes: true})
	got := compiler.CompileCELExpression(
		text,
		cel.Options{EnvType: new(environment.NewExpressions), DerivedAttribute: derived},
	)
	if got.Error != nil {
		k.compileError(at, text, got.Error)
		return 0
	}
	if got.MaxCost > resourcev1.CELSelectorExpressionMaxCost {
		k.forbidden(at, "too complex, exceeds cost limit")
		return 0
	}
	return got.MaxCost
}

func (k *validator) compileError(at *field.Path, text string, err *apiservercel.Error) {
	switch err.Type {
	case apiservercel.ErrorTypeRequired:
		k.required(at, err.Detail)
	case apiservercel.ErrorTypeInvalid:
		k.add(field.Invalid(at, text, err.Detail))
	default:
		k.add(field.InternalError(at, errors.New(err.Detail)))
	}
}
