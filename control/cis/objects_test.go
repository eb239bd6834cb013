package cis

import (
	"errors"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	metadatafake "k8s.io/client-go/metadata/fake"
	clienttesting "k8s.io/client-go/testing"
)

// TestReadCluster lists objects of fake clients.
func TestReadCluster(t *testing.T) {
	t.Parallel()
	client := fake.NewClientset(
		&corev1.Namespace{ObjectMeta: meta("", "team")}, &corev1.Node{ObjectMeta: meta("", "one")},
		&corev1.Pod{ObjectMeta: meta("team", "web")}, &corev1.ServiceAccount{ObjectMeta: meta("team", "default")},
		&rbacv1.ClusterRole{ObjectMeta: meta("", "r")}, &rbacv1.Role{ObjectMeta: meta("team", "r")},
		&rbacv1.ClusterRoleBinding{ObjectMeta: meta("", "b")}, &rbacv1.RoleBinding{ObjectMeta: meta("team", "b")},
	)
	scheme := metadatafake.NewTestScheme()
	if err := metav1.AddMetaToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	objects := metadatafake.NewSimpleMetadataClient(scheme)
	// The names of objects by resource, namespace and field selector.
	names := map[string]string{
		"secrets//type=kubernetes.io/service-account-token": "team/long",
		"secrets//type=bootstrap.kubernetes.io/token":       "kube-system/join",
		"configmaps//metadata.name=kube-root-ca.crt":        "team/kube-root-ca.crt",
		"configmaps/default/":                               "default/kube-root-ca.crt",
		"services/default/":                                 "default/kubernetes",
		"deployments/default/":                              "default/web",
	}
	objects.PrependReactor("list", "*", func(a clienttesting.Action) (bool, runtime.Object, error) {
		l, ok := a.(clienttesting.ListAction)
		if !ok {
			return false, nil, nil
		}
		out := &metav1.List{}
		key := a.GetResource().Resource + "/" + a.GetNamespace() + "/" + l.GetListRestrictions().Fields.String()
		if namespace, name, found := strings.Cut(names[key], "/"); found {
			one := &metav1.PartialObjectMetadata{ObjectMeta: meta(namespace, name)}
			out.Items = []runtime.RawExtension{{Object: one}}
		}
		return true, out, nil
	})
	c, err := (&clients{client: client, metadata: objects}).readCluster(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for what, n := range map[string]int{"namespaces": len(c.Namespaces), "nodes": len(c.Nodes), "pods": len(c.Pods),
		"accounts": len(c.ServiceAccounts), "cluster roles": len(c.ClusterRoles), "roles": len(c.Roles),
		"cluster bindings": len(c.ClusterRoleBindings), "bindings": len(c.RoleBindings)} {
		if n != 1 {
			t.Errorf("got %d %s", n, what)
		}
	}
	if !slices.Equal(c.TokenSecrets, []string{"team/long"}) || !slices.Equal(c.WithRootCA, []string{"team"}) ||
		!slices.Equal(c.BootstrapTokens, []string{"kube-system/join"}) ||
		!slices.Equal(c.DefaultNamespace, []string{"deployments/web"}) {
		t.Errorf("got %+v", c)
	}
	client.PrependReactor("list", "roles", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, errors.New("forbidden")
	})
	c, err = (&clients{client: client, metadata: objects}).readCluster(t.Context())
	if c != nil || err == nil || err.Error() != "list roles: forbidden" {
		t.Errorf("got %v, want an error with the cause", err)
	}
}
