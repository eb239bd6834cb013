package v1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Names of the API group and of its resource.
const (
	GroupName = "policies.berth.dev"
	Resource  = "networkpolicyaddresses"
)

// GroupVersion is the version of the API group.
var GroupVersion = schema.GroupVersion{Group: GroupName, Version: "v1"}

// NetworkPolicyAddresses has the addresses of some of the pods that peers of NetworkPolicies select.
// Equal peers of all policies are one group, whose pods are spread over objects with the same group.
//
//nolint:recvcheck // as in all API types
type NetworkPolicyAddresses struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"` //nolint:modernize // as in all API types

	// Group identifies the group by its selectors.
	Group string `json:"group"`
	// Slice is the number of the object in its group. A group has a slice 0 also without pods. That
	// of a new group appears after the others, so that the group is complete when it exists.
	Slice int32 `json:"slice"`
	// Members are the pods, sorted by namespace and name.
	Members []Member `json:"members,omitempty"`
}

// Member is a pod of a group.
type Member struct {
	Namespace string   `json:"namespace"`
	Name      string   `json:"name"`
	Addresses []string `json:"addresses"`
	// Ports are the named ports of the pod's containers.
	Ports []Port `json:"ports,omitempty"`
}

// Port is a container port with a name.
type Port struct {
	Name     string `json:"name"`
	Protocol string `json:"protocol"`
	Port     int32  `json:"port"`
}

// NetworkPolicyAddressesList is a list of NetworkPolicyAddresses.
//
//nolint:recvcheck // as in all API types
type NetworkPolicyAddressesList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"` //nolint:modernize // as in all API types

	Items []NetworkPolicyAddresses `json:"items"`
}

// AddToScheme registers the types.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion, &NetworkPolicyAddresses{}, &NetworkPolicyAddressesList{})
	metav1.AddToGroupVersion(s, GroupVersion)
	return nil
}

// DeepCopyInto copies the object.
func (in *NetworkPolicyAddresses) DeepCopyInto(out *NetworkPolicyAddresses) {
	*out = *in
	in.ObjectMeta.DeepCopyInto(&out.ObjectMeta)
	if in.Members == nil {
		return
	}
	out.Members = make([]Member, len(in.Members))
	for i, m := range in.Members {
		m.Addresses = append([]string(nil), m.Addresses...)
		m.Ports = append([]Port(nil), m.Ports...)
		out.Members[i] = m
	}
}

// DeepCopyObject implements runtime.Object.
func (in *NetworkPolicyAddresses) DeepCopyObject() runtime.Object {
	out := &NetworkPolicyAddresses{}
	in.DeepCopyInto(out)
	return out
}

// DeepCopyObject implements runtime.Object.
func (in *NetworkPolicyAddressesList) DeepCopyObject() runtime.Object {
	out := &NetworkPolicyAddressesList{TypeMeta: in.TypeMeta}
	in.ListMeta.DeepCopyInto(&out.ListMeta)
	if in.Items != nil {
		out.Items = make([]NetworkPolicyAddresses, len(in.Items))
	}
	for i := range in.Items {
		in.Items[i].DeepCopyInto(&out.Items[i])
	}
	return out
}

// modelPrefix starts the names of the types in OpenAPI documents.
const modelPrefix = "dev.berth.policies.v1."

// OpenAPIModelName returns the name of the type in OpenAPI documents.
func (NetworkPolicyAddresses) OpenAPIModelName() string {
	return modelPrefix + "NetworkPolicyAddresses"
}

// OpenAPIModelName returns the name of the type in OpenAPI documents.
func (NetworkPolicyAddressesList) OpenAPIModelName() string {
	return modelPrefix + "NetworkPolicyAddressesList"
}

// OpenAPIModelName returns the name of the type in OpenAPI documents.
func (Member) OpenAPIModelName() string { return modelPrefix + "Member" }

// OpenAPIModelName returns the name of the type in OpenAPI documents.
func (Port) OpenAPIModelName() string { return modelPrefix + "Port" }
