package control

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	restclient "k8s.io/client-go/rest"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/yaml"
)

// kindLifecycle describes the operations on objects of one kind, from creation to deletion.
type kindLifecycle struct {
	kind, resource string // with group and version after a "/"
	pluralName     string // plural name in the warning that the server only stores the kind
	namespaced     bool
	spec           string // rest of the manifest, YAML
	want           string // expected field: path with dots, = and value
	patch          string // merge patch of the spec; "" if it is immutable
	wantPatched    string // expected field after the patch
	status         string // merge patch of the status; "" without status
	wantStatus     string // expected field after the status patch
	invalidSpec    string // replaces spec; the server rejects it
	rejectedField  string // path of the rejected field
	controlled     bool   // a controller acts on the kind: create returns no warning
}

var deviceKinds = []kindLifecycle{
	{
		kind: "DeviceClass/resource.k8s.io/v1", resource: "deviceclasses", pluralName: "device classes",
		spec:  `spec: {selectors: [{cel: {expression: 'device.driver == "gpu.example.com"'}}]}`,
		want:  "metadata.generation=1",
		patch: `{"spec":{"extendedResourceName":"example.com/gpu"}}`, wantPatched: "metadata.generation=2",
		invalidSpec:   `spec: {selectors: [{cel: {expression: 'device.driver =='}}]}`,
		rejectedField: "spec.selectors[0].cel.expression",
	},
	{
		kind: "ResourceClaim/resource.k8s.io/v1", resource: "resourceclaims", pluralName: "resource claims",
		namespaced: true,
		spec:       `spec: {devices: {requests: [{name: gpu, exactly: {deviceClassName: gpu}}]}}`,
		want:       "spec.devices.requests.0.exactly.allocationMode=ExactCount",
		status: `{"status":{"allocation":{"devices":{"results":[
			{"request":"gpu","driver":"gpu.example.com","pool":"n1","device":"gpu-0"}]}},
			"reservedFor":[{"resource":"pods","name":"p","uid":"u"}],
			"devices":[{"driver":"gpu.example.com","pool":"n1","device":"gpu-0","data":{"a":"b"}}]}}`,
		wantStatus:    "status.devices.0.data.a=b",
		invalidSpec:   `spec: {devices: {requests: [{name: gpu, exactly: {deviceClassName: gpu, count: -1}}]}}`,
		rejectedField: "spec.devices.requests[0].exactly.count",
	},
	{
		kind: "ResourceClaimTemplate/resource.k8s.io/v1", resource: "resourceclaimtemplates",
		pluralName: "resource claim templates", namespaced: true,
		spec: `spec: {metadata: {labels: {a: b}}, spec: {devices: {requests: [{name: gpu, firstAvailable: ` +
			`[{name: big, deviceClassName: gpu}]}]}}}`,
		want:          "spec.spec.devices.requests.0.firstAvailable.0.count=1",
		invalidSpec:   `spec: {metadata: {name: own}, spec: {devices: {requests: []}}}`,
		rejectedField: "spec.metadata.name",
	},
	{
		kind: "ResourceSlice/resource.k8s.io/v1", resource: "resourceslices", pluralName: "resource slices",
		spec: `spec: {driver: gpu.example.com, nodeName: n1, pool: {name: n1, generation: 1, resourceSliceCount: 1}, ` +
			`devices: [{name: gpu-0, attributes: {model: {string: A}}, capacity: {memory: {value: 80Gi}}}]}`,
		want: "metadata.generation=1", patch: `{"spec":{"pool":{"generation":2}}}`,
		wantPatched:   "metadata.generation=2",
		invalidSpec:   `spec: {driver: gpu.example.com, pool: {name: n1, generation: 1, resourceSliceCount: 1}}`,
		rejectedField: "spec",
	},
	{
		kind: "DeviceTaintRule/resource.k8s.io/v1", resource: "devicetaintrules", pluralName: "device taint rules",
		spec:  `spec: {deviceSelector: {driver: gpu.example.com}, taint: {key: example.com/broken, effect: None}}`,
		want:  "metadata.generation=1",
		patch: `{"spec":{"taint":{"effect":"NoSchedule"}}}`, wantPatched: "spec.taint.effect=NoSchedule",
		status: `{"status":{"conditions":[{"type":"EvictionInProgress","status":"False",` +
			`"reason":"None","message":"","lastTransitionTime":"2026-01-01T00:00:00Z"}]}}`,
		wantStatus:  "status.conditions.0.status=False",
		invalidSpec: `spec: {taint: {key: a, effect: PreferNoSchedule}}`, rejectedField: "spec.taint.effect",
	},
	{
		kind: "VolumeAttributesClass/storage.k8s.io/v1", resource: "volumeattributesclasses",
		pluralName: "volume attributes classes",
		spec:       `{driverName: disk.example.com, parameters: {iops: "3000"}}`, want: "parameters.iops=3000",
		invalidSpec: `{driverName: disk.example.com}`, rejectedField: "parameters", controlled: true,
	},
	{
		kind: "StorageVersionMigration/storagemigration.k8s.io/v1", resource: "storageversionmigrations",
		pluralName: "storage version migrations",
		// The controller sets status once and then leaves the object alone, because the resource does not exist.
		spec: `spec: {resource: {group: none.example.com, resource: things}}`, want: "spec.resource.resource=things",
		invalidSpec:   `spec: {resource: {group: apps}}`,
		rejectedField: "spec.resource.resource",
		controlled:    true,
	},
}

