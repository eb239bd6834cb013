package control

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	restclient "k8s.io/client-go/rest"
)

const (
	flundersPath   = "/apis/wardle.example.com/v1/namespaces/default/flunders"
	wardleService  = "v1.wardle.example.com"
	metricsService = "v1beta1.metrics.k8s.io"
)

// apiService returns the manifest of an APIService of a Service in the namespace default.
func (e *extensionServer) apiService(group, version, service string) string {
	return fmt.Sprintf(`apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: %[2]s.%[1]s}
spec:
  group: %[1]s
  version: %[2]s
  groupPriorityMinimum: 1000
  versionPriority: 15
  service: {namespace: default, name: %[3]s, port: 443}
  caBundle: %[4]s
`, group, version, service, base64.StdEncoding.EncodeToString(e.caBundle))
}

// waitForAvailability waits until kubectl shows an APIService with a text in the column AVAILABLE.
func waitForAvailability(t *testing.T, s *Server, name, want string) {
	t.Helper()
	eventually(t, "APIService "+name+" to be "+want, func() (bool, string) {
		out, _ := s.TryKubectl(t, "", "get", "apiservice", name, "--no-headers")
		return strings.Contains(out, " "+want+" "), out
	})
}

// raw requests a path and returns the response.
func raw(client kubernetes.Interface, path string) (string, error) {
	out, err := client.Discovery().RESTClient().Get().AbsPath(path).Do(context.Background()).Raw()
	return string(out), err
}

// TestAggregatedAPI registers an extension API server, uses it, breaks it, and removes it again.
func TestAggregatedAPI(t *testing.T) {
	t.Parallel()
	s := Start(t)
	e := startExtensionServer(t, "wardle", "default")
	e.asService(t, s, "wardle")
	checkLocalAPIServices(t, s)
	s.Apply(t, e.apiService(wardle, "v1", "wardle"))
	waitForAvailability(t, s, wardleService, "True")
	eventually(t, "discovery of flunders", func() (bool, string) {
		out, _ := s.TryKubectl(t, "", "api-resources", "--api-group="+wardle, "--no-headers")
		return strings.Contains(out, "Flunder"), out
	})
	checkAggregatedDocuments(t, s)
	checkAggregatedObjects(t, s, e)
	checkFrontProxy(t, s, e)
	checkUpgrade(t, s)
	checkOwnership(t, s, e)
	checkUnavailable(t, s, e)
	s.Kubectl(t, "delete", "apiservice", wardleService)
	eventually(t, "the group to be removed", func() (bool, string) {
		out, _ := s.TryKubectl(t, "", "api-resources", "--api-group="+wardle, "--no-headers")
		_, err := raw(s.Client, flundersPath)
		index, _ := raw(s.Client, "/openapi/v3")
		return out == "" && apierrors.IsNotFound(err) && !strings.Contains(index, wardle), fmt.Sprint(out, err)
	})
	checkMetricsOverride(t, s, e)
}

// checkLocalAPIServices checks those of built-in groups and of a definition.
func checkLocalAPIServices(t *testing.T, s *Server) {
	t.Helper()
	defineGadgets(t, s, "local.example.com", gadgetDefinition)
	eventually(t, "Local APIServices", func() (bool, string) {
		out := s.Kubectl(t, "get", "apiservices")
		for _, name := range []string{"v1.", "v1.apps", "v2.autoscaling", "v1.apiextensions.k8s.io",
			"v1.local.example.com", "v1beta1.local.example.com"} {
			if !slices.ContainsFunc(strings.Split(out, "\n"), func(line string) bool {
				f := strings.Fields(line)
				return len(f) == 4 && f[0] == name && f[1] == "Local" && f[2] == "True"
			}) {
				return false, name + " is missing in\n" + out
			}
		}
		return strings.HasPrefix(strings.Join(strings.Fields(out), " "), "NAME SERVICE AVAILABLE AGE") &&
			!strings.Contains(out, metricsService), out
	})
	s.Kubectl(t, "delete", "crd", "gadgets.local.example.com")
	eventually(t, "the APIService of a deleted definition to be removed", func() (bool, string) {
		out := s.Kubectl(t, "get", "apiservices")
		return !strings.Contains(out, "local.example.com"), out
	})
	invalid := strings.Replace(localManifest, "name: v1.invalid.example.com", "name: other", 1)
	if out, err := s.TryKubectl(t, invalid, "create", "--validate=false", "-f", "-"); err == nil ||
		!strings.Contains(out, "metadata.name") {
		t.Errorf("create an APIService with another name: got %v %s, want an error about metadata.name", err, out)
	}
}

