package controllers

import (
	"context"
	"fmt"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apply "k8s.io/client-go/applyconfigurations/admissionregistration/v1"
)

// PolicyTypeChecker checks the expressions of a policy against the types of the objects that it matches. It is
// implemented by validating.TypeChecker of k8s.io/apiserver.
type PolicyTypeChecker interface {
	Check(policy *admissionv1.ValidatingAdmissionPolicy) []admissionv1.ExpressionWarning
}

// newPolicyStatusController writes the warnings of the type checker to the status of each generation of a
// ValidatingAdmissionPolicy.
func newPolicyStatusController(c Config) ([]*controller, error) {
	if c.PolicyTypes == nil {
		return nil, nil
	}
	policies := c.Informers.Admissionregistration().V1().ValidatingAdmissionPolicies()
	ctrl := c.newController(func(ctx context.Context, name string) (time.Duration, error) {
		policy, err := policies.Lister().Get(name)
		if err != nil || policy.Generation <= policy.Status.ObservedGeneration {
			return 0, ignoreNotFound(err)
		}
		_, err = c.Client.AdmissionregistrationV1().ValidatingAdmissionPolicies().ApplyStatus(ctx,
			checkedPolicy(policy, c.PolicyTypes.Check(policy)),
			metav1.ApplyOptions{FieldManager: ValidatingAdmissionPolicyStatus, Force: true})
		if ignoreNotFound(err) != nil {
			return 0, fmt.Errorf("apply status of policy %s: %w", name, err)
		}
		return 0, nil
	})
	return []*controller{ctrl}, ctrl.watch(policies.Informer(), objectKey)
}

// checkedPolicy returns the status of a policy after type checking.
func checkedPolicy(policy *admissionv1.ValidatingAdmissionPolicy,
	warnings []admissionv1.ExpressionWarning) *apply.ValidatingAdmissionPolicyApplyConfiguration {
	checking := apply.TypeChecking()
	for _, w := range warnings {
		checking.WithExpressionWarnings(apply.ExpressionWarning().WithFieldRef(w.FieldRef).WithWarning(w.Warning))
	}
	return apply.ValidatingAdmissionPolicy(policy.Name).WithStatus(apply.ValidatingAdmissionPolicyStatus().
		WithObservedGeneration(policy.Generation).WithTypeChecking(checking))
}
