package controllers

import (
	"testing"
	"testing/synctest"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// checkerFunc is a PolicyTypeChecker.
type checkerFunc func(*admissionv1.ValidatingAdmissionPolicy) []admissionv1.ExpressionWarning

func (f checkerFunc) Check(p *admissionv1.ValidatingAdmissionPolicy) []admissionv1.ExpressionWarning {
	return f(p)
}

// TestPolicyStatusOfEachGeneration checks that each generation is checked once.
func TestPolicyStatusOfEachGeneration(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		checks := 0
		client := startControllers(t, Config{PolicyTypes: checkerFunc(
			func(p *admissionv1.ValidatingAdmissionPolicy) (out []admissionv1.ExpressionWarning) {
				checks++
				for _, v := range p.Spec.Validations {
					out = append(out, admissionv1.ExpressionWarning{FieldRef: v.Expression, Warning: "w"})
				}
				return out
			})}, []string{ValidatingAdmissionPolicyStatus})
		time.Sleep(time.Second) // until the caches are synced
		policies := client.AdmissionregistrationV1().ValidatingAdmissionPolicies()
		policy, err := policies.Create(t.Context(), &admissionv1.ValidatingAdmissionPolicy{
			ObjectMeta: metav1.ObjectMeta{Name: "a", Generation: 1},
			Spec: admissionv1.ValidatingAdmissionPolicySpec{
				Validations: []admissionv1.Validation{{Expression: "x"}}},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		requireStatus := func(generation int64, warnings int) {
			t.Helper()
			synctest.Wait()
			if policy, err = policies.Get(t.Context(), "a", metav1.GetOptions{}); err != nil {
				t.Fatal(err)
			}
			got := 0
			if policy.Status.TypeChecking != nil {
				got = len(policy.Status.TypeChecking.ExpressionWarnings)
			}
			if policy.Status.ObservedGeneration != generation || got != warnings {
				t.Errorf("generation %d: got status %+v, want %d warnings", generation, policy.Status, warnings)
			}
		}
		requireStatus(1, 1)
		policy.Generation, policy.Spec.Validations = 2, nil
		if _, err := policies.Update(t.Context(), policy, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		requireStatus(2, 0)
		if checks != 2 {
			t.Errorf("checked %d times, want once per generation", checks)
		}
	})
}
