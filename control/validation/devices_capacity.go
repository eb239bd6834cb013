package validation

import (
	"math/big"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

const maxCapacityOptions = 10

// capacity validates a device capacity and its request policy.
func (k *validator) capacity(at *field.Path, c resourcev1.DeviceCapacity, shared bool) {
	p, at := c.RequestPolicy, at.Child("requestPolicy")
	switch {
	case p == nil:
	case !shared:
		k.Forbidden(at, "allowMultipleAllocations must be true")
	case len(p.ValidValues) > 0 && p.ValidRange != nil:
		k.Forbidden(at, `exactly one policy can be specified, cannot specify "validValues" and "validRange" at `+
			`the same time`)
	case len(p.ValidValues) > 0:
		if p.Default == nil {
			k.Required(at.Child("default"), "required when validValues is defined")
			return
		}
		k.capacityOptions(at.Child("validValues"), p.ValidValues, *p.Default, c.Value)
	case p.ValidRange != nil:
		if p.Default == nil {
			k.Required(at.Child("default"), "required when validRange is defined")
			return
		}
		k.capacityRange(at.Child("validRange"), p.ValidRange, *p.Default, c.Value)
	}
}

func (k *validator) capacityOptions(
	at *field.Path,
	list []resource.Quantity,
	defaultValue, capacity resource.Quantity,
) {
	if !k.atMost(at, len(list), maxCapacityOptions) {
		return
	}
	found := false
	for i, q := range list {
		if i > 0 && list[i-1].Cmp(q) > 0 {
			k.Invalid(at.Index(i), q.String(), "values must be sorted in ascending order")
		}
		if q.Cmp(capacity) > 0 {
			k.Invalid(at.Index(i), q.String(), "option is larger than capacity value: %s", capacity.String())
		}
		if i > 0 && list[i-1].Cmp(q) == 0 {
			k.Add(field.Duplicate(at.Index(i), q.String()))
		}
		found = found || q.Cmp(defaultValue) == 0
	}
	if !found {
		k.Invalid(at, defaultValue.String(), "default value is not valid according to the requestPolicy")
	}
}

func (k *validator) capacityRange(
	at *field.Path,
	r *resourcev1.CapacityRequestPolicyRange,
	defaultValue, capacity resource.Quantity,
) {
	if r.Min == nil {
		k.Required(at.Child("min"), "required when validRange is defined")
		return
	}
	k.atLeast(at.Child("min"), r.Min, 0, "must be greater than or equal to 0")
	if r.Min.Cmp(capacity) > 0 {
		k.Invalid(at.Child("min"), r.Min.String(), "min is larger than capacity value: %s", capacity.String())
	}
	if defaultValue.Cmp(*r.Min) < 0 {
		k.Invalid(at.Child("default"), defaultValue.String(), "default is less than min: %s", r.Min.String())
	}
	if r.Max != nil {
		if r.Min.Cmp(*r.Max) > 0 {
			k.Invalid(at.Child("max"), r.Min.String(), "min is larger than max: %s", r.Max.String())
		}
		if r.Max.Cmp(capacity) > 0 {
			k.Invalid(at.Child("max"), r.Max.String(), "max is larger than capacity value: %s", capacity.String())
		}
		if defaultValue.Cmp(*r.Max) > 0 {
			k.Invalid(at.Child("default"), defaultValue.String(), "default is more than max: %s", r.Max.String())
		}
	}
	if r.Step != nil {
		k.capacityStep(at.Child("step"), r, defaultValue, capacity)
	}
}

// capacityStep validates that the limits of a range are multiples of the step.
func (k *validator) capacityStep(
	at *field.Path,
	r *resourcev1.CapacityRequestPolicyRange,
	defaultValue, capacity resource.Quantity,
) {
	if r.Step.Sign() <= 0 {
		k.Invalid(at, r.Step.String(), "must be greater than zero")
		return
	}
	next := r.Min.DeepCopy()
	if next.Add(*r.Step); next.Cmp(capacity) > 0 {
		k.Invalid(at, r.Step.String(), "one step %s is larger than capacity value: %s", next.String(),
			capacity.String())
	}
	ends := []resource.Quantity{defaultValue}
	if r.Max != nil {
		ends = append(ends, *r.Max)
	}
	for _, q := range ends {
		if !isMultipleOfStep(q, *r.Min, *r.Step) {
			k.Invalid(at, q.String(), "value is not a multiple of a given step (%s) from (%s)", r.Step.String(),
				r.Min.String())
		}
	}
}

// isMultipleOfStep reports whether the difference of two quantities is a multiple of the step. It
// calculates in nano units with arbitrary precision.
func isMultipleOfStep(to, from, step resource.Quantity) bool {
	way := new(big.Int).Sub(nanoUnits(to), nanoUnits(from))
	return way.Rem(way, nanoUnits(step)).Sign() == 0
}

func nanoUnits(q resource.Quantity) *big.Int {
	c := q.DeepCopy()
	d := c.AsDec()
	power := new(big.Int).Exp(big.NewInt(10), big.NewInt(9-int64(d.Scale())), nil)
	return power.Mul(power, d.UnscaledBig())
}
