package control

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/metadata"
)

// suite tests the API contract that clients rely on. It runs with each storage. Each case has its own
// namespace.
var suite = []struct {
	name string
	run  func(t *testing.T, s *Server, namespace string)
}{
	{"generateName", testGenerateName},
	{"update with an old resource version conflicts", testUpdateConflict},
	{"patch types", testPatchTypes},
	{"PUT creates or replaces", testPut},
	{"generation changes with the spec", testGeneration},
	{"conditions of a certificate signing request", testCSRConditions},
	{"scale subresource", testScale},
	{"scale sets the field manager of replicas", testScaleFieldManager},
	{"lists are paginated", testPagination},
	{"watch sends initial events", testWatchList},
	{"watch resumes at a resource version", testWatchResume},
	{"label and field selectors", testSelectors},
	{"deletecollection with a selector", testDeleteCollection},
	{"finalizers delay deletion", testFinalizers},
	{"delete with preconditions", testPreconditions},
	{"events are served in both groups", testEvents},
	{"partial object metadata", testPartialMetadata},
	{"dry-run stores nothing", testDryRun},
	{"unknown fields are rejected", testStrictValidation},
	{"server-side apply sets field managers", testServerSideApply},
	{"large requests are rejected", testRequestTooLarge},
}

// runSuite runs all cases of suite.
func runSuite(t *testing.T, s *Server) {
	for i, c := range suite {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			namespace := "suite-" + string(rune('a'+i))
			_, err := s.Client.CoreV1().Namespaces().Create(t.Context(),
				&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
					Name: namespace}}, metav1.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			c.run(t, s, namespace)
		})
	}
}

// TestAPI runs the suite with embedded etcd.
func TestAPI(t *testing.T) {
	t.Parallel()
	runSuite(t, Shared(t))
}

// configMap returns a ConfigMap with the keys and values in data.
func configMap(name string, data ...string) *corev1.ConfigMap {
	c := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{}}
	for i := 0; i < len(data); i += 2 {
		c.Data[data[i]] = data[i+1]
	}
	return c
}

func createConfigMap(t *testing.T, s *Server, namespace string, c *corev1.ConfigMap) *corev1.ConfigMap {
	t.Helper()
	out, err := s.Client.CoreV1().ConfigMaps(namespace).Create(t.Context(), c, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func testGenerateName(t *testing.T, s *Server, namespace string) {
	c := configMap("")
	c.GenerateName = "made-"
	got := createConfigMap(t, s, namespace, c)
	if !strings.HasPrefix(got.Name, "made-") || len(got.Name) != len("made-")+5 || got.UID == "" ||
		got.CreationTimestamp.IsZero() {
		t.Errorf("got name %q, UID %q, creation time %v", got.Name, got.UID, got.CreationTimestamp)
	}
}

func testUpdateConflict(t *testing.T, s *Server, namespace string) {
	first := createConfigMap(t, s, namespace, configMap("one", "a", "1"))
	maps := s.Client.CoreV1().ConfigMaps(namespace)
	second := first.DeepCopy()
	second.Data["a"] = "2"
	if _, err := maps.Update(t.Context(), second, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	_, err := maps.Update(t.Context(), first, metav1.UpdateOptions{})
	if !apierrors.IsConflict(err) || !strings.Contains(err.Error(),
		"please apply your changes to the latest version and try again") {
		t.Errorf("update with an old resource version: got %v, want Conflict", err)
	}
	_, err = maps.Create(t.Context(), configMap("one"), metav1.CreateOptions{})
	if !apierrors.IsAlreadyExists(err) {
		t.Errorf("second create: got %v, want AlreadyExists", err)
	}
}

func testPatchTypes(t *testing.T, s *Server, namespace string) {
	createConfigMap(t, s, namespace, configMap("p", "a", "1"))
	maps := s.Client.CoreV1().ConfigMaps(namespace)
	for _, p := range []struct {
		kind types.PatchType
		text string
	}{
		{types.JSONPatchType, `[{"op":"replace","path":"/data/a","value":"2"},` +
			`{"op":"add","path":"/data/b","value":"1"}]`},
		{types.MergePatchType, `{"data":{"b":null,"c":"1"}}`},
		{types.StrategicMergePatchType, `{"metadata":{"labels":{"x":"y"}},"data":{"d":"1"}}`},
	} {
		if _, err := maps.Patch(t.Context(), "p", p.kind, []byte(p.text), metav1.PatchOptions{}); err != nil {
			t.Fatalf("patch of type %s: %v", p.kind, err)
		}
	}
	got, err := maps.Get(t.Context(), "p", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	text, _ := json.Marshal(got.Data)
	if string(text) != `{"a":"2","c":"1","d":"1"}` || got.Labels["x"] != "y" {
		t.Errorf("after all patches: got data %s, labels %v", text, got.Labels)
	}
}

func deployment(name string) *appsv1.Deployment {
	labels := map[string]string{"app": name}
	return &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: appsv1.DeploymentSpec{
		Selector: &metav1.LabelSelector{MatchLabels: labels},
		Template: corev1.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: labels},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "example/web"}}},
		},
	}}
}

