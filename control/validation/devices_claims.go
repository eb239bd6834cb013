package validation

import (
	"strings"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"berth/internal/rules"
)

func defaultDeviceClaim(c *resourcev1.ResourceClaim) {
	defaultRequests(&c.Spec.Devices)
	if a := c.Status.Allocation; a != nil {
		for i := range a.Devices.Results {
			defaultTolerations(a.Devices.Results[i].Tolerations)
		}
	}
}

func defaultRequests(c *resourcev1.DeviceClaim) {
	for i := range c.Requests {
		if e := c.Requests[i].Exactly; e != nil {
			defaultCount(&e.AllocationMode, &e.Count)
			defaultTolerations(e.Tolerations)
		}
		for j := range c.Requests[i].FirstAvailable {
			s := &c.Requests[i].FirstAvailable[j]
			defaultCount(&s.AllocationMode, &s.Count)
			defaultTolerations(s.Tolerations)
		}
	}
}

func defaultCount(mode *resourcev1.DeviceAllocationMode, count *int64) {
	rules.SetIfZero(mode, resourcev1.DeviceAllocationModeExactCount)
	if *mode == resourcev1.DeviceAllocationModeExactCount {
		rules.SetIfZero(count, 1)
	}
}

func defaultTolerations(list []resourcev1.DeviceToleration) {
	for i := range list {
		rules.SetIfZero(&list[i].Operator, resourcev1.DeviceTolerationOpEqual)
	}
}

// requestFields is a request or a subrequest, which have the same fields.
type requestFields struct {
	class       string
	selectors   []resourcev1.DeviceSelector
	mode        resourcev1.DeviceAllocationMode
	count       int64
	tolerations []resourcev1.DeviceToleration
	capacity    *resourcev1.CapacityRequirements
	derived     []resourcev1.DeviceDerivedAttribute
}

// claimNames are the names of a claim's requests, and of subrequests as "request/subrequest".
type claimNames map[string]bool

func requestNamesOf(c *resourcev1.DeviceClaim) claimNames {
	out := claimNames{}
	for _, r := range c.Requests {
		out[r.Name] = true
		for _, s := range r.FirstAvailable {
			out[r.Name+"/"+s.Name] = true
		}
	}
	return out
}

// constrained returns the attributes that constraints use, by request. The key "" is for all
// requests.
func constrained(c *resourcev1.DeviceClaim) map[string]map[string]bool {
	out := map[string]map[string]bool{}
	for _, one := range c.Constraints {
		name := one.MatchAttribute
		if name == nil {
			name = one.DistinctAttribute
		}
		if name == nil {
			continue
		}
		requests := one.Requests
		if len(requests) == 0 {
			requests = []string{""}
		}
		for _, r := range requests {
			if out[r] == nil {
				out[r] = map[string]bool{}
			}
			out[r][string(*name)] = true
		}
	}
	return out
}

// deviceClaim validates the spec of a new claim.
func (k *validator) deviceClaim(at *field.Path, c *resourcev1.DeviceClaim) {
	names, used, cost := requestNamesOf(c), constrained(c), uint64(0)
	if at := at.Child("requests"); k.atMost(at, len(c.Requests), resourcev1.DeviceRequestsMaxSize) {
		for i := range c.Requests {
			cost += k.deviceRequest(at.Index(i), &c.Requests[i], used)
		}
		distinct(k, at, c.Requests, func(r resourcev1.DeviceRequest) string { return r.Name })
	}
	if cost > resourcev1.DeviceClaimDerivedAttributeCELMaxCost {
		k.Forbidden(at, "too complex, total cost of derived attribute CEL expressions in the claim exceeds cost limit")
	}
	if at := at.Child("constraints"); k.atMost(at, len(c.Constraints), resourcev1.DeviceConstraintsMaxSize) {
		for i := range c.Constraints {
			k.deviceConstraint(at.Index(i), &c.Constraints[i], names)
		}
	}
	if at := at.Child("config"); k.atMost(at, len(c.Config), resourcev1.DeviceConfigMaxSize) {
		for i := range c.Config {
			k.requestNames(at.Index(i).Child("requests"), c.Config[i].Requests, names)
			k.deviceConfig(at.Index(i), &c.Config[i].DeviceConfiguration, false)
		}
	}
}

