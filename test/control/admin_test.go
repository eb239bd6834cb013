package control

import (
	"fmt"
	"os"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"berth/control"
	"berth/control/authz"
)

// TestAdministratorIsRevocable uses the administrator's kubeconfig as soon as the server is ready, deletes its
// binding, and restarts the server. Only the kubeconfig for emergencies has permissions then, and can restore the
// binding.
func TestAdministratorIsRevocable(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	withDataDir := func(c *control.Config) { c.DataDir = dir }
	s := Start(t, withDataDir)
	ctx := t.Context()
	listSecrets := func(client kubernetes.Interface) error {
		return errorOf(client.CoreV1().Secrets("").List(ctx, metav1.ListOptions{}))
	}
	if err := listSecrets(s.Client); err != nil {
		t.Fatalf("first request of the administrator: %v", err)
	}
	s.Stop(t)
	s = Start(t, withDataDir)
	if err := listSecrets(s.Client); err != nil {
		t.Fatalf("first request of the administrator after a restart: %v", err)
	}
	if info, err := os.Stat(s.SuperAdminKubeconfig()); err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("kubeconfig for emergencies: got %v, %v, want mode 0600", info, err)
	}
	isForbidden := func(client kubernetes.Interface) func() string {
		return func() string { return fmt.Sprint(apierrors.IsForbidden(listSecrets(client))) }
	}
	if err := s.Client.RbacV1().ClusterRoleBindings().Delete(ctx, authz.AdminBinding,
		metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	waitForResult(t, "rejection of the administrator after the deletion", isForbidden(s.Client), "true")
	s.Stop(t)
	s = Start(t, withDataDir)
	if err := listSecrets(s.Client); !apierrors.IsForbidden(err) {
		t.Errorf("the administrator after a restart: got %v, want Forbidden", err)
	}
	super := s.superAdmin(t)
	if err := listSecrets(super); err != nil {
		t.Errorf("the kubeconfig for emergencies: %v", err)
	}
	if out, err := RunKubectl(t, s.SuperAdminKubeconfig(), "", "create", "clusterrolebinding", authz.AdminBinding,
		"--clusterrole=cluster-admin", "--group=kubeadm:cluster-admins"); err != nil {
		t.Fatalf("restore the binding: %v\n%s", err, out)
	}
	waitForResult(t, "rejection of the administrator after the binding is restored", isForbidden(s.Client), "false")
}

// superAdmin returns the client of the kubeconfig for emergencies.
func (s *Server) superAdmin(t *testing.T) kubernetes.Interface {
	t.Helper()
	c, err := clientcmd.BuildConfigFromFlags("", s.SuperAdminKubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	client, err := kubernetes.NewForConfig(c)
	if err != nil {
		t.Fatal(err)
	}
	return client
}