// lifecycleTest runs the operations of a kindLifecycle. client is all, or its view of the namespace for
// a namespaced kind.
type lifecycleTest struct {
	kindLifecycle
	t           *testing.T
	namespace   string
	all, client dynamic.ResourceInterface
	warnings    *warningRecorder
}

// warningRecorder records the warnings in API responses.
type warningRecorder struct {
	mu    sync.Mutex
	texts []string
}

func (w *warningRecorder) HandleWarningHeader(_ int, _, text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.texts = append(w.texts, text)
}

func (w *warningRecorder) all() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.texts)
}

// TestDeviceKindsLifecycle runs all API operations on the kinds of resource.k8s.io, on VolumeAttributesClass and on
// StorageVersionMigration.
func TestDeviceKindsLifecycle(t *testing.T) {
	t.Parallel()
	for _, l := range deviceKinds {
		t.Run(l.resource, func(t *testing.T) {
			t.Parallel()
			s := Shared(t)
			warned := &warningRecorder{}
			config := restclient.CopyConfig(s.Config)
			config.WarningHandler = warned
			client, err := dynamic.NewForConfig(config)
			if err != nil {
				t.Fatal(err)
			}
			_, version, _ := strings.Cut(l.kind, "/")
			gv, _ := schema.ParseGroupVersion(version)
			all := client.Resource(gv.WithResource(l.resource))
			p := &lifecycleTest{l, t, s.Namespace, all, all, warned}
			if l.namespaced {
				p.client = all.Namespace(s.Namespace)
			}
			p.run()
		})
	}
}

// manifest returns an object with the given fields. Its name starts with the namespace, because some
// kinds are cluster-scoped.
func (p *lifecycleTest) manifest(name, rest string) *unstructured.Unstructured {
	p.t.Helper()
	kind, version, _ := strings.Cut(p.kind, "/")
	o := map[string]any{}
	if err := yaml.Unmarshal([]byte(rest), &o); err != nil {
		p.t.Fatal(err)
	}
	u := &unstructured.Unstructured{Object: o}
	u.SetAPIVersion(version)
	u.SetKind(kind)
	u.SetName(p.namespace + "-" + name)
	u.SetLabels(map[string]string{"test": p.namespace, "name": name})
	return u
}

