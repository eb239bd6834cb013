package control

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	restclient "k8s.io/client-go/rest"
)

// TestPodsWhyAndTimeline requests what the agent knows about a pod, as a user with the role view.
func TestPodsWhyAndTimeline(t *testing.T) {
	t.Parallel()
	s := Start(t)
	addNode(t, s, "n1", "4")
	serveSummary(t, s, "n1", func(w http.ResponseWriter, r *http.Request) {
		if len(r.TLS.PeerCertificates) == 0 {
			t.Error("got a request without a client certificate")
		}
		switch r.URL.Path {
		case "/podWhy/default/web", "/podTimeline/default/web":
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, fmt.Sprintf(`{"name": "web", "path": %q}`, r.URL.Path))
		case "/podWhy/default/unknown":
			http.Error(w, `pods "unknown" not found`, http.StatusNotFound)
		default:
			http.NotFound(w, r)
		}
	})
	addNode(t, s, "down", "4")
	s.updateNodeStatus(t, "down", func(n *corev1.Node) {
		n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "127.0.0.1"}}
		n.Status.DaemonEndpoints.KubeletEndpoint.Port = 1
	})
	for name, node := range map[string]string{"web": "n1", "unknown": "n1", "other": "n1", "lost": "down"} {
		s.Apply(t, podYAML(name, "1m", "  nodeName: "+node))
	}
	s.Apply(t, podYAML("big", "64", ""))
	client := viewer(t, s)
	get := func(path string) []byte { // an error is a Status
		out, _ := client.CoreV1().RESTClient().Get().
			AbsPath("/api/v1/namespaces/default/pods/" + path).DoRaw(t.Context())
		return out
	}
	for view, path := range map[string]string{"why": "podWhy", "timeline": "podTimeline"} {
		out := get("web/" + view)
		var got struct{ Name, Path string }
		if json.Unmarshal(out, &got) != nil || got.Name != "web" || got.Path != "/"+path+"/default/web" {
			t.Errorf("%s: got %q", view, out)
		}
	}
	for path, want := range map[string]string{
		"unknown/why":    `404 node "n1": pods "unknown" not found`,
		"other/timeline": `501 node "n1" does not run berth, or a version that does not explain pods`,
		"lost/why":       `503 node "down" is unreachable: dial tcp 127.0.0.1:1: connect: connection refused`,
		"missing/why":    `404 pods "missing" not found`,
	} {
		if got := statusText(get(path)); got != want {
			t.Errorf("%s: got %q, want %q", path, got, want)
		}
	}
	eventually(t, "the reason of the scheduler", func() (bool, string) {
		text := statusText(get("big/why"))
		return strings.HasPrefix(text, `404 pod "big" is not assigned to a node yet: 0/2 nodes are available`), text
	})
}

// statusText returns the code and the message of a Status.
func statusText(body []byte) string {
	var status metav1.Status
	if err := json.Unmarshal(body, &status); err != nil || status.Kind != "Status" {
		return string(body)
	}
	return fmt.Sprintf("%d %s", status.Code, status.Message)
}

// viewer returns a client of a user with the role view in the default namespace. It waits until the role is in effect.
func viewer(t *testing.T, s *Server) kubernetes.Interface {
	t.Helper()
	_, err := s.Client.RbacV1().RoleBindings("default").Create(t.Context(), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "viewer"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "view"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "jane"}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	config := restclient.CopyConfig(s.Config)
	config.Impersonate.UserName = "jane"
	config.Timeout = time.Minute
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the role of jane", func() (bool, string) {
		_, err := client.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{})
		return err == nil, fmt.Sprint(err)
	})
	return client
}
