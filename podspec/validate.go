package podspec

import (
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// maxObjectSize is the maximum size of a ConfigMap or Secret, in bytes.
const maxObjectSize = 1 << 20

// Validate returns every error of a pod with defaults, for a node that runs it. A valid pod may
// still have unsupported fields, see UnsupportedFields. An API server accepts a little more, see
// ValidateStored.
func Validate(pod *corev1.Pod) field.ErrorList {
	k := &validator{pod: pod, spec: &pod.Spec}
	k.metadata(&pod.ObjectMeta)
	k.appArmorAnnotations(field.NewPath("metadata", "annotations"))
	k.bandwidthAnnotations(field.NewPath("metadata", "annotations"))
	k.podSpec(field.NewPath("spec"))
	return k.errs
}

// ValidateConfigMap returns every error of a ConfigMap.
func ValidateConfigMap(cm *corev1.ConfigMap) field.ErrorList {
	k := &validator{}
	k.metadata(&cm.ObjectMeta)
	size := 0
	for _, key := range slices.Sorted(maps.Keys(cm.Data)) {
		path := field.NewPath("data").Key(key)
		k.each(path, key, utilvalidation.IsConfigMapKey(key))
		if _, twice := cm.BinaryData[key]; twice {
			k.invalid(path, key, "duplicate of key present in binaryData")
		}
		size += len(cm.Data[key])
	}
	for _, key := range slices.Sorted(maps.Keys(cm.BinaryData)) {
		k.each(field.NewPath("binaryData").Key(key), key, utilvalidation.IsConfigMapKey(key))
		size += len(cm.BinaryData[key])
	}
	if size > maxObjectSize {
		k.add(field.TooLong(field.NewPath("data"), "", maxObjectSize))
	}
	return k.errs
}

// ValidateSecret returns every error of a Secret with defaults. Errors do not contain its values.
func ValidateSecret(s *corev1.Secret) field.ErrorList {
	k := &validator{}
	k.metadata(&s.ObjectMeta)
	data := field.NewPath("data")
	size := 0
	for _, key := range slices.Sorted(maps.Keys(s.Data)) {
		k.each(data.Key(key), key, utilvalidation.IsConfigMapKey(key))
		size += len(s.Data[key])
	}
	if size > maxObjectSize {
		k.add(field.TooLong(data, "", maxObjectSize))
	}
	k.secretType(s, data)
	return k.errs
}

// metadata validates the metadata of any object. A namespace is required. Objects in files get one
// before.
func (k *validator) metadata(m *metav1.ObjectMeta) {
	k.errs = append(
		k.errs,
		validation.ValidateObjectMeta(m, true, validation.NameIsDNSSubdomain, field.NewPath("metadata"))...)
}

// validator collects errors.
type validator struct {
	pod  *corev1.Pod
	spec *corev1.PodSpec
	errs field.ErrorList
	// stored: validate for an API server, which stores what may become valid elsewhere or later,
	// instead of for a node that runs the pod now.
	stored bool
	// template: the defaults of the pod itself are not set yet.
	template bool
}

func (k *validator) add(err *field.Error) { k.errs = append(k.errs, err) }

func (k *validator) invalid(at *field.Path, value any, format string, args ...any) {
	k.add(field.Invalid(at, value, fmt.Sprintf(format, args...)))
}

func (k *validator) required(at *field.Path, why string)  { k.add(field.Required(at, why)) }
func (k *validator) forbidden(at *field.Path, why string) { k.add(field.Forbidden(at, why)) }
func (k *validator) duplicate(at *field.Path, value any)  { k.add(field.Duplicate(at, value)) }
func (k *validator) notFound(at *field.Path, value any)   { k.add(field.NotFound(at, value)) }

// each adds one error per message.
func (k *validator) each(at *field.Path, value any, complaints []string) {
	for _, c := range complaints {
		k.invalid(at, value, "%s", c)
	}
}

// name validates a required name.
func (k *validator) name(at *field.Path, value string, grammar func(string) []string) {
	if value == "" {
		k.required(at, "")
		return
	}
	k.each(at, value, grammar(value))
}

// between validates the range of a number.
func (k *validator) between(at *field.Path, value, low, high int64) {
	if value < low || value > high {
		k.invalid(at, value, "must be between %d and %d, inclusive", low, high)
	}
}

func (k *validator) notNegative(at *field.Path, value int64) {
	if value < 0 {
		k.invalid(at, value, "must be greater than or equal to 0")
	}
}

func (k *validator) positive(at *field.Path, value int64) {
	if value <= 0 {
		k.invalid(at, value, "must be greater than 0")
	}
}

// oneOf validates a required enum value.
func oneOf[T ~string](k *validator, at *field.Path, value T, words ...T) {
	if value == "" {
		k.required(at, "")
	} else if !slices.Contains(words, value) {
		k.add(field.NotSupported(at, value, words))
	}
}

// oneOfIfSet validates an optional enum value.
func oneOfIfSet[T ~string](k *validator, at *field.Path, value *T, words ...T) {
	if value != nil && !slices.Contains(words, *value) {
		k.add(field.NotSupported(at, *value, words))
	}
}

// exactlyOne verifies that exactly one of several alternatives is set.
func (k *validator) exactlyOne(at *field.Path, value any, what string, present ...bool) bool {
	n := 0
	for _, p := range present {
		if p {
			n++
		}
	}
	switch {
	case n == 0:
		k.required(at, "must specify one of: "+what)
	case n > 1:
		k.invalid(at, value, "may not specify more than one of: %s", what)
	}
	return n == 1
}
