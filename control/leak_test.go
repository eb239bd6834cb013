package control_test

import (
	"context"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"

	"berth/control"
)

// testTimeout leaves enough time on a loaded machine.
const testTimeout = 2 * time.Minute

// TestServerLeavesNoGoroutines starts, uses and stops a server twice. A goroutine that runs after
// the second server but not after the first one is a leak. Goroutines that libraries start
// once per process exist after the first.
func TestServerLeavesNoGoroutines(t *testing.T) {
	useServer(t)
	runtime.GC()
	before := goroutinesByCreator()
	useServer(t)
	var leaked []string
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(testTimeout); time.Now().Before(deadline); <-tick.C {
		if leaked = newGoroutines(before, goroutinesByCreator()); len(leaked) == 0 {
			return
		}
	}
	t.Errorf("goroutines still running after the server stopped:\n%s", strings.Join(leaked, "\n\n"))
}

// useServer runs a server with all controllers and an embedded store, writes, watches, leaves
// watches open, and stops it.
func useServer(t *testing.T) {
	t.Helper()
	runServer(t, []string{"*"}, func(ctx context.Context, s *control.Server) {
		if err := createAndWatch(ctx, s.Client); err != nil {
			t.Error(err)
		}
		if err := applyPolicies(ctx, s.Client); err != nil {
			t.Error(err)
		}
	})
}

// createAndWatch creates a ConfigMap and waits for its watch event. It leaves ten watches open, which
// end with the server.
func createAndWatch(ctx context.Context, client kubernetes.Interface) error {
	core := client.CoreV1()
	for range 5 {
		for _, namespace := range []string{"", metav1.NamespaceDefault} {
			w, err := core.ConfigMaps(namespace).Watch(ctx, metav1.ListOptions{AllowWatchBookmarks: true})
			if err != nil {
				return fmt.Errorf("watch: %w", err)
			}
			go func() { // ends with the server
				for range w.ResultChan() {
				}
			}()
		}
	}
	watcher, err := core.ConfigMaps(metav1.NamespaceDefault).Watch(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("watch: %w", err)
	}
	defer watcher.Stop()
	if _, err := core.ConfigMaps(metav1.NamespaceDefault).Create(ctx,
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "created"}}, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("create: %w", err)
	}
	for {
		select {
		case e, ok := <-watcher.ResultChan():
			if !ok {
				return fmt.Errorf("watch closed")
			}
			if c, isConfigMap := e.Object.(*corev1.ConfigMap); isConfigMap && c.Name == "created" {
				return nil
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// applyPolicies creates a validating policy with parameters and a mutating policy, and waits until both are effective.
func applyPolicies(ctx context.Context, client kubernetes.Interface) error {
	match := &admissionv1.MatchResources{ResourceRules: []admissionv1.NamedRuleWithOperations{{
		RuleWithOperations: admissionv1.RuleWithOperations{Operations: []admissionv1.OperationType{admissionv1.Create},
			Rule: admissionv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"},
				Resources: []string{"configmaps"}}}}}}
	meta, admission := metav1.ObjectMeta{Name: "policy"}, client.AdmissionregistrationV1()
	_, err := admission.ValidatingAdmissionPolicies().Create(ctx, &admissionv1.ValidatingAdmissionPolicy{
		ObjectMeta: meta, Spec: admissionv1.ValidatingAdmissionPolicySpec{MatchConstraints: match,
			ParamKind: &admissionv1.ParamKind{APIVersion: "v1", Kind: "ConfigMap"},
			Validations: []admissionv1.Validation{{Message: "denied by the policy",
				Expression: "!has(object.metadata.labels) || !('mutated' in object.metadata.labels)"}}},
	}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("create policy: %w", err)
	}
	_, err = admission.MutatingAdmissionPolicies().Create(ctx, &admissionv1.MutatingAdmissionPolicy{ObjectMeta: meta,
		Spec: admissionv1.MutatingAdmissionPolicySpec{MatchConstraints: match,
			ReinvocationPolicy: admissionv1.NeverReinvocationPolicy,
			Mutations: []admissionv1.Mutation{{PatchType: admissionv1.PatchTypeJSONPatch,
				JSONPatch: &admissionv1.JSONPatch{
					Expression: "[JSONPatch{op: 'add', path: '/metadata/labels', value: {'mutated': 'true'}}]"}}}},
	}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("create policy: %w", err)
	}
	_, err = admission.ValidatingAdmissionPolicyBindings().Create(ctx, &admissionv1.ValidatingAdmissionPolicyBinding{
		ObjectMeta: meta, Spec: admissionv1.ValidatingAdmissionPolicyBindingSpec{PolicyName: "policy",
			ParamRef: &admissionv1.ParamRef{Name: "created", Namespace: metav1.NamespaceDefault,
				ParameterNotFoundAction: new(admissionv1.DenyAction)},
			ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny}},
	}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("create binding: %w", err)
	}
	_, err = admission.MutatingAdmissionPolicyBindings().Create(ctx, &admissionv1.MutatingAdmissionPolicyBinding{
		ObjectMeta: meta, Spec: admissionv1.MutatingAdmissionPolicyBindingSpec{PolicyName: "policy"},
	}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("create binding: %w", err)
	}
	return wait.PollUntilContextCancel(ctx, 50*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		_, err := client.CoreV1().ConfigMaps(metav1.NamespaceDefault).Create(ctx,
			&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "denied"}},
			metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err != nil && strings.Contains(err.Error(), "denied by the policy"), nil
	})
}

// goroutinesByCreator returns the stacks of all goroutines by creator.
func goroutinesByCreator() map[string][]string {
	text := make([]byte, 1<<20)
	for {
		n := runtime.Stack(text, true)
		if n < len(text) {
			text = text[:n]
			break
		}
		text = make([]byte, 2*len(text))
	}
	out := map[string][]string{}
	for stack := range strings.SplitSeq(string(text), "\n\n") {
		_, creator, ok := strings.Cut(stack, "\ncreated by ")
		if !ok {
			continue // the main goroutine
		}
		creator, _, _ = strings.Cut(creator, "\n")
		creator, _, _ = strings.Cut(creator, " in goroutine ")
		out[creator] = append(out[creator], stack)
	}
	return out
}

// newGoroutines returns a stack of each creator that has more goroutines than before.
func newGoroutines(before, now map[string][]string) (out []string) {
	for _, creator := range slices.Sorted(maps.Keys(now)) {
		if more := len(now[creator]) - len(before[creator]); more > 0 {
			out = append(out, fmt.Sprintf("%d more by %s, for example\n%s", more, creator, now[creator][0]))
		}
	}
	return out
}
