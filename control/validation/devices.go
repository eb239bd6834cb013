package validation

import (
	"encoding/json"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/validate/content"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"berth/internal/rules"
	"berth/podspec"
)

func devices(kind string) schema.GroupKind {
	return schema.GroupKind{Group: resourcev1.GroupName, Kind: kind}
}

var taintEffects = []resourcev1.DeviceTaintEffect{
	resourcev1.DeviceTaintEffectNoExecute,
	resourcev1.DeviceTaintEffectNoSchedule,
	resourcev1.DeviceTaintEffectNone,
}

// deviceRules are the rules of dynamic resource allocation. The spec of a claim is immutable and
// validated only on creation. Unchanged parts of mutable objects are not validated again where
// Kubernetes may tighten the rule (CEL, sizes).
func deviceRules(compilers Compilers) map[schema.GroupKind]rules.Rules {
	return map[schema.GroupKind]rules.Rules{
		devices("DeviceClass"): definition[*resourcev1.DeviceClass]{ClusterScoped: true,
			ValidateCreate: func(k *validator, c *resourcev1.DeviceClass) {
				k.deviceClass(c, &resourcev1.DeviceClass{})
			},
			ValidateUpdate: (*validator).deviceClass}.Rules(compiling(compilers)),
		devices("ResourceClaim"): definition[*resourcev1.ResourceClaim]{
			SetDefaults: defaultDeviceClaim,
			ValidateCreate: func(k *validator, c *resourcev1.ResourceClaim) {
				k.deviceClaim(spec.Child("devices"),
					&c.Spec.Devices)
			},
			ValidateUpdate: func(k *validator, c, old *resourcev1.ResourceClaim) {
				k.Immutable(spec, c.Spec, old.Spec)
			},
			ValidateStatus: (*validator).claimStatus}.Rules(compiling(compilers)),
		devices("ResourceClaimTemplate"): definition[*resourcev1.ResourceClaimTemplate]{
			SetDefaults: func(t *resourcev1.ResourceClaimTemplate) { defaultRequests(&t.Spec.Spec.Devices) },
			Validate: func(k *validator, t *resourcev1.ResourceClaimTemplate) {
				k.templateMetadata(spec.Child("metadata"), &t.Spec.ObjectMeta)
				k.deviceClaim(spec.Child("spec", "devices"), &t.Spec.Spec.Devices)
			},
			ValidateUpdate: func(k *validator, t, old *resourcev1.ResourceClaimTemplate) {
				k.Immutable(spec, t.Spec, old.Spec)
			}}.Rules(compiling(compilers)),
		devices("ResourceSlice"): definition[*resourcev1.ResourceSlice]{ClusterScoped: true,
			ValidateCreate: func(k *validator, s *resourcev1.ResourceSlice) {
				k.resourceSlice(s, &resourcev1.ResourceSlice{})
			},
			ValidateUpdate: func(k *validator, s, old *resourcev1.ResourceSlice) {
				k.Immutable(spec.Child("pool", "name"), s.Spec.Pool.Name, old.Spec.Pool.Name)
				k.Immutable(spec.Child("driver"), s.Spec.Driver, old.Spec.Driver)
				k.Immutable(spec.Child("nodeName"), s.Spec.NodeName, old.Spec.NodeName)
				k.resourceSlice(s, old)
			}}.Rules(compiling(compilers)),
		devices("DeviceTaintRule"): definition[*resourcev1.DeviceTaintRule]{ClusterScoped: true,
			ValidateCreate: func(k *validator, r *resourcev1.DeviceTaintRule) {
				k.taintRule(r, &resourcev1.DeviceTaintRule{})
			},
			ValidateUpdate: (*validator).taintRule,
			ValidateStatus: func(k *validator, r, _ *resourcev1.DeviceTaintRule) {
				k.conditions(status.Child("conditions"), r.Status.Conditions,
					resourcev1.DeviceTaintRuleStatusMaxConditions)
			}}.Rules(compiling(compilers)),
	}
}

