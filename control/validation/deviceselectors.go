package validation

import (
	"errors"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// ExpressionCompiler compiles a CEL expression about a device and returns its estimated cost. derived selects the
// expressions of derived attributes. The result depends on its arguments only. Package deviceselector has the one that
// the API server uses. The node agent validates no devices and does not link it.
type ExpressionCompiler func(text string, derived bool) (cost uint64, problem *field.Error)

// deviceSelectors validates device selectors. stored means that they are unchanged stored
// selectors.
func (k *validator) deviceSelectors(at *field.Path, list []resourcev1.DeviceSelector, stored bool) {
	if !k.atMost(at, len(list), resourcev1.DeviceSelectorsMaxSize) {
		return
	}
	for i, s := range list {
		at := at.Index(i).Child("cel")
		if s.CEL == nil {
			k.Required(at, "")
		} else if !stored {
			k.expression(at.Child("expression"), s.CEL.Expression, false)
		}
	}
}

// expression compiles a CEL expression about a device and returns its estimated cost.
func (k *validator) expression(at *field.Path, text string, derived bool) (cost uint64) {
	if len(text) > resourcev1.CELSelectorExpressionMaxLength {
		k.Add(field.TooLong(at, "", resourcev1.CELSelectorExpressionMaxLength))
		return 0
	}
	cost, problem := k.compilers.Devices(text, derived)
	if problem != nil {
		k.expressionProblem(at, text, problem)
		return 0
	}
	if cost > resourcev1.CELSelectorExpressionMaxCost {
		k.Forbidden(at, "too complex, exceeds cost limit")
		return 0
	}
	return cost
}

// expressionProblem adds the error of a compiler, which sets type and detail.
func (k *validator) expressionProblem(at *field.Path, text string, problem *field.Error) {
	switch problem.Type {
	case field.ErrorTypeRequired:
		k.Required(at, problem.Detail)
	case field.ErrorTypeInvalid:
		k.Add(field.Invalid(at, text, problem.Detail))
	default:
		k.Add(field.InternalError(at, errors.New(problem.Detail)))
	}
}
