package nodeapi

import (
	"context"
	"encoding/json"
	"os"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// TestEndpointsAreDocumented checks that the reference page has each endpoint of the local socket.
func TestEndpointsAreDocumented(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../docs/reference/node-api.md")
	if err != nil {
		t.Fatal(err)
	}
	_, page, found := strings.Cut(string(text), "## Port 10248 and the local socket")
	if !found {
		t.Fatal("the page has no section about the local socket")
	}
	for _, r := range new(server).table() {
		if r.pattern == "/" {
			continue
		}
		short := strings.Replace(r.pattern, podPattern+"/", "…/", 1)
		if !strings.Contains(page, "`"+short+"`") {
			t.Errorf("endpoint %s is not documented", short)
		}
	}
}

// TestWorkloadEndpoints checks requests and responses about workloads over a real socket.
func TestWorkloadEndpoints(t *testing.T) {
	t.Parallel()
	known := func(kind, namespace, name string) error {
		if kind+" "+namespace+"/"+name != "Deployment a/web" {
			return apierrors.NewNotFound(schema.GroupResource{Resource: kind}, name)
		}
		return nil
	}
	web := Workload{Kind: "Deployment", Namespace: "a", Name: "web", Object: json.RawMessage(`{"spec":{}}`)}
	client := startAgent(t, Handlers{
		Workloads: func(_ context.Context, req WorkloadsRequest) ([]Workload, error) {
			out := web
			out.Namespace = req.Namespace
			return []Workload{out}, nil
		},
		EditWorkload: func(_ context.Context, req WorkloadEdit) (WorkloadEditResult, error) {
			return WorkloadEditResult{Revision: req.Revision + 1}, known(req.Kind, req.Namespace, req.Name)
		},
		DescribeWorkload: func(_ context.Context, kind, namespace, name string) (WorkloadDescription, error) {
			return WorkloadDescription{Workload: web, Children: []Workload{{Kind: "ReplicaSet"}}},
				known(kind, namespace, name)
		},
		WhyWorkload: func(_ context.Context, kind, namespace, name string) (WorkloadExplanation, error) {
			return WorkloadExplanation{Summary: "all is well"}, known(kind, namespace, name)
		},
	}).client
	ctx := t.Context()
	list, err := client.Workloads(ctx, WorkloadsRequest{Namespace: "b"})
	if err != nil || len(list) != 1 || list[0].Namespace != "b" || string(list[0].Object) != `{"spec":{}}` {
		t.Errorf("workloads %+v: %v", list, err)
	}
	undone, err := client.EditWorkload(ctx, WorkloadEdit{
		Kind: "Deployment", Namespace: "a", Name: "web", Command: UndoWorkload, Revision: 3,
	})
	if err != nil || undone.Revision != 4 {
		t.Errorf("edit: %+v: %v", undone, err)
	}
	d, err := client.DescribeWorkload(ctx, "Deployment", "a", "web")
	if err != nil || d.Name != "web" || len(d.Children) != 1 {
		t.Errorf("description %+v: %v", d, err)
	}
	w, err := client.WhyWorkload(ctx, "Deployment", "a", "web")
	if err != nil || w.Summary != "all is well" {
		t.Errorf("explanation %+v: %v", w, err)
	}
	if _, err := client.WhyWorkload(ctx, "Deployment", "a/b", "web"); !apierrors.IsNotFound(err) {
		t.Errorf("explanation of an unknown workload: %v", err)
	}
}