// requireField checks a field: "path=value", with dots between the names and indexes of the path.
func (p *lifecycleTest) requireField(u *unstructured.Unstructured, want string) {
	p.t.Helper()
	path, value, _ := strings.Cut(want, "=")
	var at any = u.Object
	for name := range strings.SplitSeq(path, ".") {
		switch v := at.(type) {
		case map[string]any:
			at = v[name]
		case []any:
			var i int
			if _, err := fmt.Sscan(name, &i); err != nil || i >= len(v) {
				p.t.Fatalf("missing %s in %v", path, u.Object)
			}
			at = v[i]
		}
	}
	if fmt.Sprint(at) != value {
		text, _ := json.Marshal(u.Object)
		p.t.Fatalf("%s: got %v, want %s, in\n%s", path, at, value, text)
	}
}

func (p *lifecycleTest) must(u *unstructured.Unstructured, err error) *unstructured.Unstructured {
	p.t.Helper()
	if err != nil {
		p.t.Fatal(err)
	}
	return u
}

// listNames returns the sorted names of the selected objects, without their prefix.
func (p *lifecycleTest) listNames(from dynamic.ResourceInterface, selector string) string {
	p.t.Helper()
	list, err := from.List(p.t.Context(), metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		p.t.Fatal(err)
	}
	var names []string
	for _, o := range list.Items {
		names = append(names, strings.TrimPrefix(o.GetName(), p.namespace+"-"))
	}
	slices.Sort(names)
	return strings.Join(names, " ")
}

// run creates, changes and deletes objects, and observes them with a watch.
func (p *lifecycleTest) run() {
	t, ctx, selector := p.t, p.t.Context(), "test="+p.namespace
	list, err := p.all.List(ctx, metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		t.Fatal(err)
	}
	events, err := p.all.Watch(ctx, metav1.ListOptions{LabelSelector: selector + ",name=one",
		ResourceVersion: list.GetResourceVersion()})
	if err != nil {
		t.Fatal(err)
	}
	defer events.Stop()

	one := p.must(p.client.Create(ctx, p.manifest("one", p.spec), metav1.CreateOptions{}))
	p.requireField(one, p.want)
	var want []string
	if !p.controlled {
		want = []string{p.pluralName + " are stored by this server, which does not act on them"}
	}
	if got := p.warnings.all(); !slices.Equal(got, want) {
		t.Errorf("got warnings %q, want %q", got, want)
	}
	p.must(p.client.Create(ctx, p.manifest("two", p.spec), metav1.CreateOptions{}))
	p.must(p.client.Create(ctx, p.manifest("three", p.spec), metav1.CreateOptions{}))
	if e := nextEvent(t, events); e.Type != watch.Added || e.Object.(metav1.Object).GetUID() != one.GetUID() {
		t.Errorf("first event: got %v, want ADDED", e)
	}
	for from, where := range map[dynamic.ResourceInterface]string{
		p.client: "in the namespace", p.all: "in all namespaces",
	} {
		if got := p.listNames(from, selector+",name in (one,two)"); got != "one two" {
			t.Errorf("list %s: got %s, want one two", where, got)
		}
	}
	p.testRejection()
	p.testWrites(one.GetName())
	if e := nextEvent(t, events); e.Type != watch.Modified {
		t.Errorf("event after a change: got %v, want MODIFIED", e)
	}
	if p.status != "" {
		p.testStatus(one.GetName())
	}
	if err := p.client.Delete(ctx, one.GetName(), metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	for {
		e := nextEvent(t, events)
		if e.Type == watch.Deleted {
			break
		}
		if e.Type != watch.Modified {
			t.Fatalf("event before the deletion: got %v, want MODIFIED", e)
		}
	}
	if _, err := p.client.Get(ctx, one.GetName(), metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("get of a deleted object: got %v, want NotFound", err)
	}
	if err := p.client.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: selector +
		",name=two"}); err != nil {
		t.Fatal(err)
	}
	// A controller may have to remove a finalizer first.
	waitForResult(t, "objects after deletecollection", func() string { return p.listNames(p.client, selector) }, "three")
	if err := p.client.Delete(ctx, p.namespace+"-three", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
}

