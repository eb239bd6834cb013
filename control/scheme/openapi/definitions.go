package openapi

import (
	"maps"
	"strings"

	apiextensions "k8s.io/apiextensions-apiserver/pkg/generated/openapi"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	aggregator "k8s.io/kube-aggregator/pkg/generated/openapi"
	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/validation/spec"

	v1 "berth/services/policy/addresses/v1"
)

// apiextensionsPrefix is the prefix of the definitions of CustomResourceDefinitions.
const apiextensionsPrefix = "io.k8s.apiextensions-apiserver."

// aggregatorPrefix is the prefix of the definitions of APIServices.
const aggregatorPrefix = "io.k8s.kube-aggregator."

// Definitions returns the generated definitions, those of berth's own API groups, and those of
// CustomResourceDefinitions.
func Definitions(ref common.ReferenceCallback) map[string]common.OpenAPIDefinition {
	text := func(description string) spec.Schema {
		return spec.Schema{SchemaProps: spec.SchemaProps{Description: description, Type: []string{"string"}}}
	}
	number := func(description string) spec.Schema {
		return spec.Schema{SchemaProps: spec.SchemaProps{
			Description: description, Type: []string{"integer"}, Format: "int32"}}
	}
	list := func(description string, items spec.SchemaProps) spec.Schema {
		return spec.Schema{SchemaProps: spec.SchemaProps{
			Description: description, Type: []string{"array"},
			Items: &spec.SchemaOrArray{Schema: &spec.Schema{SchemaProps: items}},
		}}
	}
	meta := func(name string) spec.Schema {
		return spec.Schema{SchemaProps: spec.SchemaProps{Default: map[string]any{}, Ref: ref(name)}}
	}
	object := func(description string, properties map[string]spec.Schema, uses ...string) common.OpenAPIDefinition {
		return common.OpenAPIDefinition{
			Schema: spec.Schema{SchemaProps: spec.SchemaProps{
				Description: description, Type: []string{"object"}, Properties: properties}},
			Dependencies: uses,
		}
	}
	one, member, port := v1.NetworkPolicyAddresses{}.OpenAPIModelName(), v1.Member{}.OpenAPIModelName(),
		v1.Port{}.OpenAPIModelName()
	objectMeta, listMeta := metav1.ObjectMeta{}.OpenAPIModelName(), metav1.ListMeta{}.OpenAPIModelName()
	all := maps.Clone(GetOpenAPIDefinitions(ref))
	all[one] = object("NetworkPolicyAddresses has the addresses of pods that peers of NetworkPolicies select.",
		map[string]spec.Schema{
			"kind": text("Kind of the object."), "apiVersion": text("Version of the API."),
			"metadata": meta(objectMeta),
			"group":    text("Selectors of the peers."), "slice": number("Number of the object in its group."),
			"members": list("Pods of the group.", spec.SchemaProps{Default: map[string]any{}, Ref: ref(member)}),
		}, objectMeta, member)
	all[v1.NetworkPolicyAddressesList{}.OpenAPIModelName()] = object("List of NetworkPolicyAddresses.",
		map[string]spec.Schema{
			"kind": text("Kind of the object."), "apiVersion": text("Version of the API."), "metadata": meta(listMeta),
			"items": list("The objects.", spec.SchemaProps{Default: map[string]any{}, Ref: ref(one)}),
		}, listMeta, one)
	all[member] = object("Member is a pod of a group.", map[string]spec.Schema{
		"namespace": text("Namespace of the pod."), "name": text("Name of the pod."),
		"addresses": list("Addresses of the pod.", spec.SchemaProps{Type: []string{"string"}}),
		"ports":     list("Named ports of the pod.", spec.SchemaProps{Default: map[string]any{}, Ref: ref(port)}),
	}, port)
	all[port] = object("Port is a container port with a name.", map[string]spec.Schema{
		"name": text("Name of the port."), "protocol": text("TCP, UDP or SCTP."), "port": number("Number of the port."),
	})
	for name, definition := range apiextensions.GetOpenAPIDefinitions(ref) {
		if strings.HasPrefix(name, apiextensionsPrefix) {
			all[name] = definition
		}
	}
	for name, definition := range aggregator.GetOpenAPIDefinitions(ref) {
		if strings.HasPrefix(name, aggregatorPrefix) {
			all[name] = definition
		}
	}
	return all
}
