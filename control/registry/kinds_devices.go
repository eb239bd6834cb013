package registry

import (
	"context"
	"fmt"
	"strings"
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"

	"berth/control/validation"
)

// deviceKinds returns the kinds of dynamic resource allocation.
func deviceKinds() []*Kind {
	v1 := resourcev1.SchemeGroupVersion
	return []*Kind{
		{
			GroupVersion: v1, Resource: "deviceclasses", Singular: "deviceclass", ClusterScoped: true, Generation: true,
			New:               func() runtime.Object { return &resourcev1.DeviceClass{} },
			NewList:           func() runtime.Object { return &resourcev1.DeviceClassList{} },
			StoredOnlyWarning: storedOnlyWarning("device classes"),
		},
		{
			GroupVersion: v1, Resource: "resourceclaims", Singular: "resourceclaim", Status: true,
			New:     func() runtime.Object { return &resourcev1.ResourceClaim{} },
			NewList: func() runtime.Object { return &resourcev1.ResourceClaimList{} },
			PrepareStatus: func(_ context.Context, obj, old runtime.Object) {
				now, before := MustCast[*resourcev1.ResourceClaim](obj), MustCast[*resourcev1.ResourceClaim](old)
				now.Labels, now.Annotations = before.Labels, before.Annotations
				validation.DropDeallocatedDevices(&now.Status, &before.Status)
			},
			StoredOnlyWarning: storedOnlyWarning("resource claims"),
		},
		{
			GroupVersion: v1, Resource: "resourceclaimtemplates", Singular: "resourceclaimtemplate",
			New:               func() runtime.Object { return &resourcev1.ResourceClaimTemplate{} },
			NewList:           func() runtime.Object { return &resourcev1.ResourceClaimTemplateList{} },
			StoredOnlyWarning: storedOnlyWarning("resource claim templates"),
		},
		{
			GroupVersion: v1, Resource: "resourceslices", Singular: "resourceslice", ClusterScoped: true,
			Generation:    true,
			New:           func() runtime.Object { return &resourcev1.ResourceSlice{} },
			NewList:       func() runtime.Object { return &resourcev1.ResourceSliceList{} },
			Prepare:       func(_ context.Context, obj runtime.Object) { prepareSlice(obj) },
			PrepareUpdate: func(_ context.Context, obj, _ runtime.Object) { prepareSlice(obj) },
			Fields:        fieldsFunc(sliceFields), Warnings: driverNameWarnings,
			FieldNames: []string{
				resourcev1.ResourceSliceSelectorNodeName,
				resourcev1.ResourceSliceSelectorDriver,
				resourcev1.ResourceSliceSelectorPoolName,
			},
			StoredOnlyWarning: storedOnlyWarning("resource slices"),
		},
		{
			GroupVersion: v1, Resource: "devicetaintrules", Singular: "devicetaintrule", ClusterScoped: true,
			Status:     true,
			Generation: true, RequireResourceVersion: true,
			New:     func() runtime.Object { return &resourcev1.DeviceTaintRule{} },
			NewList: func() runtime.Object { return &resourcev1.DeviceTaintRuleList{} },
			Prepare: func(_ context.Context, obj runtime.Object) {
				setTaintTime(&MustCast[*resourcev1.DeviceTaintRule](obj).Spec.Taint)
			},
			PrepareUpdate: updateTaintTime,
			PrepareStatus: func(_ context.Context, obj, old runtime.Object) {
				now, before := MustCast[*resourcev1.DeviceTaintRule](obj), MustCast[*resourcev1.DeviceTaintRule](old)
				now.Labels, now.Annotations = before.Labels, before.Annotations
			},
			StoredOnlyWarning: storedOnlyWarning("device taint rules"),
		},
	}
}

func sliceFields(s *resourcev1.ResourceSlice) fields.Set {
	node := ""
	if s.Spec.NodeName != nil {
		node = *s.Spec.NodeName
	}
	return fields.Set{
		resourcev1.ResourceSliceSelectorNodeName: node,
		resourcev1.ResourceSliceSelectorDriver:   s.Spec.Driver,
		resourcev1.ResourceSliceSelectorPoolName: s.Spec.Pool.Name,
	}
}

func driverNameWarnings(obj runtime.Object) []string {
	driver := MustCast[*resourcev1.ResourceSlice](obj).Spec.Driver
	if driver == strings.ToLower(driver) {
		return nil
	}
	return []string{fmt.Sprintf("spec.driver: driver names should be lowercase; %q contains uppercase characters",
		driver)}
}

func setTaintTimes(s *resourcev1.ResourceSlice) {
	for i := range s.Spec.Devices {
		for j := range s.Spec.Devices[i].Taints {
			setTaintTime(&s.Spec.Devices[i].Taints[j])
		}
	}
}

// setTaintTime sets the time when a taint was added, in whole seconds as in its encoding.
func setTaintTime(t *resourcev1.DeviceTaint) {
	if t.TimeAdded == nil {
		t.TimeAdded = &metav1.Time{Time: time.Now().Truncate(time.Second)}
	}
}

// updateTaintTime resets the time if the effect of a rule changes, unless the client sets it:
// tolerations with a duration start again.
func updateTaintTime(_ context.Context, obj, old runtime.Object) {
	now, before := &MustCast[*resourcev1.DeviceTaintRule](obj).Spec.Taint, MustCast[*resourcev1.DeviceTaintRule](
		old,
	).Spec.Taint
	if now.Effect != before.Effect && now.TimeAdded.Equal(before.TimeAdded) {
		now.TimeAdded = nil
	}
	setTaintTime(now)
}

// prepareSlice clears the fields of alpha features, which are off, and sets the times of taints.
func prepareSlice(obj runtime.Object) {
	s := MustCast[*resourcev1.ResourceSlice](obj)
	s.Spec.SkipNodeOperations, s.Spec.PartitionTypeAttribute = nil, nil
	setTaintTimes(s)
}
