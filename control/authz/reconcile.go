package authz

import (
	"context"
	"errors"
	"fmt"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/retry"
	"k8s.io/component-helpers/auth/rbac/reconciliation"
)

// Reconcile stores the default roles and bindings. It adds what is missing and preserves additions
// by users. Objects with the annotation rbac.authorization.kubernetes.io/autoupdate: "false" are
// not changed.
func (d *Defaults) Reconcile(ctx context.Context, client kubernetes.Interface) error {
	existing, err := listExisting(ctx, client)
	if err != nil {
		return err
	}
	var writes []func() error
	for i := range d.ClusterRoles {
		role := &d.ClusterRoles[i]
		writes = append(writes, existing.role(client, role))
	}
	for i := range d.ClusterRoleBindings {
		binding := &d.ClusterRoleBindings[i]
		writes = append(writes, existing.binding(client, binding))
	}
	for i := range d.Roles {
		role := &d.Roles[i]
		writes = append(writes, func() error { return reconcileRole(client, role) })
	}
	for i := range d.RoleBindings {
		binding := &d.RoleBindings[i]
		writes = append(writes, func() error { return reconcileRoleBinding(client, binding) })
	}
	return runParallel(writes)
}

// runParallel runs the writes with limited parallelism. Sequential writes would dominate the first
// start of a cluster.
func runParallel(writes []func() error) error {
	const workers = 8
	results, next := make(chan error), make(chan func() error)
	for range workers {
		go func() {
			var errs []error
			for do := range next {
				errs = append(errs, retry.OnError(retry.DefaultRetry, isRetriable, do))
			}
			results <- errors.Join(errs...)
		}()
	}
	for _, do := range writes {
		next <- do
	}
	close(next)
	var errs []error
	for range workers {
		errs = append(errs, <-results)
	}
	return errors.Join(errs...)
}

func isRetriable(err error) bool { return apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) }

// existingPolicy holds the stored cluster roles and bindings, read with two list requests.
type existingPolicy struct {
	roles    map[string]*rbacv1.ClusterRole
	bindings map[string]*rbacv1.ClusterRoleBinding
}

func listExisting(ctx context.Context, client kubernetes.Interface) (e existingPolicy, err error) {
	e = existingPolicy{map[string]*rbacv1.ClusterRole{}, map[string]*rbacv1.ClusterRoleBinding{}}
	roles, err := client.RbacV1().ClusterRoles().List(ctx, metav1.ListOptions{})
	if err != nil {
		return e, fmt.Errorf("list cluster roles: %w", err)
	}
	for i := range roles.Items {
		e.roles[roles.Items[i].Name] = &roles.Items[i]
	}
	bindings, err := client.RbacV1().ClusterRoleBindings().List(ctx, metav1.ListOptions{})
	if err != nil {
		return e, fmt.Errorf("list cluster role bindings: %w", err)
	}
	for i := range bindings.Items {
		e.bindings[bindings.Items[i].Name] = &bindings.Items[i]
	}
	return e, nil
}

func (e existingPolicy) role(client kubernetes.Interface, want *rbacv1.ClusterRole) func() error {
	o := reconciliation.ReconcileRoleOptions{
		Role: reconciliation.ClusterRoleRuleOwner{ClusterRole: want}, Confirm: true,
		Client: &listedRole{
			ClusterRoleModifier: reconciliation.ClusterRoleModifier{Client: client.RbacV1().ClusterRoles()},
			role:                e.roles[want.Name]},
	}
	return func() error {
		if _, err := o.Run(); err != nil {
			return fmt.Errorf("reconcile cluster role %s: %w", want.Name, err)
		}
		return nil
	}
}

func (e existingPolicy) binding(client kubernetes.Interface, want *rbacv1.ClusterRoleBinding) func() error {
	o := reconciliation.ReconcileRoleBindingOptions{
		RoleBinding: reconciliation.ClusterRoleBindingAdapter{ClusterRoleBinding: want}, Confirm: true,
		Client: &listedBinding{
			ClusterRoleBindingClientAdapter: reconciliation.ClusterRoleBindingClientAdapter{
				Client: client.RbacV1().ClusterRoleBindings()},
			found: e.bindings[want.Name],
		},
	}
	return func() error {
		if _, err := o.Run(); err != nil {
			return fmt.Errorf("reconcile cluster role binding %s: %w", want.Name, err)
		}
		return nil
	}
}

func reconcileRole(client kubernetes.Interface, want *rbacv1.Role) error {
	o := reconciliation.ReconcileRoleOptions{
		Role: reconciliation.RoleRuleOwner{Role: want}, Confirm: true,
		Client: reconciliation.RoleModifier{Client: client.RbacV1(), NamespaceClient: client.CoreV1().Namespaces()},
	}
	if _, err := o.Run(); err != nil {
		return fmt.Errorf("reconcile role %s/%s: %w", want.Namespace, want.Name, err)
	}
	return nil
}

func reconcileRoleBinding(client kubernetes.Interface, want *rbacv1.RoleBinding) error {
	o := reconciliation.ReconcileRoleBindingOptions{
		RoleBinding: reconciliation.RoleBindingAdapter{RoleBinding: want}, Confirm: true,
		Client: reconciliation.RoleBindingClientAdapter{Client: client.RbacV1(),
			NamespaceClient: client.CoreV1().Namespaces()},
	}
	if _, err := o.Run(); err != nil {
		return fmt.Errorf("reconcile role binding %s/%s: %w", want.Namespace, want.Name, err)
	}
	return nil
}

// listedRole serves the first Get from the list. A second Get means that the object has changed,
// and reads from the API server.
type listedRole struct {
	reconciliation.ClusterRoleModifier

	used bool
	role *rbacv1.ClusterRole
}

func (l *listedRole) Get(namespace, name string) (reconciliation.RuleOwner, error) {
	if l.used {
		return l.ClusterRoleModifier.Get(namespace, name)
	}
	l.used = true
	if l.role == nil {
		return nil, apierrors.NewNotFound(rbacv1.Resource("clusterroles"), name)
	}
	return reconciliation.ClusterRoleRuleOwner{ClusterRole: l.role}, nil
}

type listedBinding struct {
	reconciliation.ClusterRoleBindingClientAdapter

	used  bool
	found *rbacv1.ClusterRoleBinding
}

func (l *listedBinding) Get(namespace, name string) (reconciliation.RoleBinding, error) {
	if l.used {
		return l.ClusterRoleBindingClientAdapter.Get(namespace, name)
	}
	l.used = true
	if l.found == nil {
		return nil, apierrors.NewNotFound(rbacv1.Resource("clusterrolebindings"), name)
	}
	return reconciliation.ClusterRoleBindingAdapter{ClusterRoleBinding: l.found}, nil
}
