package validation

import (
	"maps"
	"slices"
	"strings"

	"github.com/blang/semver/v4"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"berth/internal/rules"
	"berth/podspec"
)

// resourceSlice validates a slice. Unchanged parts of old are validated with relaxed rules.
func (k *validator) resourceSlice(s, old *resourcev1.ResourceSlice) {
	k.driver(spec.Child("driver"), s.Spec.Driver)
	at := spec.Child("pool")
	k.pool(at.Child("name"), s.Spec.Pool.Name)
	if n := s.Spec.Pool.ResourceSliceCount; n <= 0 {
		k.Invalid(at.Child("resourceSliceCount"), n, "must be greater than zero")
	}
	if n := s.Spec.Pool.Generation; n < 0 {
		k.Invalid(at.Child("generation"), n, "must be greater than or equal to zero")
	}
	k.sliceNodes(&s.Spec)
	if s.Spec.SharedCounters != nil && s.Spec.Devices != nil {
		k.Invalid(spec, "", "only one of `sharedCounters` or `devices` is allowed")
	}
	before := map[string]*resourcev1.Device{}
	for i := range old.Spec.Devices {
		before[old.Spec.Devices[i].Name] = &old.Spec.Devices[i]
	}
	if at := spec.Child("devices"); k.atMost(at, len(s.Spec.Devices), maxDevices(s.Spec.Devices)) {
		for i := range s.Spec.Devices {
			oldDevice := before[s.Spec.Devices[i].Name]
			if oldDevice == nil {
				oldDevice = &resourcev1.Device{}
			}
			k.device(at.Index(i), &s.Spec.Devices[i], oldDevice, isTrue(s.Spec.PerDeviceNodeSelection))
		}
		distinct(k, at, s.Spec.Devices, func(d resourcev1.Device) string { return d.Name })
	}
	if at := spec.Child("sharedCounters"); k.atMost(
		at,
		len(s.Spec.SharedCounters),
		resourcev1.ResourceSliceMaxCounterSets,
	) {
		for i, c := range s.Spec.SharedCounters {
			k.Name(at.Index(i).Child("name"), c.Name, validation.IsDNS1123Label)
			k.counters(at.Index(i).Child("counters"), c.Counters, resourcev1.ResourceSliceMaxCountersPerCounterSet)
		}
		distinct(k, at, s.Spec.SharedCounters, func(c resourcev1.CounterSet) string { return c.Name })
	}
}

func isTrue(p *bool) bool { return p != nil && *p }

// maxDevices returns the maximum number of devices of a slice. It is lower if devices have taints,
// counters or list attributes.
func maxDevices(list []resourcev1.Device) int {
	for _, d := range list {
		if len(d.Taints) > 0 || len(d.ConsumesCounters) > 0 {
			return resourcev1.ResourceSliceMaxDevicesWithAdvancedFeatures
		}
		for _, a := range d.Attributes {
			if a.BoolValues != nil || a.IntValues != nil || a.StringValues != nil || a.VersionValues != nil {
				return resourcev1.ResourceSliceMaxDevicesWithAdvancedFeatures
			}
		}
	}
	return resourcev1.ResourceSliceMaxDevices
}

// nodeSelection selects the nodes of a slice or device.
type nodeSelection struct {
	name     *string
	selector *corev1.NodeSelector
	all      *bool
}

// nodeSelection validates a node selection and returns the fields that are set.
func (k *validator) nodeSelection(at *field.Path, w nodeSelection) (fields []string) {
	if w.name != nil {
		if *w.name == "" {
			k.Invalid(at.Child("nodeName"), "", "must be either unset or set to a non-empty string")
		} else {
			fields = append(fields, "`nodeName`")
			k.InvalidEach(at.Child("nodeName"), *w.name, validation.IsDNS1123Subdomain(*w.name))
		}
	}
	if w.selector != nil {
		fields = append(fields, "`nodeSelector`")
		k.AddAll(podspec.ValidateNodeSelector(at.Child("nodeSelector"), w.selector))
		if terms := w.selector.NodeSelectorTerms; len(terms) > 1 {
			k.Invalid(at.Child("nodeSelector", "nodeSelectorTerms"), terms, "must have exactly one node selector term")
		}
	}
	return append(fields, k.onlyTrue(at, "allNodes", w.all)...)
}

func (k *validator) onlyTrue(at *field.Path, name string, value *bool) []string {
	if value == nil {
		return nil
	}
	if !*value {
		k.Invalid(at.Child(name), false, "must be either unset or set to true")
		return nil
	}
	return []string{"`" + name + "`"}
}

func (k *validator) sliceNodes(s *resourcev1.ResourceSliceSpec) {
	const one = "exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required"
	fields := k.nodeSelection(spec, nodeSelection{s.NodeName, s.NodeSelector, s.AllNodes})
	fields = append(fields, k.onlyTrue(spec, "perDeviceNodeSelection", s.PerDeviceNodeSelection)...)
	switch {
	case len(fields) == 0:
		k.Required(spec, one)
	case len(fields) > 1:
		k.Invalid(spec, "{"+strings.Join(fields, ", ")+"}", "%s", one+", but multiple fields are set")
	}
}

