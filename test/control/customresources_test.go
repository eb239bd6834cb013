package control

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
)

// gadgetDefinition is a definition with two versions.
const gadgetDefinition = `apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: gadgets.GROUP}
spec:
  group: GROUP
  scope: Namespaced
  names: {plural: gadgets, singular: gadget, kind: Gadget}
  versions:
  - name: v1
    served: true
    storage: true
    subresources:
      status: {}
      scale: {specReplicasPath: .spec.replicas, statusReplicasPath: .status.replicas}
    selectableFields: [{jsonPath: .spec.size}]
    additionalPrinterColumns:
    - {name: Size, type: string, jsonPath: .spec.size}
    - {name: Replicas, type: integer, jsonPath: .spec.replicas}
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec:
            type: object
            description: What the gadget is made of.
            x-kubernetes-validations:
            - {rule: "self.replicas <= 5", message: too many replicas}
            properties:
              replicas: {type: integer, default: 1}
              size: {type: string, enum: [small, large]}
              parts:
                type: array
                x-kubernetes-list-type: map
                x-kubernetes-list-map-keys: [name]
                items:
                  type: object
                  required: [name]
                  properties: {name: {type: string}, count: {type: integer}}
          status:
            type: object
            properties: {replicas: {type: integer}}
  - name: v1beta1
    served: true
    storage: false
    schema:
      openAPIV3Schema:
        type: object
        properties: {spec: {type: object, x-kubernetes-preserve-unknown-fields: true}}
`

// gadgetNames makes the kind of the only definition that has them known to kubectl by a short name and a category.
const gadgetNames = "kind: Gadget, shortNames: [gd], categories: [all]}"

// defineGadgets creates the definition of gadgets in a group of its own.
func defineGadgets(t *testing.T, s *Server, group, definition string) {
	t.Helper()
	s.Apply(t, strings.ReplaceAll(definition, "GROUP", group))
	s.Kubectl(t, "wait", "--for=condition=Established", "crd/gadgets."+group, "--timeout=60s")
}

// gadget returns a manifest.
func gadget(group, name, spec string) string {
	return fmt.Sprintf("apiVersion: %s/v1\nkind: Gadget\nmetadata: {name: %s}\nspec: %s\n", group, name, spec)
}

// requireOutput fails the test unless the output of kubectl contains all texts.
func requireOutput(t *testing.T, out string, want ...string) {
	t.Helper()
	for _, text := range want {
		if !strings.Contains(normalizeSpaces(out), text) {
			t.Errorf("got %q, want %q in it", out, text)
		}
	}
}

