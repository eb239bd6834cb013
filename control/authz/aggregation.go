package authz

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	rbacclient "k8s.io/client-go/kubernetes/typed/rbac/v1"
	rbaclisters "k8s.io/client-go/listers/rbac/v1"
	"k8s.io/client-go/tools/cache"
)

// ClusterRoleAggregation maintains the rules of aggregated cluster roles, such as admin, edit and
// view. All work is done in the goroutine that calls Run.
type ClusterRoleAggregation struct {
	roles  rbaclisters.ClusterRoleLister
	client rbacclient.ClusterRoleInterface
	log    *slog.Logger
	wake   chan struct{}
}

// NewClusterRoleAggregation registers a handler with the factory's informer of cluster roles.
func NewClusterRoleAggregation(f informers.SharedInformerFactory, client rbacclient.ClusterRoleInterface,
	log *slog.Logger) (*ClusterRoleAggregation, error) {
	a := &ClusterRoleAggregation{roles: f.Rbac().V1().ClusterRoles().Lister(), client: client, log: log,
		wake: make(chan struct{}, 1)}
	_, err := f.Rbac().V1().ClusterRoles().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { a.signal() },
		UpdateFunc: func(any, any) { a.signal() },
		DeleteFunc: func(any) { a.signal() },
	})
	if err != nil {
		return nil, fmt.Errorf("watch cluster roles: %w", err)
	}
	return a, nil
}

func (a *ClusterRoleAggregation) signal() {
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

// Run works until ctx is done: once after each burst of changes, and again after an error.
func (a *ClusterRoleAggregation) Run(ctx context.Context) {
	for {
		var retry <-chan time.Time
		if err := a.reconcile(ctx); err != nil && ctx.Err() == nil {
			if !apierrors.IsConflict(err) { // the cache is stale and will be updated
				a.log.Warn("cluster role aggregation failed", "err", err)
			}
			retry = time.After(time.Second)
		}
		select {
		case <-ctx.Done():
			return
		case <-retry:
		case <-a.wake:
		}
	}
}

// reconcile may need several rounds, because edit is part of admin. Every write triggers another
// round.
func (a *ClusterRoleAggregation) reconcile(ctx context.Context) error {
	all, err := a.roles.List(labels.Everything())
	if err != nil {
		return fmt.Errorf("list cluster roles: %w", err)
	}
	slices.SortFunc(all, func(x, y *rbacv1.ClusterRole) int { return strings.Compare(x.Name, y.Name) })
	for _, role := range all {
		if role.AggregationRule == nil {
			continue
		}
		want, err := aggregatedRules(role, all)
		if err != nil {
			a.log.Warn("invalid aggregationRule", "clusterRole", role.Name, "err", err)
			continue
		}
		if equality.Semantic.DeepEqual(want, role.Rules) {
			continue
		}
		role = role.DeepCopy()
		role.Rules = want
		if _, err := a.client.Update(ctx, role, metav1.UpdateOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("update cluster role %s: %w", role.Name, err)
		}
	}
	return nil
}

// aggregatedRules returns the rules of all roles that match a selector, ordered by role name and
// without duplicates.
func aggregatedRules(of *rbacv1.ClusterRole, sorted []*rbacv1.ClusterRole) (out []rbacv1.PolicyRule, _ error) {
	for i := range of.AggregationRule.ClusterRoleSelectors {
		selector, err := metav1.LabelSelectorAsSelector(&of.AggregationRule.ClusterRoleSelectors[i])
		if err != nil {
			return nil, err
		}
		for _, r := range sorted {
			if r.Name == of.Name || !selector.Matches(labels.Set(r.Labels)) {
				continue
			}
			for j := range r.Rules {
				if !slices.ContainsFunc(out, func(have rbacv1.PolicyRule) bool {
					return equality.Semantic.DeepEqual(have,
						r.Rules[j])
				}) {
					out = append(out, r.Rules[j])
				}
			}
		}
	}
	return out, nil
}