// deviceRequest validates a request and returns the estimated CEL cost of its derived attributes.
func (k *validator) deviceRequest(
	at *field.Path,
	r *resourcev1.DeviceRequest,
	used map[string]map[string]bool,
) (cost uint64) {
	const one = "exactly one of `exactly` or `firstAvailable` is required"
	k.label(at.Child("name"), r.Name)
	switch {
	case r.Exactly == nil && len(r.FirstAvailable) == 0:
		k.Required(at, one)
	case r.Exactly != nil && len(r.FirstAvailable) > 0:
		k.Add(field.Invalid(at, nil, one+", but multiple fields are set"))
	case r.Exactly != nil:
		e := r.Exactly
		cost = k.requestFields(
			at.Child("exactly"),
			requestFields{
				e.DeviceClassName,
				e.Selectors,
				e.AllocationMode,
				e.Count,
				e.Tolerations,
				e.Capacity,
				e.DerivedAttributes,
			},
			used[""],
			used[r.Name],
		)
	default:
		at := at.Child("firstAvailable")
		if !k.atMost(at, len(r.FirstAvailable), resourcev1.FirstAvailableDeviceRequestMaxSize) {
			return 0
		}
		for i, s := range r.FirstAvailable {
			k.label(at.Index(i).Child("name"), s.Name)
			cost += k.requestFields(
				at.Index(i),
				requestFields{
					s.DeviceClassName,
					s.Selectors,
					s.AllocationMode,
					s.Count,
					s.Tolerations,
					s.Capacity,
					s.DerivedAttributes,
				},
				used[""],
				used[r.Name],
				used[r.Name+"/"+s.Name],
			)
		}
		distinct(k, at, r.FirstAvailable, func(s resourcev1.DeviceSubRequest) string { return s.Name })
	}
	return cost
}

func (k *validator) requestFields(at *field.Path, a requestFields, used ...map[string]bool) (cost uint64) {
	k.Name(at.Child("deviceClassName"), a.class, validation.IsDNS1123Subdomain)
	k.deviceSelectors(at.Child("selectors"), a.selectors, false)
	switch rules.OneOf(k, at.Child("allocationMode"), a.mode, resourcev1.DeviceAllocationModeAll,
		resourcev1.DeviceAllocationModeExactCount); a.mode {
	case resourcev1.DeviceAllocationModeAll:
		if a.count != 0 {
			k.Invalid(at.Child("count"), a.count, "must not be specified when allocationMode is '%s'", a.mode)
		}
	case resourcev1.DeviceAllocationModeExactCount:
		if a.count <= 0 {
			k.Invalid(at.Child("count"), a.count, "must be greater than zero")
		}
	}
	k.deviceTolerations(at.Child("tolerations"), a.tolerations)
	if a.capacity != nil {
		at := at.Child("capacity", "requests")
		for name, amount := range a.capacity.Requests {
			k.qualified(at, string(name))
			if amount.Sign() < 0 {
				k.Invalid(at.Key(string(name)), amount.String(), "must be greater than or equal to 0")
			}
		}
	}
	return k.derived(at.Child("derivedAttributes"), a.derived, used)
}

// derived validates derived attributes. Each must be used by a constraint.
func (k *validator) derived(
	at *field.Path,
	list []resourcev1.DeviceDerivedAttribute,
	used []map[string]bool,
) (cost uint64) {
	if !k.atMost(at, len(list), resourcev1.DeviceDerivedAttributesMaxSize) {
		return 0
	}
	for i, d := range list {
		at := at.Index(i)
		if d.Name == "" {
			k.Required(at.Child("name"), "")
		} else {
			k.fullyQualified(at.Child("name"), d.Name)
			known := false
			for _, names := range used {
				known = known || names[string(d.Name)]
			}
			if !known {
				k.Invalid(at.Child("name"), d.Name,
					"must be referenced by at least one matchAttribute or distinctAttribute "+
						"constraint targeting this request")
			}
		}
		if d.Expression == "" {
			k.Required(at.Child("expression"), "")
		} else {
			cost += k.expression(at.Child("expression"), d.Expression, true)
		}
	}
	distinct(k, at, list, func(d resourcev1.DeviceDerivedAttribute) resourcev1.FullyQualifiedName { return d.Name })
	return cost
}

func (k *validator) deviceConstraint(at *field.Path, c *resourcev1.DeviceConstraint, names claimNames) {
	const one = "exactly one of `matchAttribute` or `distinctAttribute` is required"
	k.requestNames(at.Child("requests"), c.Requests, names)
	if c.MatchAttribute != nil {
		k.fullyQualified(at.Child("matchAttribute"), *c.MatchAttribute)
	}
	if c.DistinctAttribute != nil {
		k.fullyQualified(at.Child("distinctAttribute"), *c.DistinctAttribute)
	}
	switch {
	case c.MatchAttribute == nil && c.DistinctAttribute == nil:
		k.Required(at, one)
	case c.MatchAttribute != nil && c.DistinctAttribute != nil:
		k.Add(field.Invalid(at, nil, one+", but multiple fields are set"))
	}
}

// requestNames validates references to requests of the claim.
func (k *validator) requestNames(at *field.Path, list []string, names claimNames) {
	if !k.atMost(at, len(list), resourcev1.DeviceRequestsMaxSize) {
		return
	}
	for i, name := range list {
		k.requestName(at.Index(i), name, names)
	}
	distinct(k, at, list, identity)
}

func (k *validator) requestName(at *field.Path, name string, names claimNames) {
	parts := strings.Split(name, "/")
	if len(parts) <= 2 {
		for _, part := range parts {
			k.label(at, part)
		}
	}
	if len(parts) > 2 || !names[name] {
		k.Invalid(
			at,
			name,
			"must be the name of a request in the claim or the name of a request and a subrequest separated by '/'",
		)
	}
}