// TestCustomResources uses a custom resource with all features of kubectl.
func TestCustomResources(t *testing.T) {
	t.Parallel()
	s := Shared(t)
	const group = "kubectl.example.com"
	definition := strings.Replace(gadgetDefinition, "kind: Gadget}", gadgetNames, 1)
	defineGadgets(t, s, group, definition)
	s.Apply(t, gadget(group, "one", "{size: large}"))
	requireOutput(t, s.Kubectl(t, "get", "gd"), "NAME SIZE REPLICAS", "one large 1")
	requireOutput(t, s.Kubectl(t, "get", "all"), "gadget."+group+"/one large 1")
	requireOutput(t, s.Kubectl(t, "get", "gd", "--field-selector", "spec.size=small"), "No resources found")
	requireOutput(t, s.Kubectl(t, "get", "gadgets.v1beta1."+group, "one", "-o", "yaml"), group+"/v1beta1")
	requireOutput(t, s.Kubectl(t, "explain", "gd.spec"), "What the gadget is made of.", "parts")
	requireOutput(t, s.Kubectl(t, "explain", "crd.spec.versions.selectableFields"), "jsonPath")
	requireOutput(t, s.Kubectl(t, "api-resources", "--api-group="+group), "gadgets gd "+group+"/v1 true Gadget")
	requireOutput(t, s.Kubectl(t, "get", "--raw", "/apis/"+group+"/v1"), `"name":"gadgets/scale"`)
	requireOutput(t, s.Kubectl(t, "get", "--raw", "/apis/"+group), `"preferredVersion":{"groupVersion":"`+group+`/v1"`)
	requireOutput(t, s.Kubectl(t, "get", "--raw", "/openapi/v2"), "com.example.kubectl.v1.Gadget",
		"io.k8s.api.core.v1.Pod")
	rejected := func(want, manifest string, args ...string) {
		t.Helper()
		out, err := s.TryKubectl(t, manifest, append([]string{"apply", "-f", "-"}, args...)...)
		if err == nil {
			t.Errorf("accepted: %s", manifest)
		}
		requireOutput(t, out, want)
	}
	rejected("too many replicas", gadget(group, "two", "{replicas: 6}"))
	rejected(`Unsupported value: "huge"`, gadget(group, "two", "{size: huge}"))
	rejected(`unknown field "spec.bogus"`, gadget(group, "two", "{bogus: 1}"))
	requireOutput(t, s.Apply(t, gadget(group, "two", "{bogus: 1}"), "--validate=warn"),
		`Warning: unknown field "spec.bogus"`)
	if out := s.Kubectl(t, "get", "gd", "two", "-o", "jsonpath={.spec}"); out != `{"replicas":1}` {
		t.Errorf("spec of an object with an unknown field: got %s, want it without", out)
	}
	s.Kubectl(t, "scale", "gd/one", "--replicas=3")
	s.Kubectl(t, "patch", "gd/one", "--subresource=status", "--type=merge", "-p",
		`{"spec":{"size":"small"},"status":{"replicas":2}}`)
	if out := s.Kubectl(t, "get", "gd", "one", "-o", "jsonpath={.spec} {.status}"); out !=
		`{"replicas":3,"size":"large"} {"replicas":2}` {
		t.Errorf("after scale and status: got %s", out)
	}
	s.Apply(t, gadget(group, "one", "{parts: [{name: a, count: 1}]}"), "--server-side", "--field-manager=first")
	s.Apply(t, gadget(group, "one", "{parts: [{name: b, count: 1}]}"), "--server-side", "--field-manager=second")
	if out := s.Kubectl(t, "get", "gd", "one", "-o", "jsonpath={.spec.parts[*].name}"); out != "a b" {
		t.Errorf("parts of two field managers: got %q, want a b", out)
	}
	rejected(`conflict with "second"`, gadget(group, "one", "{parts: [{name: b, count: 2}]}"), "--server-side",
		"--field-manager=first")

	// An object that a stricter schema rejects can still be changed elsewhere, but not there.
	s.Apply(t, strings.ReplaceAll(strings.Replace(definition, "[small, large]", "[small]", 1), "GROUP", group))
	eventually(t, "the stricter schema", func() (bool, string) {
		out, err := s.TryKubectl(t, gadget(group, "three", "{size: large}"), "create", "--dry-run=server", "-f", "-")
		return err != nil && strings.Contains(out, "Unsupported value"), out
	})
	s.Kubectl(t, "label", "gd/one", "changed=true")
	if out, err := s.TryKubectl(t, "", "patch", "gd/one", "--type=merge", "-p",
		`{"spec":{"size":"huge"}}`); err == nil {
		t.Errorf("invalid change accepted: %s", out)
	}
	s.Kubectl(t, "delete", "crd", "gadgets."+group)
	if out, err := s.TryKubectl(t, "", "get", "gadgets."+group); err == nil {
		t.Errorf("get after the deletion of the definition: got %s", out)
	}
	eventually(t, "the group to vanish", func() (bool, string) {
		out := s.Kubectl(t, "get", "--raw", "/apis")
		return !strings.Contains(out, group), out
	})
	defineGadgets(t, s, group, definition)
	requireOutput(t, s.Kubectl(t, "get", "gd"), "No resources found")
	s.Kubectl(t, "delete", "crd", "gadgets."+group)
}

// TestControllersFollowDefinitions checks that controllers and RBAC handle a kind that is defined while
// they run.
func TestControllersFollowDefinitions(t *testing.T) {
	t.Parallel()
	s := Shared(t)
	const group, gadgets = "controllers.example.com", "gadgets.controllers.example.com"
	defineGadgets(t, s, group, gadgetDefinition)
	gone := func(what ...string) {
		t.Helper()
		eventually(t, strings.Join(what, " ")+" to be deleted", func() (bool, string) {
			out, err := s.TryKubectl(t, "", append([]string{"get"}, what...)...)
			return err != nil && strings.Contains(out, "NotFound"), out
		})
	}
	uid := func(what ...string) string {
		t.Helper()
		return s.Kubectl(t, append([]string{"get", "-o", "jsonpath={.metadata.uid}"}, what...)...)
	}
	own := func(what, apiVersion, kind, name, uid string) {
		t.Helper()
		s.Kubectl(t, "patch", what, "--type=merge", "-p", fmt.Sprintf(
			`{"metadata":{"ownerReferences":[{"apiVersion":%q,"kind":%q,"name":%q,"uid":%q}]}}`, apiVersion, kind,
			name, uid))
	}
	s.Apply(t, gadget(group, "owner", "{}")+"---\n"+gadget(group, "dependent", "{}")+"---\n"+
		gadget(group, "last", "{}"))
	for _, name := range []string{"of-gadget", "of-last", "owner"} {
		s.Kubectl(t, "create", "configmap", name)
	}
	own("configmap/of-gadget", group+"/v1", "Gadget", "owner", uid(gadgets, "owner"))
	own("configmap/of-last", group+"/v1beta1", "Gadget", "last", uid(gadgets, "last"))
	own(gadgets+"/dependent", "v1", "ConfigMap", "owner", uid("configmap", "owner"))
	s.Kubectl(t, "delete", gadgets+"/owner", "configmap/owner")
	gone("configmap/of-gadget")
	gone(gadgets + "/dependent")

	s.Apply(t, fmt.Sprintf("apiVersion: v1\nkind: ResourceQuota\nmetadata: {name: q}\n"+
		"spec: {hard: {count/gadgets.%s: 2}}\n",
		group))
	used := func(want string) {
		t.Helper()
		eventually(t, "a usage of "+want, func() (bool, string) {
			out := s.Kubectl(t, "get", "quota", "q", "-o", "jsonpath={.status.used}")
			return strings.Contains(out, `:"`+want+`"`), out
		})
	}
	used("1")
	s.Apply(t, gadget(group, "second", "{}"))
	if out, err := s.TryKubectl(t, gadget(group, "third", "{}"), "create", "-f", "-"); err == nil {
		t.Errorf("created beyond the quota: %s", out)
	} else {
		requireOutput(t, out, "exceeded quota: q")
	}
	s.Kubectl(t, "delete", gadgets+"/second")
	used("1")

	const reader = "--as=system:serviceaccount:default:gadget-reader"
	if out, err := s.TryKubectl(t, "", "get", gadgets, reader); err == nil {
		t.Errorf("read without permission: %s", out)
	}
	s.Kubectl(t, "create", "role", "gadget-reader", "--verb=list", "--resource=gadgets."+group)
	s.Kubectl(t, "create", "rolebinding", "gadget-reader", "--role=gadget-reader",
		"--serviceaccount=default:gadget-reader")
	eventually(t, "the permission", func() (bool, string) {
		out, err := s.TryKubectl(t, "", "get", gadgets, reader)
		return err == nil, out
	})

	s.Kubectl(t, "create", "namespace", "gadgets")
	s.Apply(t, gadget(group, "held", "{}"), "-n", "gadgets")
	s.Kubectl(t, "-n", "gadgets", "patch", gadgets+"/held", "--type=merge", "-p",
		`{"metadata":{"finalizers":["example.com/hold"]}}`)
	s.Kubectl(t, "delete", "namespace", "gadgets", "--wait=false")
	eventually(t, "the namespace to report the finalizer", func() (bool, string) {
		out := s.Kubectl(t, "get", "namespace", "gadgets", "-o", "jsonpath={.status.conditions[*].message}")
		return strings.Contains(out, gadgets+" has 1 resource instances") &&
			strings.Contains(out, "example.com/hold in 1 resource instances"), out
	})
	s.Kubectl(t, "-n", "gadgets", "patch", gadgets+"/held", "--type=merge", "-p", `{"metadata":{"finalizers":null}}`)
	gone("namespace/gadgets")

	s.Kubectl(t, "delete", "crd", gadgets) // waits until its objects are deleted
	gone("configmap/of-last")
}

