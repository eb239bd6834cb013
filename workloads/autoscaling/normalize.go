package autoscaling

import (
	"math"
	"slices"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
)

// defaultDownWindow is the stabilization window for scaling down.
const defaultDownWindow = 5 * time.Minute

// normalize applies the stabilization windows, the scaling policies and the limits of the autoscaler to a proposal.
func (d *Decision) normalize(proposed, least int32) int32 {
	stable, reason, message := d.stabilize(proposed)
	if stable == proposed {
		reason, message = "ReadyForNewScale", "recommended size matches current size"
	}
	d.set(autoscalingv2.AbleToScale, corev1.ConditionTrue, reason, message)
	n, reason, message := d.limit(stable, least)
	limited := corev1.ConditionFalse
	if n != stable {
		limited = corev1.ConditionTrue
	}
	d.set(autoscalingv2.ScalingLimited, limited, reason, message)
	return n
}

// stabilize returns the recommendation that the windows allow, and remembers the proposal. Without behavior, there is a
// window for scaling down only.
func (d *Decision) stabilize(proposed int32) (n int32, reason, message string) {
	up, down := windows(d.in.Autoscaler)
	lowest, highest, current, now := proposed, proposed, d.in.Scale.Spec.Replicas, d.in.Now
	for _, r := range d.Memory.Recommendations {
		if r.At.After(now.Add(-up)) {
			lowest = min(lowest, r.Replicas)
		}
		if r.At.After(now.Add(-down)) {
			highest = max(highest, r.Replicas)
		}
	}
	n = highest
	if d.in.Autoscaler.Spec.Behavior != nil {
		n = min(max(current, lowest), highest)
	}
	kept := slices.DeleteFunc(d.Memory.Recommendations, func(r Recommendation) bool {
		return !r.At.After(now.Add(-max(up, down)))
	})
	d.Memory.Recommendations = append(kept, Recommendation{proposed, now})
	if d.in.Autoscaler.Spec.Behavior != nil && proposed >= current {
		return n, "ScaleUpStabilized",
			"recent recommendations were lower than current one, applying the lowest recent recommendation"
	}
	return n, "ScaleDownStabilized",
		"recent recommendations were higher than current one, applying the highest recent recommendation"
}

func windows(hpa *autoscalingv2.HorizontalPodAutoscaler) (up, down time.Duration) {
	down = defaultDownWindow
	b := hpa.Spec.Behavior
	if b == nil {
		return 0, down
	}
	if b.ScaleUp != nil && b.ScaleUp.StabilizationWindowSeconds != nil {
		up = time.Duration(*b.ScaleUp.StabilizationWindowSeconds) * time.Second
	}
	if b.ScaleDown != nil && b.ScaleDown.StabilizationWindowSeconds != nil {
		down = time.Duration(*b.ScaleDown.StabilizationWindowSeconds) * time.Second
	}
	return up, down
}

// limit applies the scaling policies, minReplicas and maxReplicas.
func (d *Decision) limit(want, least int32) (n int32, reason, message string) {
	current, most := d.in.Scale.Spec.Replicas, d.in.Autoscaler.Spec.MaxReplicas
	highest, lowest := d.policyLimits()
	switch {
	case want > min(most, highest) && most > highest:
		return highest, "ScaleUpLimit",
			"the desired replica count is increasing faster than the maximum scale rate"
	case want > most:
		return most, "TooManyReplicas", "the desired replica count is more than the maximum replica count"
	case want < current && want < lowest && lowest > least:
		return lowest, "ScaleDownLimit",
			"the desired replica count is decreasing faster than the maximum scale rate"
	case want < least:
		return least, "TooFewReplicas", "the desired replica count is less than the minimum replica count"
	}
	return want, "DesiredWithinRange", "the desired count is within the acceptable range"
}

// policyLimits returns to how many replicas the policies allow to scale up and down.
func (d *Decision) policyLimits() (highest, lowest int32) {
	current, b := d.in.Scale.Spec.Replicas, d.in.Autoscaler.Spec.Behavior
	if b == nil {
		return max(2*current, 4), 0
	}
	highest = max(d.policyLimit(b.ScaleUp, func(start int32, p autoscalingv2.HPAScalingPolicy) int32 {
		if p.Type == autoscalingv2.PodsScalingPolicy {
			return start + p.Value
		}
		return ceil(float64(start) * (1 + float64(p.Value)/100))
	}, true), current)
	lowest = min(d.policyLimit(b.ScaleDown, func(start int32, p autoscalingv2.HPAScalingPolicy) int32 {
		if p.Type == autoscalingv2.PodsScalingPolicy {
			return start - p.Value
		}
		return int32(float64(start) * (1 - float64(p.Value)/100))
	}, false), current)
	return highest, lowest
}

// policyLimit returns the limit of the policies of one direction. limit applies a policy to the number of replicas at
// the start of its period.
func (d *Decision) policyLimit(rules *autoscalingv2.HPAScalingRules,
	limit func(start int32, p autoscalingv2.HPAScalingPolicy) int32, up bool) int32 {
	current := d.in.Scale.Spec.Replicas
	selected := autoscalingv2.MaxChangePolicySelect
	if rules.SelectPolicy != nil {
		selected = *rules.SelectPolicy
	}
	if selected == autoscalingv2.DisabledPolicySelect {
		return current
	}
	highest := (selected == autoscalingv2.MaxChangePolicySelect) == up
	out := int32(math.MaxInt32)
	if highest {
		out = math.MinInt32
	}
	for _, p := range rules.Policies {
		period := time.Duration(p.PeriodSeconds) * time.Second
		start := current - changed(d.Memory.ScaleUps, d.in.Now, period) + changed(d.Memory.ScaleDowns, d.in.Now, period)
		if n := limit(start, p); highest {
			out = max(out, n)
		} else {
			out = min(out, n)
		}
	}
	return out
}

// changed returns the sum of the changes in a period until now.
func changed(events []ScaleEvent, now time.Time, period time.Duration) (sum int32) {
	for _, e := range events {
		if e.At.After(now.Add(-period)) {
			sum += e.Change
		}
	}
	return sum
}

// rememberScale records the change from a number of replicas. Changes older than the longest period are dropped.
func (d *Decision) rememberScale(before int32) {
	b := d.in.Autoscaler.Spec.Behavior
	if b == nil {
		return
	}
	d.Memory = d.Memory.clone()
	longest := time.Duration(0)
	for _, p := range slices.Concat(b.ScaleUp.Policies, b.ScaleDown.Policies) {
		longest = max(longest, time.Duration(p.PeriodSeconds)*time.Second)
	}
	old := func(e ScaleEvent) bool { return !e.At.After(d.in.Now.Add(-longest)) }
	d.Memory.ScaleUps = slices.DeleteFunc(d.Memory.ScaleUps, old)
	d.Memory.ScaleDowns = slices.DeleteFunc(d.Memory.ScaleDowns, old)
	if change := d.Replicas - before; change > 0 {
		d.Memory.ScaleUps = append(d.Memory.ScaleUps, ScaleEvent{change, d.in.Now})
	} else {
		d.Memory.ScaleDowns = append(d.Memory.ScaleDowns, ScaleEvent{-change, d.in.Now})
	}
}
