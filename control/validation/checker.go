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

// The places where all objects begin.
var (
	metadata = field.NewPath("metadata")
	spec     = field.NewPath("spec")
	status   = field.NewPath("status")
)

// validator collects what is wrong.
type validator struct{ errs field.ErrorList }

func (k *validator) add(err *field.Error)        { k.errs = append(k.errs, err) }
func (k *validator) addAll(errs field.ErrorList) { k.errs = append(k.errs, errs...) }

func (k *validator) invalid(at *field.Path, value any, format string, args ...any) {
	k.add(field.Invalid(at, value, fmt.Sprintf(format, args...)))
}

func (k *validator) required(at *field.Path, why string)  { k.add(field.Required(at, why)) }
func (k *validator) forbidden(at *field.Path, why string) { k.add(field.Forbidden(at, why)) }

// invalidEach adds one error per complaint.
func (k *validator) invalidEach(at *field.Path, value any, complaints []string) {
	for _, c := range complaints {
		k.invalid(at, value, "%s", c)
	}
}

// name judges a required name by its grammar.
func (k *validator) name(at *field.Path, value string, grammar func(string) []string) {
	if value == "" {
		k.required(at, "")
		return
	}
	k.invalidEach(at, value, grammar(value))
}

// notNegative judges a number that may be absent.
func notNegative[N int32 | int64](k *validator, at *field.Path, value *N) {
	if value != nil && *value < 0 {
		k.invalid(at, *value, "must be greater than or equal to 0")
	}
}

// positive judges a number that may be absent.
func positive[N int32 | int64](k *validator, at *field.Path, value *N) {
	if value != nil && *value <= 0 {
		k.invalid(at, *value, "must be greater than 0")
	}
}

// oneOf judges a word that is required.
func oneOf[T ~string](k *validator, at *field.Path, value T, words ...T) {
	if value == "" {
		k.required(at, "")
	} else if !slices.Contains(words, value) {
		k.add(field.NotSupported(at, value, words))
	}
}

// oneOfIfSet judges a word that may be absent.
func oneOfIfSet[T ~string](k *validator, at *field.Path, value *T, words ...T) {
	if value != nil && !slices.Contains(words, *value) {
		k.add(field.NotSupported(at, *value, words))
	}
}

// immutable judges a field that stays as it is.
func (k *validator) immutable(at *field.Path, now, before any) {
	if !equality.Semantic.DeepEqual(now, before) {
		k.invalid(at, now, "field is immutable")
	}
}

// selector judges a selector.
func (k *validator) selector(at *field.Path, s *metav1.LabelSelector) {
	k.addAll(metavalidation.ValidateLabelSelector(s, metavalidation.LabelSelectorValidationOptions{}, at))
}

// address judges an IP address without a zone.
func (k *validator) address(at *field.Path, value string) {
	if a, err := netip.ParseAddr(value); err != nil || a.Zone() != "" {
		k.invalid(at, value, "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)")
	}
}

// reachable judges an address that others are to be sent to.
func (k *validator) reachable(at *field.Path, value string) {
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

// network judges a range of addresses.
func (k *validator) network(at *field.Path, value string) {
	if _, err := netip.ParsePrefix(value); err != nil {
		k.invalid(at, value, "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)")
	}
}

func (k *validator) port(at *field.Path, n int32) {
	k.invalidEach(at, n, validation.IsValidPortNum(int(n)))
}

// portNameOrNumber judges a port that may be given by its name.
func (k *validator) portNameOrNumber(at *field.Path, p intstr.IntOrString) {
	if p.Type == intstr.String {
		k.invalidEach(at, p.StrVal, validation.IsValidPortName(p.StrVal))
		return
	}
	k.port(at, p.IntVal)
}

// podsOrPercent judges a number of pods, or a part of them in per cent.
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

// atMost100Percent judges a share of which 100 per cent is all.
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

// isZero reports whether a share is 0, in either way of writing.
func isZero(v *intstr.IntOrString) bool {
	if v == nil {
		return true
	}
	if n, ok := percent(v); ok {
		return n == 0
	}
	return v.Type == intstr.Int && v.IntVal == 0
}

// quantities judges a list of amounts, none of them below 0.
func (k *validator) quantities(at *field.Path, list corev1.ResourceList) {
	for _, name := range slices.Sorted(maps.Keys(list)) {
		path, q := at.Key(string(name)), list[name]
		k.invalidEach(path, name, validation.IsQualifiedName(string(name)))
		if q.Sign() < 0 {
			k.invalid(path, q.String(), "must be greater than or equal to 0")
		}
	}
}

// setIfNil fills a pointer that is nil.
func setIfNil[T any](to **T, value T) {
	if *to == nil {
		*to = &value
	}
}

// setIfZero fills a value that is zero.
func setIfZero[T comparable](to *T, value T) {
	var zero T
	if *to == zero {
		*to = value
	}
}

// roundUpToMilli rounds amounts up to thousandths, the smallest part that is kept.
func roundUpToMilli(list corev1.ResourceList) {
	for name, q := range list {
		q.RoundUp(resource.Milli)
		list[name] = q
	}
}
