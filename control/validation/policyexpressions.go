package validation

import (
	"slices"
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// ExpressionKind says what an expression of an admission policy or webhook returns.
type ExpressionKind int

// The kinds of expressions. A MatchCondition returns a boolean as a Condition does, and cannot use variables.
const (
	MatchCondition ExpressionKind = iota
	Condition
	Message
	AuditAnnotation
	Variable
	ApplyConfiguration
	JSONPatch
)

// PolicyExpression is a CEL expression of an admission policy or webhook.
type PolicyExpression struct {
	Kind ExpressionKind
	Name string // of a variable
	Text string
	// Params declares the variable "params".
	Params bool
	// Stored is true if the stored object has the expression. It may use what later versions of the CEL
	// environment have.
	Stored bool
}

// PolicyCompiler returns a function that compiles the expressions of one object. With variables, each variable is
// declared for the expressions after it. Of an error, type and detail are set.
type PolicyCompiler func(variables bool) func(PolicyExpression) *field.Error

// Limits of admission policies and webhooks.
const (
	maxMatchConditions            = 64
	maxAuditAnnotations           = 20
	maxAuditAnnotationValueLength = 5 * 1024
	reservedAdmissionConfigSuffix = ".static.k8s.io"
	celReserved                   = "true false null in as break const continue else for function if import let loop " +
		"package namespace return var void while"
)

// expressions compiles the expressions of one object.
type expressions struct {
	*validator

	compile func(PolicyExpression) *field.Error
	params  bool
	stored  sets.Set[string] // texts of the stored object
}

// check compiles an expression that must not be empty.
func (e *expressions) check(at *field.Path, kind ExpressionKind, text string) {
	e.named(at, kind, "", text)
}

// named is check for a variable.
func (e *expressions) named(at *field.Path, kind ExpressionKind, name, text string) {
	if strings.TrimSpace(text) == "" {
		e.Required(at, "")
		return
	}
	problem := e.compile(PolicyExpression{Kind: kind, Name: name, Text: text, Params: e.params,
		Stored: e.stored.Has(text)})
	if problem != nil {
		e.expressionProblem(at, text, problem)
	}
}

// matchConditions validates match conditions.
func (e *expressions) matchConditions(at *field.Path, list []admissionv1.MatchCondition) {
	e.atMost(at, len(list), maxMatchConditions)
	names := map[string]bool{}
	for i, c := range list {
		at := at.Index(i)
		e.check(at.Child("expression"), MatchCondition, c.Expression)
		e.Name(at.Child("name"), c.Name, validation.IsQualifiedName)
		e.unique(at.Child("name"), names, c.Name)
	}
}

// variables validates variables.
func (e *expressions) variables(at *field.Path, list []admissionv1.Variable) {
	for i, v := range list {
		at := at.Index(i)
		switch {
		case strings.TrimSpace(v.Name) == "":
			e.Required(at.Child("name"), "name is not specified")
		case len(validation.IsCIdentifier(v.Name)) > 0 || slices.Contains(strings.Fields(celReserved), v.Name):
			e.Invalid(at.Child("name"), v.Name, "name is not a valid CEL identifier")
		}
		e.named(at.Child("expression"), Variable, v.Name, v.Expression)
	}
}

// unique adds an error for a value that was seen before. An empty value is another error.
func (k *validator) unique(at *field.Path, seen map[string]bool, value string) {
	if value != "" && seen[value] {
		k.Add(field.Duplicate(at, value))
	}
	seen[value] = true
}

// conditionTexts returns the expressions of match conditions.
func conditionTexts(list []admissionv1.MatchCondition) (out []string) {
	for _, c := range list {
		out = append(out, c.Expression)
	}
	return out
}
