package authz

import (
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
)

func TestNextAdminBindingStep(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name             string
		exists, recorded bool
		want             adminBindingStep
	}{
		{"first start", false, false, adminBindingStep{create: true, record: true}},
		{"the server was killed between both writes, or a cluster of kubeadm", true, false,
			adminBindingStep{record: true}},
		{"later start", true, true, adminBindingStep{}},
		{"revoked by deletion", false, true, adminBindingStep{}},
	} {
		if got := nextAdminBindingStep(row.exists, row.recorded); got != row.want {
			t.Errorf("%s: got %+v, want %+v", row.name, got, row.want)
		}
	}
}

// TestEnsureAdminBindingKeepsRevocation deletes and changes the binding between starts. The default roles are
// reconciled at each start.
func TestEnsureAdminBindingKeepsRevocation(t *testing.T) {
	t.Parallel()
	ctx, client := t.Context(), fake.NewClientset()
	bindings := client.RbacV1().ClusterRoleBindings()
	start := func(wantFirst bool) {
		t.Helper()
		if err := DefaultPolicy().Reconcile(ctx, client); err != nil {
			t.Fatal(err)
		}
		if first, err := EnsureAdminBinding(ctx, client, "admins"); err != nil || first != wantFirst {
			t.Fatalf("got first %v, want %v, %v", first, wantFirst, err)
		}
	}
	start(true)
	binding, err := bindings.Get(ctx, AdminBinding, metav1.GetOptions{})
	if err != nil || len(binding.Subjects) != 1 || binding.Subjects[0] != group("admins") ||
		binding.RoleRef != (rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"}) {
		t.Fatalf("got binding %+v, %v", binding, err)
	}
	binding.Subjects = nil
	if _, err := bindings.Update(ctx, binding, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	start(false)
	if binding, err = bindings.Get(ctx, AdminBinding, metav1.GetOptions{}); err != nil || len(binding.Subjects) != 0 {
		t.Errorf("the subjects were restored: %+v, %v", binding, err)
	}
	if err := bindings.Delete(ctx, AdminBinding, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	start(false)
	if _, err := bindings.Get(ctx, AdminBinding, metav1.GetOptions{}); err == nil {
		t.Error("the deleted binding was restored")
	}
}
