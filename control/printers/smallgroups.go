package printers

import (
	"strconv"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	nodev1 "k8s.io/api/node/v1"
	policyv1 "k8s.io/api/policy/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// smallGroupKinds are those of API groups with one or two kinds, and of storage.
var smallGroupKinds = map[schema.GroupKind]Columns{
	{Group: "events.k8s.io", Kind: "Event"}: eventColumns, // stored as core events
	{Group: "coordination.k8s.io", Kind: "Lease"}: columnsOf(func(l *coordinationv1.Lease, now time.Time) []any {
		return []any{l.Name, valueOr(l.Spec.HolderIdentity, ""), age(l.CreationTimestamp, now)}
	}, nameColumn, stringColumn("Holder", "Holder of the lease."), ageColumn),
	{Group: "storage.k8s.io", Kind: "StorageClass"}: storageClasses,
	{Group: "storage.k8s.io", Kind: "VolumeAttributesClass"}: columnsOf(
		func(c *storagev1.VolumeAttributesClass, now time.Time) []any {
			return []any{c.Name, c.DriverName, age(c.CreationTimestamp, now)}
		},
		nameColumn,
		stringColumn("DriverName", "Name of the CSI driver."),
		ageColumn,
	),
	{Group: "storage.k8s.io", Kind: "CSINode"}: columnsOf(func(n *storagev1.CSINode, now time.Time) []any {
		return []any{n.Name, int64(len(n.Spec.Drivers)), age(n.CreationTimestamp, now)}
	}, nameColumn, integerColumn("Drivers", "Number of drivers on the node."), ageColumn),
	{Group: "storage.k8s.io", Kind: "VolumeAttachment"}: columnsOf(
		func(a *storagev1.VolumeAttachment, now time.Time) []any {
			return []any{
				a.Name,
				a.Spec.Attacher,
				valueOr(a.Spec.Source.PersistentVolumeName, ""),
				a.Spec.NodeName,
				a.Status.Attached,
				age(a.CreationTimestamp, now),
			}
		},
		nameColumn,
		stringColumn("Attacher", "Name of the volume driver that handles the attachment."),
		stringColumn("PV", "Persistent volume."),
		stringColumn("Node", "Node of the attachment."),
		metav1.TableColumnDefinition{Name: "Attached", Type: "boolean", Description: "Whether the volume is attached."},
		ageColumn,
	),
	{Group: "discovery.k8s.io", Kind: "EndpointSlice"}: columnsOf(
		sliceRow,
		nameColumn,
		stringColumn("AddressType", "Type of the addresses."),
		stringColumn("Ports", "Ports of the endpoints."),
		stringColumn("Endpoints", "Ready addresses."),
		ageColumn,
	),
	{Group: "node.k8s.io", Kind: "RuntimeClass"}: columnsOf(func(r *nodev1.RuntimeClass, now time.Time) []any {
		return []any{r.Name, r.Handler, age(r.CreationTimestamp, now)}
	}, nameColumn, stringColumn("Handler", "Handler of the container runtime."), ageColumn),
	{Group: "policy", Kind: "PodDisruptionBudget"}: columnsOf(func(p *policyv1.PodDisruptionBudget,
		now time.Time) []any {
		low, high := any("N/A"), any("N/A")
		if p.Spec.MinAvailable != nil {
			low = p.Spec.MinAvailable.String()
		}
		if p.Spec.MaxUnavailable != nil {
			high = p.Spec.MaxUnavailable.String()
		}
		return []any{p.Name, low, high, int64(p.Status.DisruptionsAllowed), age(p.CreationTimestamp, now)}
	}, nameColumn, stringColumn("Min Available", "Minimum number of available pods."),
		stringColumn("Max Unavailable", "Maximum number of unavailable pods."),
		integerColumn("Allowed Disruptions", "Number of pods that can be evicted now."), ageColumn),
	{Group: "scheduling.k8s.io", Kind: "PriorityClass"}: columnsOf(
		func(p *schedulingv1.PriorityClass, now time.Time) []any {
			return []any{p.Name, int64(p.Value), p.GlobalDefault, age(p.CreationTimestamp, now),
				valueOr(p.PreemptionPolicy, "")}
		},
		nameColumn,
		integerColumn("Value", "Priority of pods in the class."),
		metav1.TableColumnDefinition{
			Name:        "Global-Default",
			Type:        "boolean",
			Description: "Whether it is the default for pods without a priority class.",
		},
		ageColumn,
		stringColumn("PreemptionPolicy", "Whether pods of the class preempt others."),
	),
}

var storageClasses = columnsOf(
	func(c *storagev1.StorageClass, now time.Time) []any {
		name := c.Name
		if c.Annotations["storageclass.kubernetes.io/is-default-class"] == "true" {
			name += " (default)"
		}
		return []any{
			name,
			c.Provisioner,
			valueOr(c.ReclaimPolicy, string(corev1.PersistentVolumeReclaimDelete)),
			valueOr(c.VolumeBindingMode, unset),
			c.AllowVolumeExpansion != nil && *c.AllowVolumeExpansion,
			age(c.CreationTimestamp, now),
		}
	},
	nameColumn,
	stringColumn("Provisioner", "Provisioner of the volumes."),
	stringColumn("ReclaimPolicy", "What happens to released volumes."),
	stringColumn("VolumeBindingMode", "When claims are bound."),
	metav1.TableColumnDefinition{
		Name:        "AllowVolumeExpansion",
		Type:        "boolean",
		Description: "Whether volumes can be expanded.",
	},
	ageColumn,
)

func sliceRow(s *discoveryv1.EndpointSlice, now time.Time) []any {
	ports := make([]string, 0, len(s.Ports))
	for _, p := range s.Ports {
		switch {
		case p.Port != nil:
			ports = append(ports, strconv.Itoa(int(*p.Port)))
		case p.Name != nil && *p.Name != "":
			ports = append(ports, *p.Name)
		default:
			ports = append(ports, "*")
		}
	}
	var addresses []string
	for _, e := range s.Endpoints {
		addresses = append(addresses, e.Addresses...)
	}
	return []any{
		s.Name,
		string(s.AddressType),
		joinLimited(ports, unset),
		joinLimited(addresses, unset),
		age(s.CreationTimestamp, now),
	}
}
