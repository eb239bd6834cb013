package validation

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Root paths of all objects.
var (
	metadata = field.NewPath("metadata")
	spec     = field.NewPath("spec")
	status   = field.NewPath("status")
)

// validator collects errors.
type validator struct{ errs field.ErrorList }

func (k *validator) add(err *field.Error)        { k.errs = append(k.errs, err) }
func (k *validator) addAll(errs field.ErrorList) { k.errs = append(k.errs, errs...) }

func (k *validator) invalid(at *field.Path, value any, format string, args ...any) {
	k.add(field.Invalid(at, value, fmt.Sprintf(format, args...)))
}

func (k *validator) required(at *field.Path, detail string)  { k.add(field.Required(at, detail)) }
func (k *validator) forbidden(at *field.Path, detail string) { k.add(field.Forbidden(at, detail)) }

// invalidEach adds an error for each message.
func (k *validator) invalidEach(at *field.Path, value any, messages []string) {
	for _, c := range messages {
		k.invalid(at, value, "%s", c)
	}
}

// name validates a required name.
func (k *validator) name(at *field.Path, value string, validate func(string) []string) {
	if value == "" {
		k.required(at, "")
		return
	}
	k.invalidEach(at, value, validate(value))
}

// notNegative validates an optional number.
func notNegative[N int32 | int64](k *validator, at *field.Path, value *N) {
	if value != nil && *value < 0 {
		k.invalid(at, *value, "must be greater than or equal to 0")
	}
}

// positive validates an optional number.
func positive[N int32 | int64](k *validator, at *field.Path, value *N) {
	if value != nil && *value <= 0 {
		k.invalid(at, *value, "must be greater than 0")
	}
}

// oneOf validates a required enum value.
func oneOf[T ~string](k *validator, at *field.Path, value T, supported ...T) {
	if value == "" {
		k.required(at, "")
	} else if !slices.Contains(supported, value) {
		k.add(field.NotSupported(at, value, supported))
	}
}

// oneOfIfSet validates an optional enum value.
func oneOfIfSet[T ~string](k *validator, at *field.Path, value *T, supported ...T) {
	if value != nil && !slices.Contains(supported, *value) {
		k.add(field.NotSupported(at, *value, supported))
	}
}

// immutable validates that a field has not changed.
func (k *validator) immutable(at *field.Path, now, before any) {
	if !equality.Semantic.DeepEqual(now, before) {
		k.invalid(at, now, "field is immutable")
	}
}

// selector validates a label selector.
func (k *validator) selector(at *field.Path, s *metav1.LabelSelector) {
	k.addAll(metavalidation.ValidateLabelSelector(s, metavalidation.LabelSelectorValidationOptions{}, at))
}

// address validates an IP address without a zone.
func (k *validator) address(at *field.Path, value string) {
	if a, err := netip.ParseAddr(value); err != nil || a.Zone() != "" {
		k.invalid(at, value, "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)")
	}
}

// endpointAddress validates the IP address of an endpoint.
func (k *validator) endpointAddress(at *field.Path, value string) {
	a, err := netip.ParseAddr(value)
	switch {
	case err != nil || a.Zone() != "":
		k.address(at, value)
	case a.IsUnspecified():
		k.invalid(at, value, "may not be unspecified (0.0.0.0 or ::)")
	case a.IsLoopback():
		k.invalid(at, value, "may not be in the loopback range (127.0.0.0/8, ::1/128)")
	case a.IsLinkLocalUnicast():
		k.invalid(at, value, "may not be in the link-local range (169.254.0.0/16, fe80::/10)")
	case a.IsLinkLocalMulticast():
		k.invalid(at, value, "may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)")
	}
}

// network validates a CIDR.
func (k *validator) network(at *field.Path, value string) {
	if _, err := netip.ParsePrefix(value); err != nil {
		k.invalid(at, value, "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)")
	}
}

func (k *validator) port(at *field.Path, n int32) {
	k.invalidEach(at, n, validation.IsValidPortNum(int(n)))
}

// portNameOrNumber validates a port name or number.
func (k *validator) portNameOrNumber(at *field.Path, p intstr.IntOrString) {
	if p.Type == intstr.String {
		k.invalidEach(at, p.StrVal, validation.IsValidPortName(p.StrVal))
		return
	}
	k.port(at, p.IntVal)
}

// podsOrPercent validates a number or percentage of pods.
func (k *validator) podsOrPercent(at *field.Path, v *intstr.IntOrString) {
	switch {
	case v == nil:
	case v.Type == intstr.Int:
		if v.IntVal < 0 {
			k.invalid(at, v.IntVal, "must be greater than or equal to 0")
		}
	default:
		k.invalidEach(at, v.String(), validation.IsValidPercent(v.StrVal))
	}
}

// atMost100Percent validates that a percentage does not exceed 100.
func (k *validator) atMost100Percent(at *field.Path, v *intstr.IntOrString) {
	if n, ok := percent(v); ok && n > 100 {
		k.invalid(at, v, "must not be greater than 100%%")
	}
}

func percent(v *intstr.IntOrString) (int, bool) {
	if v == nil || v.Type != intstr.String {
		return 0, false
	}
	n, err := strconv.Atoi(strings.TrimSuffix(v.StrVal, "%"))
	return n, err == nil && strings.HasSuffix(v.StrVal, "%")
}

// isZero reports whether a number or percentage is 0.
func isZero(v *intstr.IntOrString) bool {
	if v == nil {
		return true
	}
	if n, ok := percent(v); ok {
		return n == 0
	}
	return v.Type == intstr.Int && v.IntVal == 0
}

// quantities validates a resource list without negative quantities.
func (k *validator) quantities(at *field.Path, list corev1.ResourceList) {
	for _, name := range slices.Sorted(maps.Keys(list)) {
		path, q := at.Key(string(name)), list[name]
		k.invalidEach(path, name, validation.IsQualifiedName(string(name)))
		if q.Sign() < 0 {
			k.invalid(path, q.String(), "must be greater than or equal to 0")
		}
	}
}

// setIfNil sets a nil pointer.
func setIfNil[T any](to **T, value T) {
	if *to == nil {
		*to = &value
	}
}

// setIfZero sets a zero value.
func setIfZero[T comparable](to *T, value T) {
	var zero T
	if *to == zero {
		*to = value
	}
}

// roundUpToMilli rounds quantities up to milli, the smallest stored unit.
func roundUpToMilli(list corev1.ResourceList) {
	for name, q := range list {
		q.RoundUp(resource.Milli)
		list[name] = q
	}
}
