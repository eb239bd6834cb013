package job

import (
	"fmt"
	"slices"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
)

// policyMatch is the result of the pod failure policy for a failed pod.
type policyMatch struct {
	action  batchv1.PodFailurePolicyAction // "": no rule matches
	message string                         // only FailJob: the message of the condition
}

// counted reports whether the failure counts towards the back-off limits.
func (m policyMatch) counted() bool { return m.action != batchv1.PodFailurePolicyActionIgnore }

// matchFailurePolicy returns the result of the first matching rule. A nil policy has no rules.
func matchFailurePolicy(policy *batchv1.PodFailurePolicy, pod *corev1.Pod) policyMatch {
	if policy == nil {
		return policyMatch{}
	}
	for i := range policy.Rules {
		rule := &policy.Rules[i]
		var message string
		if rule.OnExitCodes != nil {
			c := exitMatch(&pod.Status, rule.OnExitCodes)
			if c == nil {
				continue
			}
			message = fmt.Sprintf("Container %s for pod %s/%s failed with exit code %d matching %s rule at index %d",
				c.Name, pod.Namespace, pod.Name, c.State.Terminated.ExitCode, rule.Action, i)
		} else {
			c := conditionMatch(&pod.Status, rule.OnPodConditions)
			if c == nil {
				continue
			}
			message = fmt.Sprintf("Pod %s/%s has condition %s matching %s rule at index %d",
				pod.Namespace, pod.Name, c.Type, rule.Action, i)
		}
		switch rule.Action {
		case batchv1.PodFailurePolicyActionFailJob:
			return policyMatch{rule.Action, message}
		case batchv1.PodFailurePolicyActionFailIndex, batchv1.PodFailurePolicyActionIgnore,
			batchv1.PodFailurePolicyActionCount:
			return policyMatch{action: rule.Action}
		}
	}
	return policyMatch{}
}

// exitMatch returns the first container, then the first init container, whose exit code matches.
func exitMatch(status *corev1.PodStatus, want *batchv1.PodFailurePolicyOnExitCodesRequirement) *corev1.ContainerStatus {
	for _, list := range [][]corev1.ContainerStatus{status.ContainerStatuses, status.InitContainerStatuses} {
		for i := range list {
			end := list[i].State.Terminated
			if end == nil || end.ExitCode == 0 || want.ContainerName != nil && *want.ContainerName != list[i].Name {
				continue
			}
			listed := slices.Contains(want.Values, end.ExitCode)
			if want.Operator == batchv1.PodFailurePolicyOnExitCodesOpIn && listed ||
				want.Operator == batchv1.PodFailurePolicyOnExitCodesOpNotIn && !listed {
				return &list[i]
			}
		}
	}
	return nil
}

func conditionMatch(status *corev1.PodStatus,
	patterns []batchv1.PodFailurePolicyOnPodConditionsPattern) *corev1.PodCondition {
	for i := range status.Conditions {
		c := &status.Conditions[i]
		if slices.ContainsFunc(patterns, func(p batchv1.PodFailurePolicyOnPodConditionsPattern) bool {
			return p.Type == c.Type && p.Status == c.Status
		}) {
			return c
		}
	}
	return nil
}

// successMet returns the message of the condition if the succeeded indexes meet a rule of the success policy.
func successMet(policy *batchv1.SuccessPolicy, succeeded indexes, completions int) (message string, met bool) {
	if policy == nil || len(succeeded) == 0 {
		return "", false
	}
	for i := range policy.Rules {
		rule := &policy.Rules[i]
		enough := func(n int) bool { return rule.SucceededCount != nil && n >= int(*rule.SucceededCount) }
		if rule.SucceededIndexes == nil {
			met = enough(succeeded.total())
		} else {
			wanted := parseIndexes(*rule.SucceededIndexes, completions)
			n := wanted.common(succeeded)
			met = len(wanted) > 0 && (n == wanted.total() || enough(n))
		}
		if met {
			return fmt.Sprintf("Matched rules at index %d", i), true
		}
	}
	return "", false
}
