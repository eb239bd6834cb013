package validation

import (
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"berth/internal/rules"
)

// RulesFor returns the rules of a kind. It returns false if the kind is not one of Kinds.
func RulesFor(kind schema.GroupKind) (rules.Rules, bool) {
	switch kind.Group {
	case appsv1.GroupName:
		return appsRules(kind.Kind)
	case batchv1.GroupName:
		return batchRules(kind.Kind)
	}
	return rules.Rules{}, false
}

// Kinds returns the kinds that have rules.
func Kinds() (kinds []schema.GroupKind) {
	for _, kind := range []string{"ControllerRevision", "DaemonSet", "Deployment", "ReplicaSet", "StatefulSet"} {
		kinds = append(kinds, schema.GroupKind{Group: appsv1.GroupName, Kind: kind})
	}
	for _, kind := range []string{"CronJob", "Job"} {
		kinds = append(kinds, schema.GroupKind{Group: batchv1.GroupName, Kind: kind})
	}
	return kinds
}

// Root paths.
func metadata() *field.Path { return rules.Metadata() }
func spec() *field.Path     { return rules.Spec() }

// definition defines the rules of one type.
type definition[T rules.Object] = rules.Definition[T, *validator]

// validator collects errors.
type validator struct{ rules.Validator }

func newValidator() *validator { return &validator{} }
