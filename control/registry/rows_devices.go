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

// devices are the kinds of dynamic resource allocation.
func devices() []*Kind {
	v1 := resourcev1.SchemeGroupVersion
	return []*Kind{
		{
			Version: v1, Resource: "deviceclasses", Singular: "deviceclass", Cluster: true, Generation: true,
			New: func() runtime.Object { return &resourcev1.DeviceClass{} }, NewList: func() runtime.Object { return &resourcev1.DeviceClassList{} },
			Unacted: storedOnly("device classes"),
		},
		{
			Version: v1, Resource: "resourceclaims", Singular: "resourceclaim", Status: true,
			New: func() runtime.Object { return &resourcev1.ResourceClaim{} }, NewList: func() runtime.Object { return &resourcev1.ResourceClaimList{} },
			PrepareStatus: func(_ context.Context, obj, old runtime.Object) {
				now, before := As[*resourcev1.ResourceClaim](obj), As[*resourcev1.ResourceClaim](old)
				now.Labels, now.Annotations = before.Labels, before.Annotations
				validation.ForgetDeallocated(&now.Status, &before.Status)
			},
			Unacted: storedOnly("resource claims"),
		},
		{
			Version: v1, Resource: "resourceclaimtemplates", Singular: "resourceclaimtemplate",
			New: func() runtime.Object { return &resourcev1.ResourceClaimTemplate{} }, NewList: func() runtime.Object { return &resourcev1.ResourceClaimTemplateList{} },
			Unacted: storedOnly("resource claim templates"),
		},
		{
			Version: v1, Resource: "resourceslices", Singular: "resourceslice", Cluster: true, Generation: true,
			New: func() runtime.Object { return &resourcev1.ResourceSlice{} }, NewList: func() runtime.Object { return &resourcev1.ResourceSliceList{} },
			Prepare:       func(_ context.Context, obj runtime.Object) { timeTaints(As[*resourcev1.ResourceSlice](obj)) },
			PrepareUpdate: func(_ context.Context, obj, _ runtime.Object) { timeTaints(As[*resourcev1.ResourceSlice](obj)) },
			Fields:        selectable(sliceFields), Warn: warnDriver,
			FieldNames: []string{resourcev1.ResourceSliceSelectorNodeName, resourcev1.ResourceSliceSelectorDriver, resourcev1.ResourceSliceSelectorPoolName},
			Unacted:    storedOnly("resource slices"),
		},
		{
			Version: v1, Resource: "devicetaintrules", Singular: "devicetaintrule", Cluster: true, Status: true, Generation: true, VersionedPut: true,
			New: func() runtime.Object { return &resourcev1.DeviceTaintRule{} }, NewList: func() runtime.Object { return &resourcev1.DeviceTaintRuleList{} },
			Prepare: func(_ context.Context, obj runtime.Object) {
				timeTaint(&As[*resourcev1.DeviceTaintRule](obj).Spec.Taint)
			},
			PrepareUpdate: retimeTaint,
			PrepareStatus: func(_ context.Context, obj, old runtime.Object) {
				now, before := As[*resourcev1.DeviceTaintRule](obj), As[*resourcev1.DeviceTaintRule](old)
				now.Labels, now.Annotations = before.Labels, before.Annotations
			},
			Unacted: storedOnly("device taint rules"),
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

func warnDriver(obj runtime.Object) []string {
	driver := As[*resourcev1.ResourceSlice](obj).Spec.Driver
	if driver == strings.ToLower(driver) {
		return nil
	}
	return []string{fmt.Sprintf("spec.driver: driver names should be lowercase; %q contains uppercase characters", driver)}
}

func timeTaints(s *resourcev1.ResourceSlice) {
	for i := range s.Spec.Devices {
		for j := range s.Spec.Devices[i].Taints {
			timeTaint(&s.Spec.Devices[i].Taints[j])
		}
	}
}

// timeTaint notes when a taint was added, in whole seconds as it is written.
func timeTaint(t *resourcev1.DeviceTaint) {
	if t.TimeAdded == nil {
		t.TimeAdded = &metav1.Time{Time: time.Now().Truncate(time.Second)}
	}
}

// retimeTaint counts the time from the change of a rule's effect on, unless the
// client says from when: tolerations last as long from then.
func retimeTaint(_ context.Context, obj, old runtime.Object) {
	now, before := &As[*resourcev1.DeviceTaintRule](obj).Spec.Taint, As[*resourcev1.DeviceTaintRule](old).Spec.Taint
	if now.Effect != before.Effect && now.TimeAdded.Equal(before.TimeAdded) {
		now.TimeAdded = nil
	}
	timeTaint(now)
}