const localManifest = `apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: v1.invalid.example.com}
spec: {group: invalid.example.com, version: v1, groupPriorityMinimum: 1000, versionPriority: 15}
`

// checkAggregatedDocuments checks both forms of discovery, and the OpenAPI documents.
func checkAggregatedDocuments(t *testing.T, s *Server) {
	t.Helper()
	for path, want := range map[string]string{
		"/apis":                                  `"groupVersion":"wardle.example.com/v1"`,
		"/apis/" + wardle:                        `"preferredVersion":{"groupVersion":"wardle.example.com/v1"`,
		"/openapi/v3":                            "/openapi/v3/apis/wardle.example.com/v1?hash=ABC",
		"/openapi/v3/apis/wardle.example.com/v1": "A flunder flunders.",
	} {
		out, err := raw(s.Client, path)
		if err != nil || !strings.Contains(out, want) {
			t.Errorf("GET %s: got %v %.3000s, want %s in it", path, err, out, want)
		}
	}
	if out := s.Kubectl(t, "explain", "flunder.spec"); !strings.Contains(out, "What it flunders.") {
		t.Errorf("kubectl explain: got %s", out)
	}
}

// checkAggregatedObjects creates, lists and watches.
func checkAggregatedObjects(t *testing.T, s *Server, e *extensionServer) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), eventTimeout)
	defer cancel()
	stream, err := s.Client.Discovery().RESTClient().Get().AbsPath(flundersPath).Param("watch", "true").Stream(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	out, err := s.TryKubectl(t, flunder("one", "default", ""), "create", "--validate=false", "-f", "-")
	if err != nil {
		t.Fatalf("create: %v %s", err, out)
	}
	line, err := bufio.NewReader(stream).ReadString('\n')
	if err != nil || !strings.Contains(line, `"ADDED"`) || !strings.Contains(line, `"name":"one"`) {
		t.Errorf("watch: got %v %s", err, line)
	}
	if out := s.Kubectl(t, "get", "flunders", "-o", "name"); !strings.Contains(out, "flunder.wardle.example.com/one") {
		t.Errorf("kubectl get flunders: got %s", out)
	}
	if got := fmt.Sprint(e.names()); got != "[default/one]" {
		t.Errorf("objects of the extension API server: got %s", got)
	}
}

func flunder(name, namespace, metadata string) string {
	return fmt.Sprintf("apiVersion: wardle.example.com/v1\nkind: Flunder\nmetadata: {name: %s, namespace: %s%s}\n",
		name, namespace, metadata)
}

// checkFrontProxy checks what the extension API server learns about the caller, and that the caller needs permission.
func checkFrontProxy(t *testing.T, s *Server, e *extensionServer) {
	t.Helper()
	ctx := t.Context()
	jane := s.clientWith(t, func(c *restclient.Config) {
		s.withCertificate(t, "jane", "flunder-readers", "others")(c)
		c.UserAgent = "jane"
	})
	before := e.last("/flunders")
	if _, err := raw(jane, flundersPath); !apierrors.IsForbidden(err) {
		t.Errorf("list without permission: got %v, want forbidden", err)
	}
	if e.last("/flunders") != before {
		t.Error("a rejected request reached the extension API server")
	}
	if _, err := s.Client.RbacV1().ClusterRoles().Create(ctx, &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: "flunder-reader"},
		Rules: []rbacv1.PolicyRule{{APIGroups: []string{wardle}, Resources: []string{"flunders"},
			Verbs: []string{"get", "list"}}}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Client.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "flunder-reader"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.GroupKind, APIGroup: rbacv1.GroupName, Name: "flunder-readers"}},
		RoleRef:    rbacv1.RoleRef{Kind: "ClusterRole", APIGroup: rbacv1.GroupName, Name: "flunder-reader"},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "permission for jane", func() (bool, string) {
		_, err := jane.Discovery().RESTClient().Get().AbsPath(flundersPath).SetHeader("X-Remote-User", "admin").
			SetHeader("X-Remote-Group", "system:masters").Do(ctx).Raw()
		return err == nil, fmt.Sprint(err)
	})
	r := e.last("/flunders")
	for header, want := range map[string][]string{
		"X-Remote-User": {"jane"}, "X-Remote-Group": {"flunder-readers", "others", "system:authenticated"},
		"Authorization": nil, "User-Agent": {"jane"},
	} {
		if got := slices.Sorted(slices.Values(r.Header.Values(header))); !slices.Equal(got, want) {
			t.Errorf("header %s: got %q, want %q", header, got, want)
		}
	}
	token, err := s.Client.CoreV1().ServiceAccounts("default").CreateToken(ctx, "default",
		&authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	s.Kubectl(t, "create", "clusterrolebinding", "default-reader", "--clusterrole=flunder-reader",
		"--serviceaccount=default:default")
	account := s.clientWithToken(t, token.Status.Token)
	eventually(t, "permission for the service account", func() (bool, string) {
		_, err := raw(account, flundersPath)
		return err == nil, fmt.Sprint(err)
	})
	r = e.last("/flunders")
	if r.Header.Get("X-Remote-User") != "system:serviceaccount:default:default" || r.Header.Get("X-Remote-Uid") == "" ||
		r.Header.Get("Authorization") != "" {
		t.Errorf("headers of a request with a token: got %v", r.Header)
	}
	checkAuthenticationConfigMap(t, s, r)
}

