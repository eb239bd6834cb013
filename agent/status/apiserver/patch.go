package apiserver

import (
	"encoding/json"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/agent/plan"
	"berth/internal/apiclient"
)

// clearableFields are the fields of a status that are taken away by saying so: a merge
// keeps what is not named.
var clearableFields = []string{
	"reason", "message", "hostIP", "podIP", "initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses",
	"resources", "allocatedResources",
}

// addressLists are lists that are merged by address unless told otherwise.
var addressLists = []string{"podIPs", "hostIPs"}

// statusPatch is a strategic merge patch that makes a pod's status as given, whatever
// it was, but for the conditions that are not this node's. had names this node's
// conditions that the server may have.
func statusPatch(uid types.UID, st *corev1.PodStatus, had map[corev1.PodConditionType]bool) ([]byte, error) {
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
	status["conditions"] = conditionPatches(st, had)
	return json.Marshal(map[string]any{"metadata": map[string]any{"uid": uid}, "status": status})
}

// conditionPatches are this node's own, each in full, and those that are not there any
// more.
func conditionPatches(st *corev1.PodStatus, had map[corev1.PodConditionType]bool) (out []map[string]any) {
	now := map[corev1.PodConditionType]bool{}
	for _, c := range st.Conditions {
		if !ownedByNode(c) {
			continue
		}
		now[c.Type] = true
		one := map[string]any{
			"type": c.Type, "status": c.Status, "lastProbeTime": nil, "lastTransitionTime": c.LastTransitionTime, "reason": nil, "message": nil,
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
	for t := range had {
		if !now[t] {
			out = append(out, map[string]any{"$patch": "delete", "type": t})
		}
	}
	return out
}

// ownedByNode reports whether a condition is written by this node. Others share one: of
// a pod that is ended for the node's sake.
func ownedByNode(c corev1.PodCondition) bool {
	return plan.OwnsCondition(c.Type) || c.Type == corev1.DisruptionTarget && c.Reason == corev1.PodReasonTerminationByKubelet
}