// TestStatusSubresource changes spec and status of a Deployment, whose controller would change the status too.
func TestStatusSubresource(t *testing.T) {
	t.Parallel()
	s := SharedWithoutControllers(t)
	all := s.Client.AppsV1().Deployments(s.Namespace)
	d := deployment("d")
	d.Status.Replicas = 7
	d, err := all.Create(t.Context(), d, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if d.Status.Replicas != 0 || d.Generation != 1 {
		t.Errorf("after create: got %d replicas in the status, generation %d", d.Status.Replicas, d.Generation)
	}
	d.Status.Replicas, d.Spec.MinReadySeconds = 3, 9
	if d, err = all.UpdateStatus(t.Context(), d, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if d.Status.Replicas != 3 || d.Spec.MinReadySeconds != 0 || d.Generation != 1 {
		t.Errorf("after a status update: got %d replicas, minReadySeconds %d, generation %d", d.Status.Replicas,
			d.Spec.MinReadySeconds, d.Generation)
	}
	d.Status.Replicas, d.Spec.MinReadySeconds = 5, 9
	if d, err = all.Update(t.Context(), d, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if d.Status.Replicas != 3 || d.Spec.MinReadySeconds != 9 || d.Generation != 2 {
		t.Errorf("after a spec update: got %d replicas, minReadySeconds %d, generation %d", d.Status.Replicas,
			d.Spec.MinReadySeconds, d.Generation)
	}
}

func testScale(t *testing.T, s *Server, namespace string) {
	all := s.Client.AppsV1().Deployments(namespace)
	if _, err := all.Create(t.Context(), deployment("d"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	s.Kubectl(t, "-n", namespace, "scale", "deployment", "d", "--replicas=4")
	got, err := all.GetScale(t.Context(), "d", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if got.Spec.Replicas != 4 || got.Status.Selector != "app=d" {
		t.Errorf("got scale %+v", got)
	}
	d, err := all.Get(t.Context(), "d", metav1.GetOptions{})
	if err != nil || *d.Spec.Replicas != 4 || d.Generation != 2 {
		t.Errorf("got deployment %+v, %v", d, err)
	}
	got.Spec.Replicas = -1
	if _, err := all.UpdateScale(t.Context(), "d", got, metav1.UpdateOptions{}); !apierrors.IsInvalid(err) ||
		!strings.Contains(err.Error(), "spec.replicas") {
		t.Errorf("negative scale: got %v, want Invalid", err)
	}
}

// testPut updates objects without a resourceVersion. Depending on the kind, a PUT creates a missing
// object and replaces an existing one unconditionally.
func testPut(t *testing.T, s *Server, namespace string) {
	for _, r := range []struct {
		group, resource, kind, rest string
		cluster, creates, replaces  bool
	}{
		{"", "services", "Service", `"spec": {"ports": [{"port": 80}]}`, false, true, true},
		{"", "endpoints", "Endpoints", `"subsets": []`, false, true, true},
		{"", "limitranges", "LimitRange", `"spec": {"limits": []}`, false, true, true},
		{"", "configmaps", "ConfigMap", `"data": {}`, false, false, true},
		{"rbac.authorization.k8s.io", "roles", "Role", `"rules": []`, false, true, true},
		{"coordination.k8s.io", "leases", "Lease", `"spec": {}`, false, true, false},
		{"policy", "poddisruptionbudgets", "PodDisruptionBudget", `"spec": {}`, false, false, false},
		{"node.k8s.io", "runtimeclasses", "RuntimeClass", `"handler": "runc"`, true, true, false},
		{"storage.k8s.io", "csidrivers", "CSIDriver", `"spec": {}`, true, false, false},
		{"storage.k8s.io", "csinodes", "CSINode", `"spec": {"drivers": []}`, true, false, false},
		{"storage.k8s.io", "csistoragecapacities", "CSIStorageCapacity", `"storageClassName": "fast"`, false, false,
			false},
		{"storage.k8s.io", "volumeattachments", "VolumeAttachment",
			`"spec": {"attacher": "a.example", "nodeName": "n", "source": {"persistentVolumeName": "v"}}`, true, false,
			false},
		{"storage.k8s.io", "storageclasses", "StorageClass", `"provisioner": "a.example"`, true, false, true},
	} {
		path, version := "/apis/"+r.group+"/v1/", r.group+"/v1"
		if r.group == "" {
			path, version = "/api/v1/", "v1"
		}
		if !r.cluster {
			path += "namespaces/" + namespace + "/"
		}
		path += r.resource
		name := "put-" + namespace
		body := []byte(`{"apiVersion": "` + version + `", "kind": "` + r.kind + `", "metadata": {"name": "` + name +
			`"}, ` +
			r.rest + `}`)
		rest := s.Client.CoreV1().RESTClient()
		put := func() error { return rest.Put().AbsPath(path, name).Body(body).Do(t.Context()).Error() }
		if err := put(); r.creates && err != nil || !r.creates && !apierrors.IsNotFound(err) {
			t.Errorf("%s: PUT of a missing object: got %v, want creation: %v", r.resource, err, r.creates)
		}
		if !r.creates {
			if err := rest.Post().AbsPath(path).Body(body).Do(t.Context()).Error(); err != nil {
				t.Errorf("create %s: %v", r.resource, err)
			}
		}
		err := put()
		if required := apierrors.IsInvalid(err) &&
			strings.Contains(err.Error(), "metadata.resourceVersion"); r.replaces &&
			err != nil || !r.replaces && !required {
			t.Errorf("%s: PUT of an existing object: got %v, want replacement: %v", r.resource, err, r.replaces)
		}
	}
}

// testGeneration makes changes that increment the generation and changes that do not.
func testGeneration(t *testing.T, s *Server, namespace string) {
	s.Apply(t, strings.ReplaceAll(`
{"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "g", "namespace": "NS"},
  "spec": {"selector": {"matchLabels": {"app": "g"}}, "template": {"metadata": {"labels": {"app": "g"}},
    "spec": {"containers": [{"name": "main", "image": "example/web"}]}}}}
---
{"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "g", "namespace": "NS"},
  "template": {"metadata": {"labels": {"app": "g"}},
    "spec": {"containers": [{"name": "main", "image": "example/web"}]}}}
---
{"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": {"name": "g", "namespace": "NS"},
  "addressType": "IPv4", "endpoints": []}
`, "NS", namespace))
	const labels, annotations = `{"metadata": {"labels": {"a": "b"}}}`, `{"metadata": {"annotations": {"a": "b"}}}`
	for _, c := range []struct{ kind, patch, want string }{
		{"deployment", labels, "1"},
		{"deployment", annotations, "2"},
		{"deployment", `{"spec": {"minReadySeconds": 1}}`, "3"},
		{"podtemplate", labels, "1"},
		{"podtemplate", annotations, "1"},
		{"podtemplate", `{"template": {"metadata": {"labels": {"app": "h"}}}}`, "2"},
		{"endpointslice", annotations, "1"},
		{"endpointslice", labels, "2"},
		{"endpointslice", `{"endpoints": [{"addresses": ["192.0.2.1"]}]}`, "3"},
	} {
		s.Kubectl(t, "-n", namespace, "patch", c.kind, "g", "--type=merge", "-p", c.patch)
		if got := s.Kubectl(t, "-n", namespace, "get", c.kind, "g", "-o",
			"jsonpath={.metadata.generation}"); got != c.want {
			t.Errorf("%s: after %s: got generation %s, want %s", c.kind, c.patch, got, c.want)
		}
	}
}

// testCSRConditions adds conditions to a certificate signing request. The approval subresource accepts
// all condition types, the status subresource all except Approved and Denied. The server sets omitted
// times.
func testCSRConditions(t *testing.T, s *Server, namespace string) {
	name := namespace + "-request" // requests are cluster-scoped
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{
		CommonName: "someone"}}, key)
	if err != nil {
		t.Fatal(err)
	}
	requests := s.Client.CertificatesV1().CertificateSigningRequests()
	if _, err := requests.Create(t.Context(), &certificatesv1.CertificateSigningRequest{ObjectMeta: metav1.ObjectMeta{
		Name: name}, Spec: certificatesv1.CertificateSigningRequestSpec{
		Request:    pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}),
		SignerName: "example.com/signer",
		Usages:     []certificatesv1.KeyUsage{certificatesv1.UsageClientAuth},
	}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ subresource, conditions, wantErr string }{
		{"approval", `{"type": "Looked", "status": "False"}`, ""},
		{"status", `{"type": "Looked", "status": "True"}`, ""},
		{"status", `{"type": "Looked", "status": "True"}, {"type": "Approved", "status": "True"}`,
			`may not add a condition of type "Approved"`},
		{"approval", `{"type": "Looked", "status": "Perhaps"}`,
			`status.conditions[0].status: Unsupported value: "Perhaps"`},
		{"approval", `{"type": "Approved", "status": "False"}`,
			`status.conditions[0].status: Unsupported value: "False": supported values: "True"`},
		{"approval", `{"type": "Approved", "status": "True"}, {"type": "Denied", "status": "True"}`,
			"mutually exclusive"},
		{"approval", `{"type": "Looked", "status": "True"}, {"type": "Looked", "status": "True"}`,
			"status.conditions[1].type: Duplicate value"},
		{"approval", `{"type": "Approved", "status": "True", "reason": "Known"}`, ""},
		{"approval", ``, `may not remove a condition of type "Approved"`},
		{"status", `{"type": "Looked", "status": "True"}`, `may not remove a condition of type "Approved"`},
		{"status", `{"type": "Approved", "status": "True", "reason": "Other"}, {"type": "Failed", "status": "True"}`,
			""},
	} {
		patch := []byte(`{"metadata": {"annotations": {"by": "` + c.subresource + `"}}, "status": {"conditions": [` +
			c.conditions + `]}}`)
		got, err := requests.Patch(t.Context(), name, types.MergePatchType, patch, metav1.PatchOptions{}, c.subresource)
		if c.wantErr != "" {
			if err == nil || !strings.Contains(err.Error(), c.wantErr) {
				t.Errorf("%s %s: got %v, want %q", c.subresource, c.conditions, err, c.wantErr)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s %s: %v", c.subresource, c.conditions, err)
			continue
		}
		for _, condition := range got.Status.Conditions {
			if condition.LastUpdateTime.IsZero() || condition.LastTransitionTime.IsZero() ||
				condition.Type == certificatesv1.CertificateApproved && condition.Reason != "Known" {
				t.Errorf("%s %s: got condition %+v", c.subresource, c.conditions, condition)
			}
		}
		if got.Annotations["by"] != c.subresource || len(got.Status.Conditions) != strings.Count(c.conditions, "type") {
			t.Errorf("%s %s: got annotations %v, status %+v", c.subresource, c.conditions, got.Annotations, got.Status)
		}
	}
}

// testScaleFieldManager applies a replica count with one field manager and scales with another. The
// next apply of the first manager has a conflict. The first manager can remove the field from its
// configuration without a change of the replica count.
func testScaleFieldManager(t *testing.T, s *Server, namespace string) {
	for _, r := range []struct{ kind, version, selector string }{
		{"Deployment", "apps/v1", "{matchLabels: {app: owned}}"},
		{"ReplicationController", "v1", "{app: owned}"},
	} {
		manifest := func(replicas string) string {
			return "apiVersion: " + r.version + "\nkind: " + r.kind + "\nmetadata: {name: owned, namespace: " +
				namespace +
				"}\n" +
				"spec: {" + replicas + "selector: " + r.selector +
				", template: {metadata: {labels: {app: owned}}, spec: " +
				"{containers: [{name: main, image: example/web}]}}}\n"
		}
		replicas := func() string {
			return s.Kubectl(t, "-n", namespace, "get", r.kind, "owned", "-o", "jsonpath={.spec.replicas}")
		}
		s.Apply(t, manifest("replicas: 2, "), "--server-side", "--field-manager=first")
		s.Kubectl(t, "-n", namespace, "scale", r.kind, "owned", "--replicas=3")
		out, err := s.TryKubectl(t, manifest("replicas: 2, "), "apply", "--server-side", "--field-manager=first", "-f",
			"-")
		if err == nil || !strings.Contains(out, `conflict with "kubectl" with subresource "scale"`) ||
			!strings.Contains(out,
				".spec.replicas") {
			t.Errorf("%s: apply by the first manager: got %q, %v", r.kind, out, err)
		}
		s.Apply(t, manifest(""), "--server-side", "--field-manager=first")
		if got := replicas(); got != "3" {
			t.Errorf("%s: after removal of the field: got %s replicas, want 3", r.kind, got)
		}
		text := []byte(`{"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": {"name": "owned"}, "spec": ` +
			`{"replicas": 1}}`)
		at := []string{"apis", r.version, "namespaces", namespace, strings.ToLower(r.kind) + "s", "owned", "scale"}
		if r.version == "v1" {
			at[0] = "api"
		}
		scaling := func(force string) error {
			return s.Client.CoreV1().RESTClient().Patch(types.ApplyPatchType).AbsPath(at...).
				Param("fieldManager", "scaler").Param("force", force).Body(text).Do(t.Context()).Error()
		}
		if err := scaling("false"); !apierrors.IsConflict(err) {
			t.Errorf("%s: apply of replicas owned by another manager: got %v, want Conflict", r.kind, err)
		}
		if err := scaling("true"); err != nil {
			t.Errorf("%s: forced apply: %v", r.kind, err)
		}
		if got := replicas(); got != "1" {
			t.Errorf("%s: after a forced apply: got %s replicas, want 1", r.kind, got)
		}
	}
}

func testPagination(t *testing.T, s *Server, namespace string) {
	for _, name := range []string{"a", "b", "c", "d", "e"} {
		createConfigMap(t, s, namespace, configMap(name))
	}
	maps := s.Client.CoreV1().ConfigMaps(namespace)
	var names []string
	options := metav1.ListOptions{Limit: 2, LabelSelector: "!nothing"}
	for {
		list, err := maps.List(t.Context(), options)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range list.Items {
			if !strings.HasPrefix(c.Name, "kube-") {
				names = append(names, c.Name)
			}
		}
		if list.Continue == "" {
			break
		}
		options.Continue = list.Continue
	}
	if strings.Join(names, "") != "abcde" {
		t.Errorf("got pages %v", names)
	}
}

// nextEvent returns the next event of a watch. The test fails if there is none within one minute.
func nextEvent(t *testing.T, w watch.Interface) watch.Event {
	t.Helper()
	select {
	case e, ok := <-w.ResultChan():
		if !ok {
			t.Fatal("watch channel was closed")
		}
		return e
	case <-time.After(4 * time.Minute):
		t.Fatal("no watch event within four minutes")
	}
	return watch.Event{}
}

// testWatchList watches a cached and an uncached kind with sendInitialEvents.
func testWatchList(t *testing.T, s *Server, namespace string) {
	createConfigMap(t, s, namespace, configMap("here"))
	quota := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "here"}}
	if _, err := s.Client.CoreV1().ResourceQuotas(namespace).Create(t.Context(), quota,
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	yes := true
	options := metav1.ListOptions{
		SendInitialEvents: &yes, AllowWatchBookmarks: true, FieldSelector: "metadata.name=here",
		ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan,
	}
	for kind, start := range map[string]func() (watch.Interface, error){
		"configmaps": func() (watch.Interface, error) {
			return s.Client.CoreV1().ConfigMaps(namespace).Watch(t.Context(), options)
		},
		"resourcequotas": func() (watch.Interface, error) {
			return s.Client.CoreV1().ResourceQuotas(namespace).Watch(t.Context(), options)
		},
	} {
		w, err := start()
		if err != nil {
			t.Fatalf("watch %s: %v", kind, err)
		}
		defer w.Stop()
		if e := nextEvent(t, w); e.Type != watch.Added {
			t.Errorf("%s: first event: got %v, want ADDED", kind, e)
		}
		e := nextEvent(t, w)
		m, ok := e.Object.(metav1.Object)
		if e.Type != watch.Bookmark || !ok || m.GetAnnotations()[metav1.InitialEventsAnnotationKey] != "true" {
			t.Errorf("%s: second event: got %v, want a bookmark for the end of the initial events", kind, e)
		}
	}
}

// testWatchResume watches from an earlier resource version, and reads from a future one.
func testWatchResume(t *testing.T, s *Server, namespace string) {
	first := createConfigMap(t, s, namespace, configMap("one"))
	createConfigMap(t, s, namespace, configMap("two"))
	if err := s.Client.CoreV1().ConfigMaps(namespace).Delete(t.Context(), "one", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	w, err := s.Client.CoreV1().ConfigMaps(namespace).Watch(t.Context(),
		metav1.ListOptions{ResourceVersion: first.ResourceVersion, FieldSelector: "metadata.name!=kube-root-ca.crt"})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	for _, want := range []struct {
		kind watch.EventType
		name string
	}{{watch.Added, "two"}, {watch.Deleted, "one"}} {
		e := nextEvent(t, w)
		if got := e.Object.(metav1.Object).GetName(); e.Type != want.kind || got != want.name {
			t.Errorf("got %s %s, want %s %s", e.Type, got, want.kind, want.name)
		}
	}
	err = s.Client.CoreV1().RESTClient().Get().Namespace(namespace).Resource("configmaps").MaxRetries(0).
		Param("resourceVersion", "1000000000").Param("resourceVersionMatch", "NotOlderThan").Do(t.Context()).Error()
	if !apierrors.IsTimeout(err) && !apierrors.IsGone(err) {
		t.Errorf("future resource version: got %v, want Timeout or Gone", err)
	}
}

func testSelectors(t *testing.T, s *Server, namespace string) {
	for _, p := range []struct{ name, node, label string }{{"a", "n1", "x"}, {"b", "n2", "x"}, {"c", "n1", "y"}} {
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: p.name, Labels: map[string]string{"l": p.label}},
			Spec: corev1.PodSpec{NodeName: p.node,
				Containers: []corev1.Container{{Name: "main", Image: "example/web"}}},
		}
		if _, err := s.Client.CoreV1().Pods(namespace).Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct{ fields, labels, want string }{
		{"spec.nodeName=n1", "", "a c"},
		{"spec.nodeName=n1", "l=x", "a"},
		{"", "l in (x, z)", "a b"},
		{"metadata.name!=a,status.phase=Pending", "", "b c"},
	} {
		list, err := s.Client.CoreV1().Pods(namespace).List(t.Context(), metav1.ListOptions{FieldSelector: c.fields,
			LabelSelector: c.labels})
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, p := range list.Items {
			names = append(names, p.Name)
		}
		if got := strings.Join(names, " "); got != c.want {
			t.Errorf("field selector %q, label selector %q: got %q, want %q", c.fields, c.labels, got, c.want)
		}
	}
	_, err := s.Client.CoreV1().Pods(namespace).List(t.Context(), metav1.ListOptions{FieldSelector: "spec.nonsense=1"})
	if !apierrors.IsBadRequest(err) || !strings.Contains(err.Error(), "spec.nonsense") {
		t.Errorf("unsupported field selector: got %v, want BadRequest", err)
	}
}

func testDeleteCollection(t *testing.T, s *Server, namespace string) {
	for _, name := range []string{"a", "b", "c"} {
		c := configMap(name)
		c.Labels = map[string]string{"delete": map[bool]string{true: "yes", false: "no"}[name != "b"]}
		createConfigMap(t, s, namespace, c)
	}
	maps := s.Client.CoreV1().ConfigMaps(namespace)
	if err := maps.DeleteCollection(t.Context(), metav1.DeleteOptions{},
		metav1.ListOptions{LabelSelector: "delete=yes"}); err != nil {
		t.Fatal(err)
	}
	list, err := maps.List(t.Context(), metav1.ListOptions{LabelSelector: "delete"})
	if err != nil || len(list.Items) != 1 || list.Items[0].Name != "b" {
		t.Errorf("after deletecollection: got %v, want b, %v", list, err)
	}
}

func testFinalizers(t *testing.T, s *Server, namespace string) {
	c := configMap("held")
	c.Finalizers = []string{"example.com/hold"}
	createConfigMap(t, s, namespace, c)
	maps := s.Client.CoreV1().ConfigMaps(namespace)
	if err := maps.Delete(t.Context(), "held", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	got, err := maps.Get(t.Context(), "held", metav1.GetOptions{})
	if err != nil || got.DeletionTimestamp == nil {
		t.Fatalf("object with a finalizer after delete: got %v, %v", got, err)
	}
	got.Finalizers = nil
	if _, err := maps.Update(t.Context(), got, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := maps.Get(t.Context(), "held", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("object without its finalizer: got %v, want NotFound", err)
	}
}

func testPreconditions(t *testing.T, s *Server, namespace string) {
	c := createConfigMap(t, s, namespace, configMap("one"))
	maps := s.Client.CoreV1().ConfigMaps(namespace)
	other := types.UID("other")
	err := maps.Delete(t.Context(), "one", metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &other}})
	if !apierrors.IsConflict(err) {
		t.Errorf("delete with another UID: got %v, want Conflict", err)
	}
	if err := maps.Delete(t.Context(), "one", metav1.DeleteOptions{Preconditions: &metav1.Preconditions{
		UID: &c.UID}}); err != nil {
		t.Error(err)
	}
}

// testEvents creates events in v1 and events.k8s.io and reads each through the other group.
func testEvents(t *testing.T, s *Server, namespace string) {
	oldEvent := &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Name: "old"}, Reason: "Started", Message: "container started", Type: "Normal",
		Count:          3,
		InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: namespace, Name: "p"},
		Source: corev1.EventSource{
			Component: "berth", Host: "n"},
	}
	if _, err := s.Client.CoreV1().Events(namespace).Create(t.Context(), oldEvent, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	converted, err := s.Client.EventsV1().Events(namespace).Get(t.Context(), "old", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if converted.Note != "container started" || converted.Regarding.Name != "p" ||
		converted.DeprecatedSource.Host != "n" || converted.DeprecatedCount != 3 {
		t.Errorf("event of v1 read through events.k8s.io: got %+v", converted)
	}
	newEvent := &eventsv1.Event{
		ObjectMeta: metav1.ObjectMeta{Name: "new"}, Reason: "Exited", Note: "container exited", Type: "Normal",
		EventTime: metav1.NowMicro(), Action: "Exit",
		Regarding:           corev1.ObjectReference{Kind: "Pod", Namespace: namespace, Name: "p"},
		ReportingController: "example.com/berth", ReportingInstance: "n",
	}
	if _, err := s.Client.EventsV1().Events(namespace).Create(t.Context(), newEvent,
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	list, err := s.Client.CoreV1().Events(namespace).List(t.Context(),
		metav1.ListOptions{FieldSelector: "involvedObject.name=p,reason=Exited"})
	if err != nil || len(list.Items) != 1 || list.Items[0].Message != "container exited" ||
		list.Items[0].ReportingController != "example.com/berth" {
		t.Errorf("event of events.k8s.io read through v1: got %+v, %v", list, err)
	}
	regarding, err := s.Client.EventsV1().Events(namespace).List(t.Context(),
		metav1.ListOptions{FieldSelector: "regarding.name=p"})
	if err != nil || len(regarding.Items) != 2 {
		t.Errorf("events of the pod: got %+v, want two, %v", regarding, err)
	}
}

func testPartialMetadata(t *testing.T, s *Server, namespace string) {
	createConfigMap(t, s, namespace, configMap("one", "secret", "data"))
	client, err := metadata.NewForConfig(s.Config)
	if err != nil {
		t.Fatal(err)
	}
	m, err := client.Resource(corev1.SchemeGroupVersion.WithResource("configmaps")).Namespace(namespace).Get(
		t.Context(),
		"one", metav1.GetOptions{})
	if err != nil || m.Name != "one" || m.UID == "" {
		t.Errorf("got metadata %+v, %v", m, err)
	}
}

func testDryRun(t *testing.T, s *Server, namespace string) {
	maps := s.Client.CoreV1().ConfigMaps(namespace)
	if _, err := maps.Create(t.Context(), configMap("dry-run"), metav1.CreateOptions{DryRun: []string{
		metav1.DryRunAll}}); err != nil {
		t.Fatal(err)
	}
	if _, err := maps.Get(t.Context(), "dry-run", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("after a dry run: got %v, want NotFound", err)
	}
}

func testStrictValidation(t *testing.T, s *Server, namespace string) {
	text := "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: odd, namespace: " + namespace + "}\ndatta: {a: b}\n"
	out, err := s.TryKubectl(t, text, "create", "-f", "-")
	if err == nil || !strings.Contains(out, `unknown field "datta"`) {
		t.Errorf("kubectl create: got %q, %v", out, err)
	}
	out, err = s.TryKubectl(t, text, "create", "--validate=warn", "-f", "-")
	if err != nil || !strings.Contains(out, `Warning: unknown field "datta"`) {
		t.Errorf("kubectl create --validate=warn: got %q, %v", out, err)
	}
}

func testServerSideApply(t *testing.T, s *Server, namespace string) {
	manifest := func(a string) string {
		return "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: owned, namespace: " + namespace + "}\ndata: {a: \"" +
			a +
			"\"}\n"
	}
	s.Apply(t, manifest("1"), "--server-side", "--field-manager=first")
	out, err := s.TryKubectl(t, manifest("2"), "apply", "--server-side", "--field-manager=second", "-f", "-")
	if err == nil || !strings.Contains(out, `conflict with "first": .data.a`) {
		t.Errorf("apply by another field manager: got %q, %v", out, err)
	}
	s.Apply(t, manifest("2"), "--server-side", "--field-manager=second", "--force-conflicts")
	got, err := s.Client.CoreV1().ConfigMaps(namespace).Get(t.Context(), "owned", metav1.GetOptions{})
	if err != nil || got.Data["a"] != "2" {
		t.Errorf("after --force-conflicts: got %v, %v", got, err)
	}
	if !slices.ContainsFunc(got.ManagedFields, func(f metav1.ManagedFieldsEntry) bool {
		return f.Manager == "second" &&
			f.Operation == "Apply"
	}) {
		t.Errorf("got managed fields %v", got.ManagedFields)
	}
}

func testRequestTooLarge(t *testing.T, s *Server, namespace string) {
	_, err := s.Client.CoreV1().ConfigMaps(namespace).Create(context.WithoutCancel(t.Context()), configMap("big", "a",
		strings.Repeat("x", 4<<20)), metav1.CreateOptions{})
	if !apierrors.IsRequestEntityTooLargeError(err) {
		t.Errorf("create of 4 MiB: got %v, want RequestEntityTooLarge", err)
	}
}