// deviceNodes validates the node selection of a device, which requires perDeviceNodeSelection.
func (k *validator) deviceNodes(at *field.Path, d *resourcev1.Device, each bool) {
	const one = "exactly one of `nodeName`, `nodeSelector`, or `allNodes` is required when " +
		"`perDeviceNodeSelection` is set to true in the ResourceSlice spec"
	if !each {
		if d.NodeName != nil || d.NodeSelector != nil || d.AllNodes != nil {
			k.Add(
				field.Invalid(
					at,
					nil,
					"`nodeName`, `nodeSelector` and `allNodes` can only be set if `perDeviceNodeSelection` is set "+
						"to true in "+
						"the ResourceSlice spec",
				),
			)
		}
		return
	}
	switch fields := k.nodeSelection(at, nodeSelection{d.NodeName, d.NodeSelector, d.AllNodes}); {
	case len(fields) == 0:
		k.Required(at, one)
	case len(fields) > 1:
		k.Invalid(at, "{"+strings.Join(fields, ", ")+"}", one)
	}
}

func (k *validator) device(at *field.Path, d, old *resourcev1.Device, eachNode bool) {
	k.label(at.Child("name"), d.Name)
	if n := len(d.Attributes) + len(d.Capacity); n > resourcev1.ResourceSliceMaxAttributesAndCapacitiesPerDevice {
		k.Invalid(
			at,
			n,
			"the total number of attributes and capacities must not exceed %d",
			resourcev1.ResourceSliceMaxAttributesAndCapacitiesPerDevice,
		)
	}
	values := 0
	for _, name := range slices.Sorted(maps.Keys(d.Attributes)) {
		k.qualified(at.Child("attributes"), string(name))
		values += k.attribute(at.Child("attributes").Key(string(name)), d.Attributes[name])
	}
	if values > resourcev1.ResourceSliceMaxAttributeValuesPerDevice {
		k.Invalid(
			at,
			values,
			"the total number of attribute values must not exceed %d",
			resourcev1.ResourceSliceMaxAttributeValuesPerDevice,
		)
	}
	if !equality.Semantic.DeepEqual(d.Capacity, old.Capacity) {
		for _, name := range slices.Sorted(maps.Keys(d.Capacity)) {
			k.qualified(at.Child("capacity"), string(name))
			k.capacity(at.Child("capacity").Key(string(name)), d.Capacity[name], isTrue(d.AllowMultipleAllocations))
		}
	}
	if at := at.Child("taints"); !equality.Semantic.DeepEqual(d.Taints, old.Taints) &&
		k.atMost(at, len(d.Taints), resourcev1.DeviceTaintsMaxLength) {
		for i := range d.Taints {
			k.deviceTaint(at.Index(i), &d.Taints[i], "")
		}
	}
	k.consumption(at.Child("consumesCounters"), d.ConsumesCounters)
	k.deviceNodes(at, d, eachNode)
	k.bindingConditions(at, d.BindingConditions, d.BindingFailureConditions)
	for _, name := range slices.Sorted(maps.Keys(d.NodeAllocatableResources)) {
		k.nodeAllocatable(
			at.Child("nodeAllocatableResources").Key(string(name)),
			name,
			d.NodeAllocatableResources[name],
			d.Capacity,
		)
	}
}

// attribute validates an attribute and returns the number of its values.
func (k *validator) attribute(at *field.Path, a resourcev1.DeviceAttribute) (values int) {
	fields := 0
	one := func(set bool) {
		if set {
			fields, values = fields+1, values+1
		}
	}
	some := func(name string, set bool, n int) {
		if set {
			fields, values = fields+1, values+n
			if n == 0 {
				k.Invalid(at.Child(name), "[]", "must not be empty if specified")
			}
		}
	}
	one(a.BoolValue != nil)
	one(a.IntValue != nil)
	if one(a.StringValue != nil); a.StringValue != nil {
		k.short(at.Child("string"), *a.StringValue)
	}
	if one(a.VersionValue != nil); a.VersionValue != nil {
		k.version(at.Child("version"), *a.VersionValue)
	}
	some("bools", a.BoolValues != nil, len(a.BoolValues))
	some("ints", a.IntValues != nil, len(a.IntValues))
	some("strings", a.StringValues != nil, len(a.StringValues))
	for i, v := range a.StringValues {
		k.short(at.Child("strings").Index(i), v)
	}
	some("versions", a.VersionValues != nil, len(a.VersionValues))
	for i, v := range a.VersionValues {
		k.version(at.Child("versions").Index(i), v)
	}
	if fields != 1 {
		k.Invalid(at, "", "exactly one value must be specified")
	}
	return values
}

func (k *validator) short(at *field.Path, value string) {
	if len(value) > resourcev1.DeviceAttributeMaxValueLength {
		k.Add(field.TooLong(at, "", resourcev1.DeviceAttributeMaxValueLength))
	}
}

