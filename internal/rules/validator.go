package rules

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Metadata is the path of the metadata of any object.
func Metadata() *field.Path { return field.NewPath("metadata") }

// Spec is the path of the specification of any object.
func Spec() *field.Path { return field.NewPath("spec") }

// Status is the path of the status of any object.
func Status() *field.Path { return field.NewPath("status") }

// Collector is a pointer to a Validator or to a type that embeds one.
type Collector interface {
	Add(err *field.Error)
	AddAll(errs field.ErrorList)
	Invalid(at *field.Path, value any, format string, args ...any)
	Required(at *field.Path, detail string)
	Errors() field.ErrorList
}

// Validator collects errors. The zero value has none.
type Validator struct {
	errs field.ErrorList
}

// Add adds an error.
func (k *Validator) Add(err *field.Error) { k.errs = append(k.errs, err) }

// AddAll adds errors.
func (k *Validator) AddAll(errs field.ErrorList) { k.errs = append(k.errs, errs...) }

// Errors returns all errors.
func (k *Validator) Errors() field.ErrorList { return k.errs }

// Invalid adds an error about an invalid value.
func (k *Validator) Invalid(at *field.Path, value any, format string, args ...any) {
	k.Add(field.Invalid(at, value, fmt.Sprintf(format, args...)))
}

// Required adds an error about a missing value.
func (k *Validator) Required(at *field.Path, detail string) { k.Add(field.Required(at, detail)) }

// Forbidden adds an error about a field that must not be set.
func (k *Validator) Forbidden(at *field.Path, detail string) { k.Add(field.Forbidden(at, detail)) }

// InvalidEach adds an error for each message.
func (k *Validator) InvalidEach(at *field.Path, value any, messages []string) {
	for _, c := range messages {
		k.Invalid(at, value, "%s", c)
	}
}

// Name validates a required name.
func (k *Validator) Name(at *field.Path, value string, validate func(string) []string) {
	if value == "" {
		k.Required(at, "")
		return
	}
	k.InvalidEach(at, value, validate(value))
}

// Finalizer validates the name of a finalizer: qualified, or one of Kubernetes.
func Finalizer(at *field.Path, name string) field.ErrorList {
	switch name {
	case string(corev1.FinalizerKubernetes), metav1.FinalizerOrphanDependents, metav1.FinalizerDeleteDependents:
		return nil
	}
	if strings.Contains(name, "/") {
		return nil
	}
	return field.ErrorList{field.Invalid(at, name,
		"name is neither a standard finalizer name nor is it fully qualified")}
}

// NotNegative validates an optional number.
func NotNegative[N int32 | int64](k Collector, at *field.Path, value *N) {
	if value != nil && *value < 0 {
		k.Invalid(at, *value, "must be greater than or equal to 0")
	}
}

// Positive validates an optional number.
func Positive[N int32 | int64](k Collector, at *field.Path, value *N) {
	if value != nil && *value <= 0 {
		k.Invalid(at, *value, "must be greater than 0")
	}
}

// OneOf validates a required enum value.
func OneOf[T ~string](k Collector, at *field.Path, value T, supported ...T) {
	if value == "" {
		k.Required(at, "")
	} else if !slices.Contains(supported, value) {
		k.Add(field.NotSupported(at, value, supported))
	}
}

// OneOfIfSet validates an optional enum value.
func OneOfIfSet[T ~string](k Collector, at *field.Path, value *T, supported ...T) {
	if value != nil && !slices.Contains(supported, *value) {
		k.Add(field.NotSupported(at, *value, supported))
	}
}

// Counts validates numbers of the status, by field.
func (k *Validator) Counts(of map[string]int32) {
	for _, name := range slices.Sorted(maps.Keys(of)) {
		NotNegative(k, Status().Child(name), new(of[name]))
	}
}

// NotMoreThan validates a number of the status against another number of it.
func (k *Validator) NotMoreThan(name string, n int32, other string, most int32) {
	if n > most {
		k.Invalid(Status().Child(name), n, "cannot be greater than %s", other)
	}
}

// Immutable validates that a field has not changed.
func (k *Validator) Immutable(at *field.Path, now, before any) {
	if !equality.Semantic.DeepEqual(now, before) {
		k.Invalid(at, now, "field is immutable")
	}
}

// Selector validates a label selector.
func (k *Validator) Selector(at *field.Path, s *metav1.LabelSelector) {
	k.AddAll(metavalidation.ValidateLabelSelector(s, metavalidation.LabelSelectorValidationOptions{}, at))
}

// PodsOrPercent validates a number or percentage of pods.
func (k *Validator) PodsOrPercent(at *field.Path, v *intstr.IntOrString) {
	switch {
	case v == nil:
	case v.Type == intstr.Int:
		if v.IntVal < 0 {
			k.Invalid(at, v.IntVal, "must be greater than or equal to 0")
		}
	default:
		k.InvalidEach(at, v.String(), validation.IsValidPercent(v.StrVal))
	}
}

// AtMost100Percent validates that a percentage does not exceed 100.
func (k *Validator) AtMost100Percent(at *field.Path, v *intstr.IntOrString) {
	if n, ok := percent(v); ok && n > 100 {
		k.Invalid(at, v, "must not be greater than 100%%")
	}
}

func percent(v *intstr.IntOrString) (int, bool) {
	if v == nil || v.Type != intstr.String || len(validation.IsValidPercent(v.StrVal)) > 0 {
		return 0, false
	}
	n, _ := strconv.Atoi(strings.TrimSuffix(v.StrVal, "%")) // the largest number if it is too large
	return n, true
}

// IsZero reports whether a number or percentage is 0, or neither a number nor a percentage.
func IsZero(v *intstr.IntOrString) bool {
	if v == nil {
		return true
	}
	if n, ok := percent(v); ok {
		return n == 0
	}
	return v.IntValue() == 0
}

// SetIfNil sets a nil pointer.
func SetIfNil[T any](to **T, value T) {
	if *to == nil {
		*to = &value
	}
}

// SetIfZero sets a zero value.
func SetIfZero[T comparable](to *T, value T) {
	var zero T
	if *to == zero {
		*to = value
	}
}
