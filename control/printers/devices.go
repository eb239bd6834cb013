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
			return []any{s.Name, valueOr(s.Spec.NodeName, ""), s.Spec.Driver, s.Spec.Pool.Name, age(s.CreationTimestamp, now)}
		},
		nameColumn,
		stringColumn("Node", "Node of the devices."),
		stringColumn("Driver", "Driver that manages the devices."),
		stringColumn("Pool", "Pool of the devices."),
		ageColumn,
	),
}

func claimState(c *resourcev1.ResourceClaim) string {
	var words []string
	add := func(word string, is bool) {
		if is {
			words = append(words, word)
		}
	}
	gone, has := c.DeletionTimestamp != nil, c.Status.Allocation != nil
	add("deleted", gone)
	add("pending", !has && !gone)
	add("allocated", has)
	add("reserved", has && len(c.Status.ReservedFor) > 0)
	return strings.Join(words, ",")
}
