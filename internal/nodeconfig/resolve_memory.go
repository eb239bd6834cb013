package nodeconfig

import (
	"maps"
	"slices"

	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"
)

// memoryQoS is the only supported feature gate.
const memoryQoS = "MemoryQoS"

// memory resolves the swap and memory QoS settings.
func (l *loader) memory(c *Cgroups) {
	k := &l.kubelet
	const swap = "memorySwap.swapBehavior"
	c.LimitedSwap = l.oneOf(swap, k.MemorySwap.SwapBehavior, "", "NoSwap", "LimitedSwap") == "LimitedSwap"
	policy := kubeletv1beta1.MemoryReservationPolicy(
		l.oneOf(
			"memoryReservationPolicy",
			string(k.MemoryReservationPolicy),
			"",
			string(kubeletv1beta1.NoneMemoryReservationPolicy),
			string(kubeletv1beta1.TieredReservationMemoryReservationPolicy),
		),
	)
	factor := 0.0
	if f := k.MemoryThrottlingFactor; f != nil {
		if factor = *f; !(factor > 0 && factor <= 1) {
			l.complain("memoryThrottlingFactor", "%v must be more than 0 and at most 1", factor)
		}
	}
	for _, gate := range slices.Sorted(maps.Keys(k.FeatureGates)) {
		if gate != memoryQoS {
			l.warn(Field{Path: "featureGates"}, gate+" is ignored: berth has no such feature gate")
		}
	}
	on, isSet := k.FeatureGates[memoryQoS]
	if isSet && !on {
		return
	}
	c.MemoryThrottlingFactor = factor
	c.TieredMemoryReservation = policy == kubeletv1beta1.TieredReservationMemoryReservationPolicy
	if isSet && factor == 0 && !c.TieredMemoryReservation {
		l.warn(
			Field{Path: "featureGates"},
			memoryQoS+" has no effect alone, as upstream: set memoryThrottlingFactor or memoryReservationPolicy",
		)
	}
}
