package printers

import (
	"strconv"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	nodev1 "k8s.io/api/node/v1"
	policyv1 "k8s.io/api/policy/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

var otherKinds = map[schema.GroupKind]Columns{
	{Group: "events.k8s.io", Kind: "Event"}: eventColumns, // kept as the core's
	{Group: "coordination.k8s.io", Kind: "Lease"}: of(func(l *coordinationv1.Lease, now time.Time) []any {
		return []any{l.Name, value(l.Spec.HolderIdentity, ""), since(l.CreationTimestamp, now)}
	}, nameHead, text("Holder", "Who holds the lease."), ageHead),
	{Group: "networking.k8s.io", Kind: "NetworkPolicy"}: of(func(p *networkingv1.NetworkPolicy, now time.Time) []any {
		return []any{p.Name, selector(&p.Spec.PodSelector), since(p.CreationTimestamp, now)}
	}, nameHead, text("Pod-Selector", "The pods that it is about."), ageHead),
	{Group: "storage.k8s.io", Kind: "StorageClass"}: storageClasses,
	{Group: "storage.k8s.io", Kind: "VolumeAttributesClass"}: of(func(c *storagev1.VolumeAttributesClass, now time.Time) []any {
		return []any{c.Name, c.DriverName, since(c.CreationTimestamp, now)}
	}, nameHead, text("DriverName", "Who changes the volumes."), ageHead),
	{Group: "storage.k8s.io", Kind: "CSINode"}: of(func(n *storagev1.CSINode, now time.Time) []any {
		return []any{n.Name, int64(len(n.Spec.Drivers)), since(n.CreationTimestamp, now)}
	}, nameHead, number("Drivers", "How many drivers the node has."), ageHead),
	{Group: "storage.k8s.io", Kind: "VolumeAttachment"}: of(func(a *storagev1.VolumeAttachment, now time.Time) []any {
		return []any{a.Name, a.Spec.Attacher, value(a.Spec.Source.PersistentVolumeName, ""), a.Spec.NodeName, a.Status.Attached, since(a.CreationTimestamp, now)}
	}, nameHead, text("Attacher", "Who attaches."), text("PV", "The volume."), text("Node", "The node that it is attached to."),
		metav1.TableColumnDefinition{Name: "Attached", Type: "boolean", Description: "Whether it is."}, ageHead),
	{Group: "discovery.k8s.io", Kind: "EndpointSlice"}: of(sliceRow, nameHead, text("AddressType", "What addresses are listed."),
		text("Ports", "The ports."), text("Endpoints", "The addresses that serve."), ageHead),
	{Group: "node.k8s.io", Kind: "RuntimeClass"}: of(func(r *nodev1.RuntimeClass, now time.Time) []any {
		return []any{r.Name, r.Handler, since(r.CreationTimestamp, now)}
	}, nameHead, text("Handler", "The runtime's name for it."), ageHead),
	{Group: "policy", Kind: "PodDisruptionBudget"}: of(func(p *policyv1.PodDisruptionBudget, now time.Time) []any {
		low, high := any("N/A"), any("N/A")
		if p.Spec.MinAvailable != nil {
			low = p.Spec.MinAvailable.String()
		}
		if p.Spec.MaxUnavailable != nil {
			high = p.Spec.MaxUnavailable.String()
		}
		return []any{p.Name, low, high, int64(p.Status.DisruptionsAllowed), since(p.CreationTimestamp, now)}
	}, nameHead, text("Min Available", "How many pods must stay."), text("Max Unavailable", "How many pods may be missing."),
		number("Allowed Disruptions", "How many pods may be evicted now."), ageHead),
	{Group: "scheduling.k8s.io", Kind: "PriorityClass"}: of(func(p *schedulingv1.PriorityClass, now time.Time) []any {
		return []any{p.Name, int64(p.Value), p.GlobalDefault, since(p.CreationTimestamp, now), value(p.PreemptionPolicy, "")}
	}, nameHead, number("Value", "The priority."),
		metav1.TableColumnDefinition{Name: "Global-Default", Type: "boolean", Description: "Whether pods without a class get it."}, ageHead,
		text("PreemptionPolicy", "Whether pods of it push others out.")),
}

var storageClasses = of(func(c *storagev1.StorageClass, now time.Time) []any {
	name := c.Name
	if c.Annotations["storageclass.kubernetes.io/is-default-class"] == "true" {
		name += " (default)"
	}
	return []any{name, c.Provisioner, value(c.ReclaimPolicy, string(corev1.PersistentVolumeReclaimDelete)), value(c.VolumeBindingMode, unset),
		c.AllowVolumeExpansion != nil && *c.AllowVolumeExpansion, since(c.CreationTimestamp, now)}
}, nameHead, text("Provisioner", "Who makes the volumes."), text("ReclaimPolicy", "What becomes of them when they are released."),
	text("VolumeBindingMode", "When a claim is bound."),
	metav1.TableColumnDefinition{Name: "AllowVolumeExpansion", Type: "boolean", Description: "Whether volumes can grow."}, ageHead)

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
	return []any{s.Name, string(s.AddressType), some(ports, unset), some(addresses, unset), since(s.CreationTimestamp, now)}
}
