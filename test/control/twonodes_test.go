package control

import (
	"fmt"
	"sync"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// twoNodeCluster is a server with the nodes x and y. The pods on-x and on-y in the namespace shop use the
// secrets and ConfigMaps of-x and of-y.
type twoNodeCluster struct {
	*Server
	x, y kubernetes.Interface // clients of the nodes
}

// newTwoNodeCluster starts a server and creates the objects of a twoNodeCluster.
func newTwoNodeCluster(t *testing.T) *twoNodeCluster {
	t.Helper()
	s := &twoNodeCluster{Server: Start(t)}
	s.createObjects(t)
	s.connectNodes(t)
	return s
}

var (
	sharedTwoNodes       = newSharedServer()
	sharedTwoNodeObjects sync.Once
)

// sharedTwoNodeCluster returns a twoNodeCluster that is shared with other tests. The test must not change its
// objects, and must give other objects unique names.
func sharedTwoNodeCluster(t *testing.T) *twoNodeCluster {
	t.Helper()
	s := &twoNodeCluster{Server: sharedTwoNodes.withNamespace(t)}
	sharedTwoNodeObjects.Do(func() { s.createObjects(t) })
	s.connectNodes(t)
	return s
}

// connectNodes creates the clients of the nodes.
func (s *twoNodeCluster) connectNodes(t *testing.T) {
	t.Helper()
	s.x, s.y = s.clientAs(t, "system:node:x", "system:nodes"), s.clientAs(t, "system:node:y", "system:nodes")
}

func (s *twoNodeCluster) createObjects(t *testing.T) {
	t.Helper()
	ctx := t.Context()
	s.Kubectl(t, "create", "namespace", "shop")
	for _, account := range []string{"app", "other"} {
		s.Kubectl(t, "create", "serviceaccount", account, "-n", "shop")
	}
	for _, node := range []string{"x", "y"} {
		s.Kubectl(t, "create", "secret", "generic", "of-"+node, "-n", "shop", "--from-literal=k=v")
		s.Kubectl(t, "create", "configmap", "of-"+node, "-n", "shop", "--from-literal=k=v")
		client := s.clientAs(t, "system:node:"+node, "system:nodes")
		if _, err := client.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node,
			Labels: map[string]string{corev1.LabelHostname: node}}}, metav1.CreateOptions{}); err != nil {
			t.Fatalf("register node %s: %v", node, err)
		}
		s.Apply(t, fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: on-%[1]s, namespace: shop}
spec:
  nodeName: "%[1]s"
  serviceAccountName: app
  containers:
  - name: main
    image: example/web
    envFrom: [{secretRef: {name: of-%[1]s}}, {configMapRef: {name: of-%[1]s}}]
`, node))
	}
}

// podToken returns a service account token that is bound to a pod.
func (s *twoNodeCluster) podToken(t *testing.T, pod string, ttl int64, audiences ...string) string {
	t.Helper()
	r, err := s.Client.CoreV1().ServiceAccounts("shop").CreateToken(t.Context(), "app", &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{
			Audiences: audiences, ExpirationSeconds: &ttl, BoundObjectRef: &authenticationv1.BoundObjectReference{
				APIVersion: "v1", Kind: "Pod", Name: pod},
		}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return r.Status.Token
}
