package registry

import (
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// fairnessKinds returns the kinds of API Priority and Fairness.
func fairnessKinds() []*Kind {
	v1 := flowcontrolv1.SchemeGroupVersion
	return []*Kind{
		{
			GroupVersion: v1, Resource: "flowschemas", Singular: "flowschema", ClusterScoped: true,
			Status: true, Generation: true,
			New:     func() runtime.Object { return &flowcontrolv1.FlowSchema{} },
			NewList: func() runtime.Object { return &flowcontrolv1.FlowSchemaList{} },
		},
		{
			GroupVersion: v1, Resource: "prioritylevelconfigurations", Singular: "prioritylevelconfiguration",
			ClusterScoped: true, Status: true, Generation: true,
			New:     func() runtime.Object { return &flowcontrolv1.PriorityLevelConfiguration{} },
			NewList: func() runtime.Object { return &flowcontrolv1.PriorityLevelConfigurationList{} },
		},
	}
}