func (k *validator) deviceClass(c, old *resourcev1.DeviceClass) {
	stored := equality.Semantic.DeepEqual(c.Spec.Selectors, old.Spec.Selectors)
	k.deviceSelectors(spec.Child("selectors"), c.Spec.Selectors, stored)
	stored = equality.Semantic.DeepEqual(c.Spec.Config, old.Spec.Config)
	if at := spec.Child("config"); k.atMost(at, len(c.Spec.Config), resourcev1.DeviceConfigMaxSize) {
		for i := range c.Spec.Config {
			k.deviceConfig(at.Index(i), &c.Spec.Config[i].DeviceConfiguration, stored)
		}
	}
	if n := c.Spec.ExtendedResourceName; n != nil && !podspec.IsExtended(corev1.ResourceName(*n)) {
		k.Invalid(spec.Child("extendedResourceName"), *n, "must be a valid extended resource name")
	}
}

// taintRule validates a DeviceTaintRule.
func (k *validator) taintRule(r, old *resourcev1.DeviceTaintRule) {
	if s := r.Spec.DeviceSelector; s != nil {
		at := spec.Child("deviceSelector")
		if s.Driver != nil {
			k.driver(at.Child("driver"), *s.Driver)
		}
		if s.Pool != nil {
			k.pool(at.Child("pool"), *s.Pool)
		}
		if s.Device != nil {
			k.label(at.Child("device"), *s.Device)
		}
	}
	k.deviceTaint(spec.Child("taint"), &r.Spec.Taint, old.Spec.Taint.Effect)
}

// deviceTaint validates a taint. was is the previous effect, which may be unknown to this version.
func (k *validator) deviceTaint(at *field.Path, t *resourcev1.DeviceTaint, oldEffect resourcev1.DeviceTaintEffect) {
	k.AddAll(metavalidation.ValidateLabelName(t.Key, at.Child("key")))
	k.InvalidEach(at.Child("value"), t.Value, validation.IsValidLabelValue(t.Value))
	if t.Effect == "" || t.Effect != oldEffect {
		rules.OneOf(k, at.Child("effect"), t.Effect, taintEffects...)
	}
}

func (k *validator) deviceTolerations(at *field.Path, list []resourcev1.DeviceToleration) {
	if !k.atMost(at, len(list), resourcev1.DeviceTolerationsMaxLength) {
		return
	}
	for i, t := range list {
		at := at.Index(i)
		if t.Key != "" {
			k.AddAll(metavalidation.ValidateLabelName(t.Key, at.Child("key")))
		} else if t.Operator == resourcev1.DeviceTolerationOpEqual {
			k.Invalid(at.Child("operator"), t.Operator,
				"operator must be Exists when `key` is empty, which means \"match all values and all keys\"")
		}
		rules.OneOf(k, at.Child("operator"), t.Operator, resourcev1.DeviceTolerationOpEqual,
			resourcev1.DeviceTolerationOpExists)
		switch t.Operator {
		case resourcev1.DeviceTolerationOpExists:
			if t.Value != "" {
				k.Invalid(at.Child("value"), t.Value, "must be empty for operator `Exists`")
			}
		case resourcev1.DeviceTolerationOpEqual:
			k.InvalidEach(at.Child("value"), t.Value, validation.IsValidLabelValue(t.Value))
		}
		if t.Effect != "" {
			rules.OneOf(k, at.Child("effect"), t.Effect, taintEffects...)
		}
	}
}

// deviceConfig validates driver parameters. stored means that they are unchanged stored parameters.
func (k *validator) deviceConfig(at *field.Path, c *resourcev1.DeviceConfiguration, stored bool) {
	at = at.Child("opaque")
	if c.Opaque == nil {
		k.Required(at, "")
		return
	}
	k.driver(at.Child("driver"), c.Opaque.Driver)
	longest := resourcev1.OpaqueParametersMaxLength
	if stored {
		longest = -1
	}
	k.jsonObject(at.Child("parameters"), c.Opaque.Parameters, longest)
}

// jsonObject validates an opaque JSON object. A negative length means no limit.
func (k *validator) jsonObject(at *field.Path, raw runtime.RawExtension, longest int) {
	if len(raw.Raw) == 0 {
		k.Required(at, "")
		return
	}
	if longest >= 0 && len(raw.Raw) > longest {
		k.Add(field.TooLong(at, "", longest))
		return
	}
	var v any
	err := json.Unmarshal(raw.Raw, &v)
	_, isObject := v.(map[string]any)
	switch {
	case err != nil:
		k.Invalid(at, "<value omitted>", "error parsing data as JSON: %v", err)
	case v == nil:
		k.Required(at, "")
	case !isObject:
		k.Invalid(at, "<value omitted>", "must be a valid JSON object")
	}
}

