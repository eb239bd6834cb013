package authz

import (
	"context"
	"fmt"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

// AdminBinding is the name of the ClusterRoleBinding that makes the administrator a cluster-admin. It has kubeadm's
// name.
const AdminBinding = "kubeadm:cluster-admins"

const (
	adminRole = "cluster-admin"
	// adminBindingCreated is an annotation of the role cluster-admin. It means that the binding has been created
	// once. A binding that is missing since has been deleted to revoke the administrator's access.
	adminBindingCreated = "berth.dev/admin-binding-created"
)

// adminBindingStep is what EnsureAdminBinding does.
type adminBindingStep struct{ create, record bool }

// nextAdminBindingStep decides from whether the binding exists, and whether its creation is recorded.
func nextAdminBindingStep(exists, recorded bool) adminBindingStep {
	return adminBindingStep{create: !exists && !recorded, record: !recorded}
}

// EnsureAdminBinding creates the ClusterRoleBinding of the administrator's group unless it has been created before:
// at the first start of a cluster, and at the first start of a release that has the binding. Later starts do not
// restore a binding that was deleted or changed. first reports that the creation was not recorded yet. The role
// cluster-admin must exist.
func EnsureAdminBinding(ctx context.Context, client kubernetes.Interface, group string) (first bool, err error) {
	rbac := client.RbacV1()
	role, err := rbac.ClusterRoles().Get(ctx, adminRole, metav1.GetOptions{})
	if err != nil {
		return false, fmt.Errorf("get cluster role %s: %w", adminRole, err)
	}
	_, err = rbac.ClusterRoleBindings().Get(ctx, AdminBinding, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return false, fmt.Errorf("get cluster role binding %s: %w", AdminBinding, err)
	}
	step := nextAdminBindingStep(err == nil, role.Annotations[adminBindingCreated] == "true")
	if step.create {
		_, err := rbac.ClusterRoleBindings().Create(ctx, newAdminBinding(group), metav1.CreateOptions{})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			return false, fmt.Errorf("create cluster role binding %s: %w", AdminBinding, err)
		}
	}
	if step.record {
		patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:"true"}}}`, adminBindingCreated)
		if _, err := rbac.ClusterRoles().Patch(ctx, adminRole, types.MergePatchType, patch,
			metav1.PatchOptions{}); err != nil {
			return false, fmt.Errorf("record creation of cluster role binding %s: %w", AdminBinding, err)
		}
	}
	return step.record, nil
}

func newAdminBinding(members string) *rbacv1.ClusterRoleBinding {
	return &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: AdminBinding},
		Subjects:   []rbacv1.Subject{group(members)},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: adminRole},
	}
}

// ObservesAdminBinding reports whether the authorizer has observed the administrator's binding and its role.
func (r *RBAC) ObservesAdminBinding() bool {
	_, bindingErr := r.clusterBindings.Get(AdminBinding)
	_, roleErr := r.clusterRoles.Get(adminRole)
	return bindingErr == nil && roleErr == nil
}
