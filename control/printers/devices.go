package printers

import (
	"strings"
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// deviceKinds are the kinds of dynamic resource allocation with columns of their own.
var deviceKinds = map[schema.GroupKind]Columns{
	{Group: resourcev1.GroupName, Kind: "ResourceClaim"}: columnsOf(
		func(c *resourcev1.ResourceClaim, now time.Time) []any {
			return []any{c.Name, claimState(c), age(c.CreationTimestamp, now)}
		},
		nameColumn,
		stringColumn("State", "Allocation state of the claim."),
		ageColumn,
	),
	{Group: resourcev1.GroupName, Kind: "ResourceSlice"}: columnsOf(
		func(s *resourcev1.ResourceSlice, now time.Time) []any {
			return []any{s.Name, valueOr(s.Spec.NodeName, ""), s.Spec.Driver, s.Spec.Pool.Name,
				age(s.CreationTimestamp, now)}
		},
		nameColumn,
		stringColumn("Node", "Node of the devices."),
		stringColumn("Driver", "Driver that manages the devices."),
		stringColumn("Pool", "Pool of the devices."),
		ageColumn,
	),
}

func claimState(c *resourcev1.ResourceClaim) string {
	var states []string
	add := func(state string, applies bool) {
		if applies {
			states = append(states, state)
		}
	}
	deleted, allocated := c.DeletionTimestamp != nil, c.Status.Allocation != nil
	add("deleted", deleted)
	add("pending", !allocated && !deleted)
	add("allocated", allocated)
	add("reserved", allocated && len(c.Status.ReservedFor) > 0)
	return strings.Join(states, ",")
}