// checkAuthenticationConfigMap checks that the ConfigMap authenticates the front proxy that has sent a request.
func checkAuthenticationConfigMap(t *testing.T, s *Server, r *http.Request) {
	t.Helper()
	config := &corev1.ConfigMap{}
	eventually(t, "the ConfigMap for extension API servers", func() (bool, string) {
		var err error
		config, err = s.Client.CoreV1().ConfigMaps("kube-system").Get(t.Context(), "extension-apiserver-authentication",
			metav1.GetOptions{})
		return err == nil, fmt.Sprint(err)
	})
	for key, want := range map[string]string{
		"requestheader-allowed-names":        `["front-proxy-client"]`,
		"requestheader-username-headers":     `["X-Remote-User"]`,
		"requestheader-uid-headers":          `["X-Remote-Uid"]`,
		"requestheader-group-headers":        `["X-Remote-Group"]`,
		"requestheader-extra-headers-prefix": `["X-Remote-Extra-"]`,
		"client-ca-file":                     string(s.Authority.PEM()),
	} {
		if got := config.Data[key]; got != want {
			t.Errorf("%s: got %s, want %s", key, got, want)
		}
	}
	roots, intermediates := x509.NewCertPool(), x509.NewCertPool()
	if !roots.AppendCertsFromPEM([]byte(config.Data["requestheader-client-ca-file"])) {
		t.Fatalf("no front proxy CA in %v", config.Data)
	}
	if len(r.TLS.PeerCertificates) == 0 {
		t.Fatal("the front proxy has sent no certificate")
	}
	client := r.TLS.PeerCertificates[0]
	if _, err := client.Verify(x509.VerifyOptions{Roots: roots, Intermediates: intermediates,
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err != nil ||
		client.Subject.CommonName != "front-proxy-client" {
		t.Errorf("certificate of the front proxy: got %s, %v", client.Subject, err)
	}
	if _, err := client.Verify(x509.VerifyOptions{Roots: s.Authority.Pool(),
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}}); err == nil {
		t.Error("the cluster's CA can issue certificates of the front proxy")
	}
}

// checkUpgrade exchanges data over an upgraded connection.
func checkUpgrade(t *testing.T, s *Server) {
	t.Helper()
	config, err := restclient.TLSConfigFor(s.Config)
	if err != nil {
		t.Fatal(err)
	}
	config.NextProtos = []string{"http/1.1"}
	conn, err := tls.Dial("tcp", strings.TrimPrefix(s.Config.Host, "https://"), config)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, err = fmt.Fprintf(conn, "POST %s/one/echo HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\n"+
		"Upgrade: echo\r\nContent-Length: 0\r\n\r\n", flundersPath)
	if err != nil {
		t.Fatal(err)
	}
	in := bufio.NewReader(conn)
	resp, err := http.ReadResponse(in, nil)
	if err != nil || resp.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("upgrade: got %v %v", resp, err)
	}
	defer resp.Body.Close()
	_, err = fmt.Fprintln(conn, "hello")
	line, readErr := in.ReadString('\n')
	if line != "echo hello\n" {
		t.Errorf("upgraded connection: got %q %v", line, errors.Join(err, readErr))
	}
}

