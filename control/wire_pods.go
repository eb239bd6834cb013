package control

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"

	"berth/control/pods"
	"berth/control/registry"
)

// podStores creates pods with all subresources, and nodes/proxy, which uses the same transports.
func podStores(a *Assembly, kind *registry.Kind) (*registry.Store, map[string]rest.Storage, error) {
	options := a.podOptions()
	main, all, err := pods.New(kind, options)
	if err != nil {
		return nil, nil, err
	}
	all["nodes/proxy"] = &pods.NodeProxy{Options: options}
	return main, all, nil
}

func (a *Assembly) podOptions() pods.Options {
	return pods.Options{
		StoreOptions:             a.StoreOptions,
		GetNode:                  a.node,
		ListBudgets:              a.budgets,
		UpdateBudgetStatus:       a.updateBudgetStatus,
		Authorizer:               a.access.authorizer,
		KubeletTransport:         a.kubeletClient.verified.To,
		InsecureKubeletTransport: a.kubeletClient.unverified,
		PodTransport:             a.podTransport,
	}
}

func (a *Assembly) node(ctx context.Context, name string) (*corev1.Node, error) {
	obj, err := a.Store("", "nodes").Get(genericapirequest.WithNamespace(ctx, ""), name, &metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	return registry.MustCast[*corev1.Node](obj), nil
}

func (a *Assembly) budgets(ctx context.Context, namespace string) ([]policyv1.PodDisruptionBudget, error) {
	obj, err := a.Store("policy", "poddisruptionbudgets").
		List(genericapirequest.WithNamespace(ctx, namespace), &internalversion.ListOptions{})
	if err != nil {
		return nil, err
	}
	return registry.MustCast[*policyv1.PodDisruptionBudgetList](obj).Items, nil
}

// updateBudgetStatus updates the status of a disruption budget. It returns a conflict if the budget
// has changed.
func (a *Assembly) updateBudgetStatus(ctx context.Context, budget *policyv1.PodDisruptionBudget) error {
	status := registry.NewStatus(a.Store("policy", "poddisruptionbudgets"), a.StoreOptions)
	ctx = genericapirequest.WithNamespace(ctx, budget.Namespace)
	_, _, err := status.Update(ctx, budget.Name, rest.DefaultUpdatedObjectInfo(runtime.Object(budget)),
		rest.ValidateAllObjectFunc, rest.ValidateAllObjectUpdateFunc, false, &metav1.UpdateOptions{})
	return err
}
