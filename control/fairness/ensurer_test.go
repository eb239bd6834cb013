package fairness

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/apis/flowcontrol/bootstrap"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

// world is an ensurer with a fake API server.
type world struct {
	*Ensurer
	client *fake.Clientset
}

func newWorld(t *testing.T, objects ...runtime.Object) *world {
	t.Helper()
	client := fake.NewClientset(objects...)
	api := client.FlowcontrolV1()
	return &world{client: client, Ensurer: &Ensurer{
		log: slog.New(slog.DiscardHandler),
		levels: levelOperations(api, func() (out []*flowcontrolv1.PriorityLevelConfiguration, _ error) {
			list, err := api.PriorityLevelConfigurations().List(t.Context(), metav1.ListOptions{})
			for i := range list.Items {
				out = append(out, &list.Items[i])
			}
			return out, err
		}),
		schemas: schemaOperations(api, func() (out []*flowcontrolv1.FlowSchema, _ error) {
			list, err := api.FlowSchemas().List(t.Context(), metav1.ListOptions{})
			for i := range list.Items {
				out = append(out, &list.Items[i])
			}
			return out, err
		}),
	}}
}

// pass runs one pass and returns the writes as "verb resource".
func (w *world) pass(t *testing.T) (writes []string) {
	t.Helper()
	w.client.ClearActions()
	if err := w.ensure(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, a := range w.client.Actions() {
		if a.GetVerb() != "list" {
			writes = append(writes, a.GetVerb()+" "+a.GetResource().Resource)
		}
	}
	return writes
}

func (w *world) schema(t *testing.T, name string) *flowcontrolv1.FlowSchema {
	t.Helper()
	out, err := w.client.FlowcontrolV1().FlowSchemas().Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestEnsurerCreatesMissing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	writes := w.pass(t)
	want := len(bootstrap.MandatoryFlowSchemas) + len(bootstrap.SuggestedFlowSchemas) +
		len(bootstrap.MandatoryPriorityLevelConfigurations) + len(bootstrap.SuggestedPriorityLevelConfigurations)
	if len(writes) != want || writes[0] != "create prioritylevelconfigurations" ||
		writes[want-1] != "create flowschemas" {
		t.Errorf("got %d writes, want %d: %q", len(writes), want, writes)
	}
	if again := w.pass(t); len(again) != 0 {
		t.Errorf("second pass wrote %q", again)
	}
	if err := w.client.FlowcontrolV1().FlowSchemas().Delete(t.Context(), "exempt", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if writes := w.pass(t); strings.Join(writes, ",") != "create flowschemas" {
		t.Errorf("after a deletion: %q", writes)
	}
}

// changed returns a default schema with another precedence.
func changed(of *flowcontrolv1.FlowSchema, annotation string, generation int64) *flowcontrolv1.FlowSchema {
	out := of.DeepCopy()
	out.Spec.MatchingPrecedence, out.Generation = 777, generation
	out.Annotations = nil
	if annotation != "" {
		out.Annotations = map[string]string{flowcontrolv1.AutoUpdateAnnotationKey: annotation}
	}
	return out
}

func TestEnsurerUpdates(t *testing.T) {
	t.Parallel()
	suggested, mandatory := bootstrap.SuggestedFlowSchemaServiceAccounts, bootstrap.MandatoryFlowSchemaCatchAll
	for _, c := range []struct {
		name       string
		stored     *flowcontrolv1.FlowSchema
		precedence int32
		annotation string
	}{
		{"suggested with auto-update", changed(suggested, "true", 2), 9000, "true"},
		{"suggested without auto-update", changed(suggested, "false", 2), 777, "false"},
		{"suggested without annotation, spec never changed", changed(suggested, "", 1), 9000, "true"},
		{"suggested without annotation, spec changed", changed(suggested, "", 2), 777, "false"},
		{"suggested with another annotation", changed(suggested, "perhaps", 2), 777, "false"},
		{"mandatory with auto-update", changed(mandatory, "true", 2), 10000, "true"},
		{"mandatory without auto-update", changed(mandatory, "false", 2), 10000, "true"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, c.stored)
			w.pass(t)
			got := w.schema(t, c.stored.Name)
			if got.Spec.MatchingPrecedence != c.precedence ||
				got.Annotations[flowcontrolv1.AutoUpdateAnnotationKey] != c.annotation {
				t.Errorf("got precedence %d and annotations %v, want %d and %s", got.Spec.MatchingPrecedence,
					got.Annotations, c.precedence, c.annotation)
			}
			if again := w.pass(t); len(again) != 0 {
				t.Errorf("second pass wrote %q", again)
			}
		})
	}
}

func TestEnsurerDeletesFormerDefaults(t *testing.T) {
	t.Parallel()
	named := func(name, annotation string) *flowcontrolv1.FlowSchema {
		out := changed(bootstrap.SuggestedFlowSchemaServiceAccounts, annotation, 1)
		out.Name = name
		return out
	}
	w := newWorld(t, named("former", "true"), named("former-kept", "false"), named("user", ""))
	w.pass(t)
	names := map[string]bool{}
	list, err := w.client.FlowcontrolV1().FlowSchemas().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range list.Items {
		names[s.Name] = true
	}
	if names["former"] || !names["former-kept"] || !names["user"] || !names["service-accounts"] {
		t.Errorf("got schemas %v", names)
	}
}

func TestEnsurerKeepsSharesOfExemptLevel(t *testing.T) {
	t.Parallel()
	level := bootstrap.MandatoryPriorityLevelConfigurationExempt.DeepCopy()
	*level.Spec.Exempt.NominalConcurrencyShares = 5
	w := newWorld(t, level)
	for _, write := range w.pass(t) {
		if write == "update prioritylevelconfigurations" {
			t.Error("the exempt level was updated")
		}
	}
}

// TestEnsurerReportsErrors fails all creates: the pass tries each object of the kind.
func TestEnsurerReportsErrors(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	failure := errors.New("no space")
	attempts := 0
	w.client.PrependReactor("create", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
		attempts++
		return true, nil, failure
	})
	if err := w.ensure(context.Background()); !errors.Is(err, failure) ||
		!strings.Contains(err.Error(), "PriorityLevelConfiguration catch-all not created") {
		t.Errorf("got %v", err)
	}
	if attempts != 8 {
		t.Errorf("got %d attempts", attempts)
	}
}
