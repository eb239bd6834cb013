package validation

import (
	resourcev1 "k8s.io/api/resource/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"berth/internal/rules"
	"berth/podspec"
)

// deviceID identifies a device or a share of it.
type deviceID struct{ driver, pool, device, share string }

func (d deviceID) String() string {
	name := d.driver + "/" + d.pool + "/" + d.device
	if d.share != "" {
		name += "/" + d.share
	}
	return name
}

func allocatedID(r resourcev1.DeviceRequestAllocationResult) deviceID {
	out := deviceID{driver: r.Driver, pool: r.Pool, device: r.Device}
	if r.ShareID != nil {
		out.share = string(*r.ShareID)
	}
	return out
}

func reportedID(d resourcev1.AllocatedDeviceStatus) deviceID {
	out := deviceID{driver: d.Driver, pool: d.Pool, device: d.Device}
	if d.ShareID != nil {
		out.share = *d.ShareID
	}
	return out
}

// allocated returns the allocated devices of a claim.
func allocated(s *resourcev1.ResourceClaimStatus) map[deviceID]bool {
	out := map[deviceID]bool{}
	if s.Allocation != nil {
		for _, r := range s.Allocation.Devices.Results {
			out[allocatedID(r)] = true
		}
	}
	return out
}

// DropDeallocatedDevices removes the status of devices that are no longer allocated.
func DropDeallocatedDevices(now, old *resourcev1.ResourceClaimStatus) {
	current, previous := allocated(now), allocated(old)
	var kept []resourcev1.AllocatedDeviceStatus
	for _, d := range now.Devices {
		if id := reportedID(d); current[id] || !previous[id] {
			kept = append(kept, d)
		}
	}
	now.Devices = kept
}

// claimStatus validates the allocation, the consumers and the device status of a claim.
func (k *validator) claimStatus(c, old *resourcev1.ResourceClaim) {
	if at := status.Child("reservedFor"); k.atMost(
		at,
		len(c.Status.ReservedFor),
		resourcev1.ResourceClaimReservedForMaxSize,
	) {
		for i, r := range c.Status.ReservedFor {
			k.consumer(at.Index(i), r)
		}
		distinct(k, at, c.Status.ReservedFor, func(r resourcev1.ResourceClaimConsumerReference) types.UID {
			return r.UID
		})
		k.reserved(at, c, old)
	}
	devices, at := allocated(&c.Status), status.Child("devices")
	for i := range c.Status.Devices {
		k.deviceStatus(at.Index(i), &c.Status.Devices[i])
		if id := reportedID(c.Status.Devices[i]); !devices[id] {
			k.Invalid(at.Index(i), id.String(), "must be an allocated device in the claim")
		}
	}
	distinct(k, at, c.Status.Devices, reportedID)
	switch at := status.Child("allocation"); {
	case c.Status.Allocation == nil:
	case old.Status.Allocation != nil:
		k.Immutable(at, c.Status.Allocation, old.Status.Allocation)
	default:
		k.allocation(at, c.Status.Allocation, requestNamesOf(&c.Spec.Devices))
	}
}

// reserved validates reservedFor.
func (k *validator) reserved(at *field.Path, c, old *resourcev1.ResourceClaim) {
	if len(c.Status.ReservedFor) == 0 {
		return
	}
	if c.Status.Allocation == nil {
		k.Forbidden(at, "may not be specified when `allocated` is not set")
		return
	}
	had := map[resourcev1.ResourceClaimConsumerReference]bool{}
	for _, r := range old.Status.ReservedFor {
		had[r] = true
	}
	for _, r := range c.Status.ReservedFor {
		if c.DeletionTimestamp != nil && !had[r] {
			k.Forbidden(at, "new entries may not be added while `deallocationRequested` or `deletionTimestamp` are set")
			return
		}
	}
}

func (k *validator) consumer(at *field.Path, r resourcev1.ResourceClaimConsumerReference) {
	for _, f := range []struct{ name, value string }{{"resource", r.Resource}, {"name", r.Name},
		{"uid", string(r.UID)}} {
		if f.value == "" {
			k.Required(at.Child(f.name), "")
		}
	}
}