// templateMetadata validates the metadata of a template.
func (k *validator) templateMetadata(at *field.Path, m *metav1.ObjectMeta) {
	k.AddAll(metavalidation.ValidateLabels(m.Labels, at.Child("labels")))
	k.AddAll(apivalidation.ValidateAnnotations(m.Annotations, at.Child("annotations")))
	rest := m.DeepCopy()
	rest.Labels, rest.Annotations = nil, nil
	for _, name := range podspec.Differences("", metav1.ObjectMeta{}, *rest) {
		k.Forbidden(at.Child(strings.TrimPrefix(name, ".")), "cannot be set for an object that is made from a template")
	}
}

func (k *validator) conditions(at *field.Path, list []metav1.Condition, most int) {
	k.AddAll(metavalidation.ValidateConditions(list, at))
	k.atMost(at, len(list), most)
}

// atMost reports whether a list is within its limit, so that its items can be validated.
func (k *validator) atMost(at *field.Path, n, most int) bool {
	if n > most {
		k.Add(field.TooMany(at, n, most))
	}
	return n <= most
}

// distinct adds an error for each duplicate key.
func distinct[T any, K comparable](k *validator, at *field.Path, list []T, key func(T) K) {
	seen := map[K]bool{}
	for i, item := range list {
		if one := key(item); seen[one] {
			k.Add(field.Duplicate(at.Index(i), one))
		} else {
			seen[one] = true
		}
	}
}

func identity[T any](v T) T { return v }

// label validates a required DNS label.
func (k *validator) label(at *field.Path, name string) {
	k.InvalidEach(at, name, validation.IsDNS1123Label(name))
}

// driver validates a driver name, which has the syntax of a CSI driver name.
func (k *validator) driver(at *field.Path, name string) {
	if len(name) > resourcev1.DriverNameMaxLength {
		k.Add(field.TooLong(at, "", resourcev1.DriverNameMaxLength))
	}
	if name == "" {
		k.Required(at, "")
		return
	}
	k.InvalidEach(at, name, validation.IsDNS1123Subdomain(strings.ToLower(name)))
}

// pool validates a pool name: DNS subdomains separated by slashes.
func (k *validator) pool(at *field.Path, name string) {
	if name == "" {
		k.Required(at, "")
		return
	}
	if len(name) > resourcev1.PoolNameMaxLength {
		k.Add(field.TooLong(at, "", resourcev1.PoolNameMaxLength))
	}
	for part := range strings.SplitSeq(name, "/") {
		k.InvalidEach(at, part, validation.IsDNS1123Subdomain(part))
	}
}

// qualified validates the name of an attribute or capacity: an identifier with an optional domain.
func (k *validator) qualified(at *field.Path, name string) {
	domain, id, hasDomain := strings.Cut(name, "/")
	switch {
	case strings.Contains(id, "/"):
		k.Invalid(at, name, "must not contain more than one slash")
		return
	case !hasDomain:
		id = name
	case domain == "":
		k.Invalid(at, "", "the domain must not be empty")
	default:
		k.driver(at, domain)
	}
	if hasDomain && id == "" {
		k.Invalid(at, "", "the name must not be empty")
		return
	}
	if len(id) > resourcev1.DeviceMaxIDLength {
		k.Add(field.TooLong(at, "", resourcev1.DeviceMaxIDLength))
	}
	k.InvalidEach(at, id, content.IsCIdentifier(id))
}

// fullyQualified validates a name with a domain.
func (k *validator) fullyQualified(at *field.Path, name resourcev1.FullyQualifiedName) {
	k.qualified(at, string(name))
	if !strings.Contains(string(name), "/") {
		k.Invalid(at, name, "a fully qualified name must be a domain and a name separated by a slash")
	}
}

// shareID validates the ID of a share of a device.
func (k *validator) shareID(at *field.Path, id string) {
	hex := func(r rune) bool { return strings.ContainsRune("0123456789abcdef", r) }
	parts := strings.Split(id, "-")
	lengths := []int{8, 4, 4, 4, 12}
	if !slices.EqualFunc(parts, lengths, func(p string, n int) bool {
		return len(p) == n && strings.IndexFunc(p, func(r rune) bool { return !hex(r) }) < 0
	}) {
		k.Invalid(
			at,
			id,
			"uid must be in RFC 4122 normalized form, `xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx` with lowercase "+
				"hexadecimal "+
				"characters",
		)
	}
}