// testRejection checks that invalid objects are rejected with the path of the field.
func (p *lifecycleTest) testRejection() {
	_, err := p.client.Create(p.t.Context(), p.manifest("bad", p.invalidSpec), metav1.CreateOptions{})
	var status apierrors.APIStatus
	if !errors.As(err, &status) || !apierrors.IsInvalid(err) {
		p.t.Fatalf("create of an invalid object: got %v, want Invalid", err)
	}
	if !slices.ContainsFunc(status.Status().Details.Causes, func(c metav1.StatusCause) bool {
		return c.Field == p.rejectedField
	}) {
		p.t.Errorf("no cause for field %s in the error: %v", p.rejectedField, err)
	}
}

// testWrites changes an object with each modifying verb.
func (p *lifecycleTest) testWrites(name string) {
	t, ctx := p.t, p.t.Context()
	// A controller may write the object at the same time.
	if err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		one := p.must(p.client.Get(ctx, name, metav1.GetOptions{}))
		one.SetAnnotations(map[string]string{"by": "update"})
		updated, err := p.client.Update(ctx, one, metav1.UpdateOptions{})
		if err == nil {
			p.requireField(updated, "metadata.annotations.by=update")
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	for kind, by := range map[types.PatchType]string{types.MergePatchType: "merge",
		types.StrategicMergePatchType: "strategic"} {
		p.requireField(p.must(p.client.Patch(ctx, name, kind, []byte(`{"metadata":{"annotations":{"by":"`+by+`"}}}`),
			metav1.PatchOptions{})), "metadata.annotations.by="+by)
	}
	applied := p.manifest("one", p.spec)
	applied.SetAnnotations(map[string]string{"by": "apply"})
	got := p.must(p.client.Apply(ctx, name, applied, metav1.ApplyOptions{FieldManager: "tester", Force: true}))
	p.requireField(got, "metadata.annotations.by=apply")
	if !slices.ContainsFunc(got.GetManagedFields(), func(f metav1.ManagedFieldsEntry) bool {
		return f.Manager == "tester" && f.Operation == "Apply"
	}) {
		t.Errorf("got field managers %v", got.GetManagedFields())
	}
	if p.patch != "" {
		p.requireField(p.must(p.client.Patch(ctx, name, types.MergePatchType, []byte(p.patch), metav1.PatchOptions{})),
			p.wantPatched)
		p.requireField(p.must(p.client.Get(ctx, name, metav1.GetOptions{})), p.wantPatched)
	}
}

// testStatus writes the status, which is writable through the status subresource only.
func (p *lifecycleTest) testStatus(name string) {
	t, ctx := p.t, p.t.Context()
	var status map[string]any
	if err := json.Unmarshal([]byte(p.status), &status); err != nil {
		t.Fatal(err)
	}
	got := p.must(p.client.Patch(ctx, name, types.MergePatchType, []byte(p.status), metav1.PatchOptions{}))
	if text, _ := json.Marshal(got.Object["status"]); string(text) != "null" && string(text) != "{}" {
		t.Fatalf("the status was changed without the status subresource: %s", text)
	}
	p.requireField(p.must(p.client.Patch(ctx, name, types.MergePatchType, []byte(p.status), metav1.PatchOptions{},
		"status")), p.wantStatus)
	got = p.must(p.client.Get(ctx, name, metav1.GetOptions{}, "status"))
	p.requireField(got, p.wantStatus)
	got.SetLabels(map[string]string{"not": "written"})
	got = p.must(p.client.UpdateStatus(ctx, got, metav1.UpdateOptions{}))
	p.requireField(got, p.wantStatus)
	p.requireField(got, "metadata.labels.name=one")
	delete(got.Object, "status")
	got = p.must(p.client.Update(ctx, got, metav1.UpdateOptions{}))
	p.requireField(got, p.wantStatus)
	applied := &unstructured.Unstructured{Object: map[string]any{"apiVersion": got.GetAPIVersion(),
		"kind":   got.GetKind(),
		"status": got.Object["status"]}}
	applied.SetName(name)
	got = p.must(p.client.ApplyStatus(ctx, name, applied, metav1.ApplyOptions{FieldManager: "driver", Force: true}))
	if !slices.ContainsFunc(got.GetManagedFields(), func(f metav1.ManagedFieldsEntry) bool {
		return f.Manager == "driver" && f.Subresource == "status"
	}) {
		t.Errorf("got field managers of the status %v", got.GetManagedFields())
	}
}

// TestDeviceDiscovery checks discovery of the kinds in resource.k8s.io.
func TestDeviceDiscovery(t *testing.T) {
	t.Parallel()
	s := Shared(t)
	var got []string
	for _, version := range []string{"resource.k8s.io/v1", "storage.k8s.io/v1"} {
		list, err := s.Client.Discovery().ServerResourcesForGroupVersion(version)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range list.APIResources {
			got = append(got, fmt.Sprintf("%s %s %s %v %v %d", version, r.Name, r.Kind, r.Namespaced, r.ShortNames,
				len(r.Verbs)))
		}
	}
	for _, want := range []string{
		"resource.k8s.io/v1 deviceclasses DeviceClass false [] 8",
		"resource.k8s.io/v1 resourceclaims ResourceClaim true [] 8",
		"resource.k8s.io/v1 resourceclaims/status ResourceClaim true [] 3",
		"resource.k8s.io/v1 resourceclaimtemplates ResourceClaimTemplate true [] 8",
		"resource.k8s.io/v1 resourceslices ResourceSlice false [] 8",
		"resource.k8s.io/v1 devicetaintrules DeviceTaintRule false [] 8",
		"resource.k8s.io/v1 devicetaintrules/status DeviceTaintRule false [] 3",
		"storage.k8s.io/v1 volumeattributesclasses VolumeAttributesClass false [vac] 8",
	} {
		if !slices.Contains(got, want) {
			t.Errorf("%q not found in discovery:\n%s", want, strings.Join(got, "\n"))
		}
	}
	if text := s.Kubectl(t, "explain", "resourceclaim.spec.devices.requests.exactly"); !strings.Contains(text,
		"allocationMode") || !strings.Contains(text, "ExactDeviceRequest") {
		t.Errorf("kubectl explain: got %q", text)
	}
}

const plainClaim = `
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: %s, namespace: %s%s}
spec: {devices: {requests: [{name: gpu, exactly: {deviceClassName: gpu}}]}}
`

// TestClaimsSupportGenericFeatures covers quotas, finalizers, garbage collection and namespace
// deletion.
func TestClaimsSupportGenericFeatures(t *testing.T) {
	t.Parallel()
	s := Shared(t)
	claim := func(name, more string) string { return fmt.Sprintf(plainClaim, name, s.Namespace, more) }
	s.Kubectl(t, "create", "quota", "few", "--hard=count/resourceclaims.resource.k8s.io=2")
	waitForResult(t, "usage of a new quota", func() string {
		return s.Kubectl(t, "get", "quota", "few", "-o",
			`jsonpath={.status.used.count/resourceclaims\.resource\.k8s\.io}`)
	}, "0")
	s.Apply(t, claim("held", `, finalizers: [resource.kubernetes.io/delete-protection]`))
	s.Kubectl(t, "create", "configmap", "owner")
	uid := s.Kubectl(t, "get", "configmap", "owner", "-o", "jsonpath={.metadata.uid}")
	s.Apply(t, claim("owned", `, ownerReferences: [{apiVersion: v1, kind: ConfigMap, name: owner, uid: `+uid+`}]`))
	if out, err := s.TryKubectl(t, claim("third", ""), "create", "-f", "-"); err == nil || !strings.Contains(out,
		"exceeded quota: few, requested: count/resourceclaims.resource.k8s.io=1") {
		t.Errorf("claim beyond the quota: %s", out)
	}
	s.Kubectl(t, "delete", "configmap", "owner")
	waitForResult(t, "claims after deletion of an owner", func() string {
		return s.Kubectl(t, "get", "resourceclaims", "-o",
			"name")
	}, "resourceclaim.resource.k8s.io/held\n")
	s.Kubectl(t, "delete", "resourceclaim", "held", "--wait=false")
	if out := normalizeSpaces(s.Kubectl(t, "get", "resourceclaims", "--no-headers")); !strings.HasPrefix(out,
		"held deleted ") {
		t.Errorf("claim with a finalizer: got %q", out)
	}
	s.Kubectl(t, "patch", "resourceclaim", "held", "--type=merge", "-p", `{"metadata":{"finalizers":null}}`)
	waitForResult(t, "claims after removal of the finalizer", func() string {
		return s.Kubectl(t, "get", "resourceclaims", "-o",
			"name")
	}, "")

	s.Kubectl(t, "delete", "quota", "few")
	s.Apply(t, claim("last", ""))
	s.Apply(t, fmt.Sprintf("{apiVersion: resource.k8s.io/v1, kind: ResourceClaimTemplate, metadata: {name: last, "+
		"namespace: %s}, spec: {spec: {devices: {requests: []}}}}", s.Namespace))
	s.Kubectl(t, "delete", "namespace", s.Namespace, "--wait=false")
	waitForResult(t, "deleted namespace", func() string {
		out, _ := s.TryKubectl(t, "", "get", "namespace", s.Namespace, "-o", "name", "--ignore-not-found")
		return out
	}, "")
	for _, resource := range []string{"resourceclaims", "resourceclaimtemplates"} {
		if out := s.Kubectl(t, "get", resource, "-A", "-o",
			"jsonpath={.items[*].metadata.namespace}"); slices.Contains(strings.Fields(out), s.Namespace) {
			t.Errorf("%s of the deleted namespace still exist", resource)
		}
	}
}

// TestDeviceAdminAccess checks that adminAccess requires a label on the namespace.
func TestDeviceAdminAccess(t *testing.T) {
	t.Parallel()
	s := Shared(t)
	claim := strings.ReplaceAll(fmt.Sprintf(plainClaim, "monitor", s.Namespace, ""), "deviceClassName: gpu",
		"deviceClassName: gpu, adminAccess: true")
	out, err := s.TryKubectl(t, claim, "create", "-f", "-")
	if err == nil || !strings.Contains(out, "spec.devices.requests[0].exactly.adminAccess: Forbidden: admin access to "+
		"devices requires the `resource.kubernetes.io/admin-access: true` label") {
		t.Errorf("claim without the namespace label: got %v: %s", err, out)
	}
	s.Kubectl(t, "label", "namespace", s.Namespace, "resource.kubernetes.io/admin-access=true")
	s.Apply(t, claim)
}

// TestClaimStatusPermissions writes each part of the status with and without the permission for it.
func TestClaimStatusPermissions(t *testing.T) {
	t.Parallel()
	s := Shared(t)
	ctx := t.Context()
	s.Apply(t, fmt.Sprintf(plainClaim, "c", s.Namespace, ""))
	role := func(name, rules string) {
		s.Apply(t, fmt.Sprintf(
			`{apiVersion: rbac.authorization.k8s.io/v1, kind: Role, metadata: {name: %[1]s},
  rules: [{apiGroups: [resource.k8s.io], resources: [resourceclaims/status], verbs: [patch]}%[2]s]}
---
{apiVersion: rbac.authorization.k8s.io/v1, kind: RoleBinding, metadata: {name: %[1]s},
  roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: %[1]s},
  subjects: [{kind: User, apiGroup: rbac.authorization.k8s.io, name: %[1]s}]}`, name, rules))
	}
	role("scheduler", `, {apiGroups: [resource.k8s.io], resources: [resourceclaims/binding], verbs: [patch]}`)
	role("driver", `, {apiGroups: [resource.k8s.io], resources: [resourceclaims/driver], resourceNames: `+
		`[gpu.example.com], verbs: ["arbitrary-node:patch"]}`)
	write := func(who, status string) func() string {
		client := s.clientAs(t, who)
		return func() string {
			_, err := client.ResourceV1().ResourceClaims(s.Namespace).Patch(ctx, "c", types.MergePatchType,
				[]byte(`{"status":`+status+`}`), metav1.PatchOptions{}, "status")
			switch {
			case err == nil:
				return "written"
			case apierrors.IsForbidden(err) && strings.Contains(err.Error(), "resourceclaims/binding"):
				return "not the scheduler"
			case apierrors.IsForbidden(err) && strings.Contains(err.Error(), "resourceclaims/driver"):
				return "not the driver"
			}
			return err.Error()
		}
	}
	result := func(driver string) string {
		return `{"request":"gpu","driver":"` + driver + `","pool":"n1","device":"a"}`
	}
	allocation := `{"allocation":{"devices":{"results":[` + result("gpu.example.com") + `,` +
		result("nic.example.com") +
		`]}}}`
	report := func(driver, more string) string {
		return `{"devices":[{"driver":"` + driver + `","pool":"n1","device":"a"` + more + `}]}`
	}
	waitForResult(t, "allocation by a driver", write("driver", allocation), "not the scheduler")
	waitForResult(t, "allocation by the scheduler", write("scheduler", allocation), "written")
	waitForResult(t, "device status from the scheduler", write("scheduler", report("gpu.example.com", "")),
		"not the driver")
	waitForResult(t, "device status from another driver", write("driver", report("nic.example.com", "")),
		"not the driver")
	waitForResult(t, "device status from the driver", write("driver", report("gpu.example.com", `,"data":{"a":1}`)),
		"written")
	waitForResult(t, "deallocation by the scheduler", write("scheduler", `{"allocation":null}`), "written")
	if got, err := s.Client.ResourceV1().ResourceClaims(s.Namespace).Get(ctx, "c", metav1.GetOptions{}); err != nil ||
		len(got.Status.Devices) > 0 {
		t.Errorf("after deallocation: got device status %v, want none, %v", got.Status.Devices, err)
	}
}

// TestDeviceTaintTimeAdded checks that the server sets timeAdded.
func TestDeviceTaintTimeAdded(t *testing.T) {
	t.Parallel()
	s := Shared(t)
	rules := s.Client.ResourceV1().DeviceTaintRules()
	name := s.Namespace + "-timed"
	s.Apply(t, `{apiVersion: resource.k8s.io/v1, kind: DeviceTaintRule, metadata: {name: `+name+
		`}, spec: {taint: {key: a, effect: None, timeAdded: "2026-01-01T00:00:00Z"}}}`)
	defer s.Kubectl(t, "delete", "devicetaintrule", name)
	patch := func(text string) *metav1.Time {
		r, err := rules.Patch(t.Context(), name, types.MergePatchType, []byte(text), metav1.PatchOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return r.Spec.Taint.TimeAdded
	}
	if got := patch(`{"spec":{"taint":{"value":"b"}}}`); got.UTC().Year() != 2026 || got.UTC().YearDay() != 1 {
		t.Errorf("after a change of the value: got timeAdded %v, want 2026-01-01", got)
	}
	if got := patch(`{"spec":{"taint":{"effect":"NoExecute"}}}`); got == nil || got.UTC().Year() == 2026 &&
		got.UTC().YearDay() == 1 {
		t.Errorf("after a change of the effect: got timeAdded %v, want the current time", got)
	}
	if got := patch(`{"spec":{"taint":{"timeAdded":null}}}`); got == nil {
		t.Error("timeAdded was not set")
	}
}

// deviceAttempts returns operations on resource slices and claims.
func (s *twoNodeCluster) deviceAttempts(t *testing.T) []attempt {
	ctx := t.Context()
	manifest := func(node string) string {
		return fmt.Sprintf("{apiVersion: resource.k8s.io/v1, kind: ResourceSlice, metadata: {name: of-%[1]s}, spec: "+
			"{driver: gpu.example.com, nodeName: \"%[1]s\", pool: {name: \"%[1]s\", generation: 1, "+
			"resourceSliceCount: 1}}}",
			node)
	}
	s.Apply(t, manifest("y"))
	for _, name := range []string{"named", "made", "other"} {
		s.Apply(t, fmt.Sprintf(plainClaim, name, "shop", ""))
	}
	s.Apply(t, `{apiVersion: v1, kind: Pod, metadata: {name: claims, namespace: shop}, spec: {nodeName: x,
containers: [{name: main, image: example/web}],
resourceClaims: [{name: a, resourceClaimName: named}, {name: b, resourceClaimTemplateName: t}]}}`)
	s.Kubectl(t, "patch", "pod", "claims", "-n", "shop", "--subresource=status", "--type=merge", "-p",
		`{"status":{"resourceClaimStatuses":[{"name":"b","resourceClaimName":"made"}]}}`)
	slices, claims, get := s.x.ResourceV1().ResourceSlices(), s.x.ResourceV1().ResourceClaims("shop"),
		metav1.GetOptions{}
	create := func(node string) func() error {
		return func() error {
			return s.x.ResourceV1().RESTClient().Post().Resource("resourceslices").SetHeader("Content-Type",
				"application/yaml").Body([]byte(manifest(node))).Do(ctx).Error()
		}
	}
	patch := func(name string) func() error {
		return func() error {
			return errorOf(slices.Patch(ctx, name, types.MergePatchType, []byte(`{"spec":{"pool":{"generation":2}}}`),
				metav1.PatchOptions{}))
		}
	}
	fieldSelector := func(selector string) metav1.ListOptions { return metav1.ListOptions{FieldSelector: selector} }
	return []attempt{
		{"create its slice", true, create("x")},
		{"create another node's slice", false, create("z")},
		{"read its slice", true, func() error { return errorOf(slices.Get(ctx, "of-x", get)) }},
		{"read another node's slice", false, func() error { return errorOf(slices.Get(ctx, "of-y", get)) }},
		{"list its slices", true, func() error { return errorOf(slices.List(ctx, fieldSelector("spec.nodeName=x"))) }},
		{"list all slices", false, func() error { return errorOf(slices.List(ctx, fieldSelector(""))) }},
		{"list another node's slices", false, func() error {
			return errorOf(slices.List(ctx, fieldSelector("spec.nodeName=y")))
		}},
		{"change its slice", true, patch("of-x")},
		{"change another node's slice", false, patch("of-y")},
		{"delete another node's slice", false, func() error {
			return slices.Delete(ctx, "of-y", metav1.DeleteOptions{})
		}},
		{"delete all slices of a driver", false, func() error {
			return slices.DeleteCollection(ctx, metav1.DeleteOptions{}, fieldSelector("spec.driver=gpu.example.com"))
		}},
		{"delete its slices", true, func() error {
			return slices.DeleteCollection(ctx, metav1.DeleteOptions{}, fieldSelector("spec.nodeName=x"))
		}},
		{"read a claim of its pod", true, func() error { return errorOf(claims.Get(ctx, "named", get)) }},
		{"read a claim generated for its pod", true, func() error { return errorOf(claims.Get(ctx, "made", get)) }},
		{"read another claim", false, func() error { return errorOf(claims.Get(ctx, "other", get)) }},
		{"list claims", false, func() error { return errorOf(claims.List(ctx, metav1.ListOptions{})) }},
		{"delete a claim", false, func() error { return claims.Delete(ctx, "named", metav1.DeleteOptions{}) }},
		{"add a claim to its pod's status", false, func() error {
			return errorOf(s.x.CoreV1().Pods("shop").Patch(ctx, "claims", types.StrategicMergePatchType,
				[]byte(`{"status":{"resourceClaimStatuses":[{"name":"a","resourceClaimName":"other"}]}}`),
				metav1.PatchOptions{},
				"status"))
		}},
		{"list device classes", false, func() error {
			return errorOf(s.x.ResourceV1().DeviceClasses().List(ctx,
				metav1.ListOptions{}))
		}},
	}
}
