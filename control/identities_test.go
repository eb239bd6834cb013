package control

import (
	"slices"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"

	"berth/control/authz"
	"berth/control/controllers"
)

// TestControllersAreBoundToRoles: the default policy binds the user of each controller to a role of its own.
func TestControllersAreBoundToRoles(t *testing.T) {
	t.Parallel()
	policy := authz.DefaultPolicy()
	for _, name := range controllers.Names() {
		u := controllerUser(name)
		if slices.Contains(u.GetGroups(), user.SystemPrivilegedGroup) {
			t.Errorf("%s acts as a member of %s", name, user.SystemPrivilegedGroup)
		}
		bound := slices.ContainsFunc(policy.ClusterRoleBindings, func(b rbacv1.ClusterRoleBinding) bool {
			return slices.ContainsFunc(b.Subjects, func(s rbacv1.Subject) bool {
				account := controllers.ServiceAccount(name)
				return account == "" && s.Kind == rbacv1.UserKind && s.Name == u.GetName() ||
					account != "" && s.Kind == rbacv1.ServiceAccountKind && s.Name == account &&
						s.Namespace == metav1.NamespaceSystem && b.RoleRef.Name == "system:controller:"+account
			})
		})
		if !bound {
			t.Errorf("%s acts as %s, which no default role is bound to", name, u.GetName())
		}
	}
}

func TestReleasedIdentityIsRejected(t *testing.T) {
	t.Parallel()
	var i identities
	token := i.tokenFor(controllerUser(controllers.GarbageCollector))
	response, ok, err := i.AuthenticateToken(t.Context(), token)
	if err != nil || !ok ||
		response.User.GetName() != "system:serviceaccount:kube-system:generic-garbage-collector" {
		t.Errorf("got %+v, %v, %v", response, ok, err)
	}
	i.forget(token)
	if _, ok, err := i.AuthenticateToken(t.Context(), token); ok || err != nil {
		t.Errorf("after the release: %v, %v", ok, err)
	}
	if _, ok, err := i.AuthenticateToken(t.Context(), ""); ok || err != nil {
		t.Errorf("empty token: %v, %v", ok, err)
	}
}