// TestConversionWebhook converts objects by a webhook that is given by its URL and by a Service.
func TestConversionWebhook(t *testing.T) {
	t.Parallel()
	s := Shared(t)
	hook := startWebhook(t, http.HandlerFunc(convert), "converter."+s.Namespace+".svc")
	hook.asService(t, s, "converter")
	for group, client := range map[string]apiextensionsv1.WebhookClientConfig{
		"url.example.com":     {URL: new(hook.url())},
		"service.example.com": {Service: &apiextensionsv1.ServiceReference{Namespace: s.Namespace, Name: "converter"}},
	} {
		t.Run(group, func(t *testing.T) {
			t.Parallel()
			client.CABundle = hook.caBundle
			conversion, err := json.Marshal(apiextensionsv1.CustomResourceConversion{
				Strategy: apiextensionsv1.WebhookConverter,
				Webhook: &apiextensionsv1.WebhookConversion{ClientConfig: &client,
					ConversionReviewVersions: []string{"v1"}},
			})
			if err != nil {
				t.Fatal(err)
			}
			definition := strings.ReplaceAll(gadgetDefinition, "GROUP", group)
			s.Apply(t, strings.Replace(definition, "  versions:",
				"  conversion: "+string(conversion)+"\n  versions:", 1))
			s.Kubectl(t, "wait", "--for=condition=Established", "crd/gadgets."+group, "--timeout=60s")
			s.Apply(t, gadget(group, "one", "{size: large}"))
			if out := s.Kubectl(t, "get", "gadgets.v1beta1."+group, "one", "-o",
				"jsonpath={.apiVersion} {.spec.size}"); out != group+"/v1beta1 small" {
				t.Errorf("converted object: got %q, want the size small", out)
			}
			s.Kubectl(t, "delete", "crd", "gadgets."+group)
		})
	}
}

// convert is a conversion webhook that makes gadgets of v1beta1 small.
func convert(w http.ResponseWriter, r *http.Request) {
	review := apiextensionsv1.ConversionReview{}
	if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	response := apiextensionsv1.ConversionResponse{
		UID: review.Request.UID, Result: metav1.Status{Status: metav1.StatusSuccess}}
	for _, raw := range review.Request.Objects {
		object := unstructured.Unstructured{}
		if err := object.UnmarshalJSON(raw.Raw); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		object.SetAPIVersion(review.Request.DesiredAPIVersion)
		if strings.HasSuffix(object.GetAPIVersion(), "/v1beta1") {
			_ = unstructured.SetNestedField(object.Object, "small", "spec", "size") // a gadget has a spec
		}
		response.ConvertedObjects = append(response.ConvertedObjects, runtime.RawExtension{Object: &object})
	}
	review.Request, review.Response = nil, &response
	_ = json.NewEncoder(w).Encode(review) // a failure is one of the connection
}