// checkOwnership checks that flunders can own and be owned, and are deleted with their namespace.
func checkOwnership(t *testing.T, s *Server, e *extensionServer) {
	t.Helper()
	ctx := t.Context()
	var one struct{ Metadata metav1.ObjectMeta }
	text, err := raw(s.Client, flundersPath+"/one")
	if err == nil {
		err = json.Unmarshal([]byte(text), &one)
	}
	if err != nil {
		t.Fatal(err)
	}
	configs := s.Client.CoreV1().ConfigMaps("default")
	config, err := configs.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "owned",
		OwnerReferences: []metav1.OwnerReference{{APIVersion: wardle + "/v1", Kind: "Flunder", Name: "one",
			UID: one.Metadata.UID}}}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	owner, err := configs.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "owner"}},
		metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	s.Kubectl(t, "create", "namespace", "flunders")
	for _, manifest := range []string{flunder("two", "flunders", ""), flunder("dependent", "default",
		fmt.Sprintf(", ownerReferences: [{apiVersion: v1, kind: ConfigMap, name: owner, uid: %s}]", owner.UID))} {
		if out, err := s.TryKubectl(t, manifest, "create", "--validate=false", "-f", "-"); err != nil {
			t.Fatalf("create: %v %s", err, out)
		}
	}
	if err := configs.Delete(ctx, owner.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	s.Kubectl(t, "delete", "flunder", "one", "--wait=false")
	s.Kubectl(t, "delete", "namespace", "flunders")
	eventually(t, "dependents to be deleted", func() (bool, string) {
		_, err := configs.Get(ctx, config.Name, metav1.GetOptions{})
		return apierrors.IsNotFound(err) && len(e.names()) == 0, fmt.Sprint(e.names(), err)
	})
}

// checkUnavailable breaks the server in two ways.
func checkUnavailable(t *testing.T, s *Server, e *extensionServer) {
	t.Helper()
	endpoints := s.Client.DiscoveryV1().EndpointSlices("default")
	slice, err := endpoints.Get(t.Context(), "wardle", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	s.Kubectl(t, "delete", "endpointslice", "wardle")
	waitForAvailability(t, s, wardleService, "False (EndpointsNotFound)")
	slice.ResourceVersion, slice.UID = "", ""
	e.setDown(true)
	if _, err := endpoints.Create(t.Context(), slice, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	waitForAvailability(t, s, wardleService, "False (FailedDiscoveryCheck)")
	eventually(t, "requests to be rejected", func() (bool, string) {
		_, err := raw(s.Client, flundersPath)
		return apierrors.IsServiceUnavailable(err), fmt.Sprint(err)
	})
	if out := s.Kubectl(t, "get", "pods"); !strings.Contains(out, "No resources found") {
		t.Errorf("another group: got %s", out)
	}
	s.Kubectl(t, "create", "namespace", "broken")
	s.Kubectl(t, "create", "configmap", "content", "--namespace=broken")
	s.Kubectl(t, "delete", "namespace", "broken", "--wait=false")
	eventually(t, "the namespace to wait for discovery", func() (bool, string) {
		out := s.Kubectl(t, "get", "namespace", "broken", "-o",
			`jsonpath={.status.conditions[?(@.type=="NamespaceDeletionDiscoveryFailure")].reason}`)
		content, err := s.TryKubectl(t, "", "get", "configmap", "content", "--namespace=broken")
		return out == "DiscoveryFailed" && err != nil, out + content
	})
	e.setDown(false)
	waitForAvailability(t, s, wardleService, "True")
	s.Kubectl(t, "wait", "--for=delete", "namespace/broken", "--timeout=4m")
	if _, err := raw(s.Client, flundersPath); err != nil {
		t.Errorf("list after the recovery: %v", err)
	}
}

// checkMetricsOverride replaces the metrics API of the server, by an external name, and restores it.
func checkMetricsOverride(t *testing.T, s *Server, e *extensionServer) {
	t.Helper()
	nodes := func() string {
		out, err := raw(s.Client, "/apis/metrics.k8s.io/v1beta1/nodes")
		return fmt.Sprint(out, err)
	}
	podsServed := func() bool {
		out := s.Kubectl(t, "api-resources", "--api-group=metrics.k8s.io", "--no-headers")
		return strings.Contains(out, "PodMetrics")
	}
	if out := nodes(); strings.Contains(out, "extension") || !podsServed() {
		t.Errorf("metrics of the server: got %s", out)
	}
	s.Apply(t, fmt.Sprintf(`apiVersion: v1
kind: Service
metadata: {name: external}
spec: {type: ExternalName, externalName: %s}
---
`, nonLoopbackAddress(t))+strings.Replace(e.apiService("metrics.k8s.io", "v1beta1", "external"), "port: 443",
		"port: "+e.port, 1))
	waitForAvailability(t, s, metricsService, "True")
	eventually(t, "metrics of the extension API server", func() (bool, string) {
		out := nodes()
		return strings.Contains(out, `"name":"extension"`) && !podsServed(), out
	})
	s.Kubectl(t, "delete", "apiservice", metricsService)
	eventually(t, "metrics of the server", func() (bool, string) {
		out := nodes()
		return strings.Contains(out, "NodeMetricsList") && !strings.Contains(out, "extension") && podsServed(), out
	})
}
