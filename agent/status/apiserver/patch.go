package apiserver

import (
	"encoding/json"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/agent/plan"
	"berth/internal/apiclient"
)

// clearableFields are set to null if they are empty, because a merge patch preserves missing
// fields.
var clearableFields = []string{
	"reason", "message", "hostIP", "podIP", "initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses",
	"resources", "allocatedResources",
}

// addressLists are merged by address unless the patch replaces them.
var addressLists = []string{"podIPs", "hostIPs"}

// statusPatch returns a strategic merge patch that replaces the status except for the conditions of
// other writers. had is the set of this node's conditions that the server may have.
func statusPatch(uid types.UID, st *corev1.PodStatus, serverConditions map[corev1.PodConditionType]bool) ([]byte,
	error) {
	status, err := apiclient.JSONMap(st)
	if err != nil {
		return nil, err
	}
	for _, field := range clearableFields {
		if _, set := status[field]; !set {
			status[field] = nil
		}
	}
	for _, field := range addressLists {
		list, _ := status[field].([]any)
		status[field] = append(list, map[string]any{"$patch": "replace"})
	}
	status["conditions"] = conditionPatches(st, serverConditions)
	return json.Marshal(map[string]any{"metadata": map[string]any{"uid": uid}, "status": status})
}

// conditionPatches returns the node's conditions, and deletions of those it no longer has.
func conditionPatches(st *corev1.PodStatus, serverConditions map[corev1.PodConditionType]bool) (out []map[string]any) {
	now := map[corev1.PodConditionType]bool{}
	for _, c := range st.Conditions {
		if !ownedByNode(c) {
			continue
		}
		now[c.Type] = true
		one := map[string]any{
			"type": c.Type, "status": c.Status, "lastProbeTime": nil, "lastTransitionTime": c.LastTransitionTime,
			"reason":  nil,
			"message": nil,
		}
		if c.Reason != "" {
			one["reason"] = c.Reason
		}
		if c.Message != "" {
			one["message"] = c.Message
		}
		if c.ObservedGeneration != 0 {
			one["observedGeneration"] = c.ObservedGeneration
		}
		out = append(out, one)
	}
	for t := range serverConditions {
		if !now[t] {
			out = append(out, map[string]any{"$patch": "delete", "type": t})
		}
	}
	return out
}

// ownedByNode reports whether the condition was written by this node. Other components also write
// DisruptionTarget.
func ownedByNode(c corev1.PodCondition) bool {
	return plan.OwnsCondition(c.Type) || c.Type == corev1.DisruptionTarget &&
		c.Reason == corev1.PodReasonTerminationByKubelet
}