// allocation validates a new allocation. An unchanged one is not validated again.
func (k *validator) allocation(at *field.Path, a *resourcev1.AllocationResult, names claimNames) {
	if at := at.Child("devices", "results"); k.atMost(at, len(a.Devices.Results), resourcev1.AllocationResultsMaxSize) {
		for i := range a.Devices.Results {
			k.allocatedDevice(at.Index(i), &a.Devices.Results[i], names)
		}
	}
	// The maximum of a class and a claim together.
	if at := at.Child("devices", "config"); k.atMost(at, len(a.Devices.Config), 2*resourcev1.DeviceConfigMaxSize) {
		for i := range a.Devices.Config {
			c, at := &a.Devices.Config[i], at.Index(i)
			rules.OneOf(
				k,
				at.Child("source"),
				c.Source,
				resourcev1.AllocationConfigSourceClaim,
				resourcev1.AllocationConfigSourceClass,
			)
			k.requestNames(at.Child("requests"), c.Requests, names)
			k.deviceConfig(at, &c.DeviceConfiguration, false)
		}
	}
	if a.NodeSelector != nil {
		k.AddAll(podspec.ValidateNodeSelector(at.Child("nodeSelector"), a.NodeSelector))
	}
}

func (k *validator) allocatedDevice(at *field.Path, r *resourcev1.DeviceRequestAllocationResult, names claimNames) {
	k.requestName(at.Child("request"), r.Request, names)
	k.driver(at.Child("driver"), r.Driver)
	k.pool(at.Child("pool"), r.Pool)
	k.label(at.Child("device"), r.Device)
	k.bindingConditions(at, r.BindingConditions, r.BindingFailureConditions)
	k.deviceTolerations(at.Child("tolerations"), r.Tolerations)
	if r.ShareID != nil {
		k.shareID(at.Child("shareID"), string(*r.ShareID))
	}
	k.skippedOperations(at.Child("skipNodeOperations"), r.SkipNodeOperations)
}

// bindingConditions validates the conditions that must be set before a pod is bound, and those that
// fail the binding.
func (k *validator) bindingConditions(at *field.Path, bindingConditions, failureConditions []string) {
	for _, list := range []struct {
		name  string
		names []string
		most  int
	}{{"bindingConditions", bindingConditions, resourcev1.BindingConditionsMaxSize},
		{"bindingFailureConditions", failureConditions, resourcev1.BindingFailureConditionsMaxSize}} {
		at := at.Child(list.name)
		if !k.atMost(at, len(list.names), list.most) {
			return
		}
		for i, name := range list.names {
			k.AddAll(metavalidation.ValidateLabelName(name, at.Index(i)))
		}
		distinct(k, at, list.names, identity)
	}
	conditions := map[string]bool{}
	for _, name := range bindingConditions {
		conditions[name] = true
	}
	for i, name := range failureConditions {
		if conditions[name] {
			k.Invalid(
				at.Child("bindingFailureConditions").Index(i),
				name,
				"bindingFailureConditions must not overlap with bindingConditions",
			)
		}
	}
	if len(bindingConditions) == 0 && len(failureConditions) > 0 {
		k.Invalid(at.Child("bindingConditions"), bindingConditions,
			"bindingConditions are required to use bindingFailureConditions")
	}
	if len(failureConditions) == 0 && len(bindingConditions) > 0 {
		k.Invalid(at.Child("bindingFailureConditions"), failureConditions,
			"bindingFailureConditions are required to use bindingConditions")
	}
}

// deviceStatus validates the status that a driver reports for a device.
func (k *validator) deviceStatus(at *field.Path, d *resourcev1.AllocatedDeviceStatus) {
	k.driver(at.Child("driver"), d.Driver)
	k.pool(at.Child("pool"), d.Pool)
	k.label(at.Child("device"), d.Device)
	if d.ShareID != nil {
		k.shareID(at.Child("shareID"), *d.ShareID)
	}
	k.conditions(at.Child("conditions"), d.Conditions, resourcev1.AllocatedDeviceStatusMaxConditions)
	if d.Data != nil && len(d.Data.Raw) > 0 {
		k.jsonObject(at.Child("data"), *d.Data, resourcev1.AllocatedDeviceStatusDataMaxLength)
	}
	n, at := d.NetworkData, at.Child("networkData")
	if n == nil {
		return
	}
	if len(n.InterfaceName) > resourcev1.NetworkDeviceDataInterfaceNameMaxLength {
		k.Add(field.TooLong(at.Child("interfaceName"), "", resourcev1.NetworkDeviceDataInterfaceNameMaxLength))
	}
	if len(n.HardwareAddress) > resourcev1.NetworkDeviceDataHardwareAddressMaxLength {
		k.Add(field.TooLong(at.Child("hardwareAddress"), "", resourcev1.NetworkDeviceDataHardwareAddressMaxLength))
	}
	if at := at.Child("ips"); k.atMost(at, len(n.IPs), resourcev1.NetworkDeviceDataMaxIPs) {
		for i, ip := range n.IPs {
			k.AddAll(validation.IsValidInterfaceAddress(at.Index(i), ip))
		}
		distinct(k, at, n.IPs, identity)
	}
}