func (k *validator) version(at *field.Path, value string) {
	if _, err := semver.Parse(value); err != nil {
		k.Invalid(at, value, "must be a string compatible with semver.org spec 2.0.0")
	}
	k.short(at, value)
}

func (k *validator) counters(at *field.Path, list map[string]resourcev1.Counter, most int) {
	if len(list) == 0 {
		k.Required(at, "")
	}
	if k.atMost(at, len(list), most) {
		for _, name := range slices.Sorted(maps.Keys(list)) {
			k.label(at, name)
		}
	}
}

func (k *validator) consumption(at *field.Path, list []resourcev1.DeviceCounterConsumption) {
	if !k.atMost(at, len(list), resourcev1.ResourceSliceMaxDeviceCounterConsumptionsPerDevice) {
		return
	}
	for i, c := range list {
		at := at.Index(i)
		k.Name(at.Child("counterSet"), c.CounterSet, validation.IsDNS1123Label)
		k.counters(at.Child("counters"), c.Counters, resourcev1.ResourceSliceMaxCountersPerDeviceCounterConsumption)
		if at := at.Child("compatibilityGroups"); k.atMost(
			at,
			len(c.CompatibilityGroups),
			resourcev1.DeviceCompatibilityGroupsMaxSize,
		) {
			for j, g := range c.CompatibilityGroups {
				k.label(at.Index(j), g)
			}
			distinct(k, at, c.CompatibilityGroups, identity)
		}
	}
	distinct(k, at, list, func(c resourcev1.DeviceCounterConsumption) string { return c.CounterSet })
}

func (k *validator) skippedOperations(at *field.Path, list []resourcev1.SkipNodeOperation) {
	const prepare, unprepare, all = resourcev1.SkipNodeOperationNodePrepareResources,
		resourcev1.SkipNodeOperationNodeUnprepareResources, resourcev1.SkipNodeOperationAll
	for i, o := range list {
		rules.OneOf(k, at.Index(i), o, all, prepare, unprepare)
	}
	distinct(k, at, list, identity)
	if slices.Contains(list, prepare) && !slices.Contains(list, unprepare) && !slices.Contains(list, all) {
		k.Invalid(at, list, "NodePrepareResources cannot be skipped unless NodeUnprepareResources is also skipped")
	}
}

// nodeAllocatable validates how a device maps to a node-allocatable resource.
func (k *validator) nodeAllocatable(
	at *field.Path,
	name corev1.ResourceName,
	r resourcev1.NodeAllocatableResource,
	has map[resourcev1.QualifiedName]resourcev1.DeviceCapacity,
) {
	switch name {
	case corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage:
	default:
		if !strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix) {
			k.Invalid(at, name, "must be a node allocatable resource name")
		}
	}
	if r.Mapping == nil && r.Overhead == nil {
		k.Required(at, "at least one of mapping or overhead must be set")
	}
	if m := r.Mapping; m != nil {
		k.nodeMapping(at.Child("mapping"), m, has)
	}
	if o := r.Overhead; o != nil {
		at := at.Child("overhead")
		if o.PerPod == nil && o.PerContainer == nil {
			k.Invalid(at, "", "at least one of perPod or perContainer must be set")
		}
		k.atLeast(at.Child("perPod"), o.PerPod, 0, "must be non-negative")
		k.atLeast(at.Child("perContainer"), o.PerContainer, 0, "must be non-negative")
	}
}

func (k *validator) nodeMapping(
	at *field.Path,
	m *resourcev1.NodeAllocatableMapping,
	has map[resourcev1.QualifiedName]resourcev1.DeviceCapacity,
) {
	switch {
	case m.CapacityKey == nil && m.DeviceMultiplier == nil:
		k.Invalid(at, "", "must specify one of: `capacityKey`, `deviceMultiplier`")
	case m.CapacityKey != nil && m.DeviceMultiplier != nil:
		k.Invalid(at, "", "must specify exactly one of: `capacityKey`, `deviceMultiplier`")
	}
	if key := m.CapacityKey; key != nil {
		if _, ok := has[*key]; *key == "" {
			k.Invalid(at.Child("capacityKey"), "", "capacityKey must not be an empty string")
		} else if !ok {
			k.Add(field.NotFound(at.Child("capacityKey"), *key))
		}
		if m.CapacityMultiplier == nil {
			k.Required(at.Child("capacityMultiplier"), "capacityMultiplier is required when capacityKey is set")
		}
	} else if m.CapacityMultiplier != nil {
		k.Required(at.Child("capacityKey"), "capacityKey is required when capacityMultiplier is set")
	}
	k.atLeast(at.Child("capacityMultiplier"), m.CapacityMultiplier, 1, "must be positive")
	k.atLeast(at.Child("deviceMultiplier"), m.DeviceMultiplier, 1, "must be positive")
}

// atLeast validates the sign of an optional quantity. Sign 0 allows zero.
func (k *validator) atLeast(at *field.Path, q *resource.Quantity, sign int, detail string) {
	if q != nil && q.Sign() < sign {
		k.Invalid(at, q.String(), "%s", detail)
	}
}
