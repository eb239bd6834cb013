package printers

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/randfill"
	"sigs.k8s.io/yaml"
)

var now = time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)

func empty(t *testing.T, kind schema.GroupKind) runtime.Object {
	if kind.Kind == "HorizontalPodAutoscaler" {
		return &autoscalingv2.HorizontalPodAutoscaler{}
	}
	t.Helper()
	if kind.Group == "events.k8s.io" {
		return &corev1.Event{}
	}
	for _, gv := range scheme.Scheme.VersionsForGroupKind(kind) {
		if obj, err := scheme.Scheme.New(gv.WithKind(kind.Kind)); err == nil && gv.Version == "v1" {
			return obj
		}
	}
	t.Fatalf("unknown kind %s", kind)
	return nil
}

// TestColumnsRows reads testdata/rows.yaml: objects and their rows, with cells separated by bars.
func TestColumnsRows(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile("testdata/rows.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var cases []struct {
		Case   string         `json:"case"`
		Kind   string         `json:"kind"`
		Object map[string]any `json:"object"`
		Want   string         `json:"want"`
	}
	if err := yaml.UnmarshalStrict(raw, &cases); err != nil {
		t.Fatal(err)
	}
	for _, c := range cases {
		t.Run(c.Case, func(t *testing.T) {
			t.Parallel()
			kind := schema.ParseGroupKind(c.Kind)
			obj := empty(t, kind)
			text, _ := yaml.Marshal(c.Object)
			if err := yaml.UnmarshalStrict(text, obj); err != nil {
				t.Fatal(err)
			}
			table, err := ColumnsFor(kind).Table(obj, now, true)
			if err != nil {
				t.Fatal(err)
			}
			var cells []string
			for _, cell := range table.Rows[0].Cells {
				cells = append(cells, fmt.Sprint(cell))
			}
			if got := strings.Join(cells, " | "); got != c.Want {
				t.Errorf("got  %s\nwant %s", got, c.Want)
			}
		})
	}
}

// TestColumnsCellsMatchDefinitions prints random objects of every kind. Each row has a cell of the
// column's type for every column, and nothing panics.
func TestColumnsCellsMatchDefinitions(t *testing.T) {
	t.Parallel()
	for kind := range columnsByKind {
		for seed := range int64(20) {
			obj := empty(t, kind)
			randfill.NewWithSeed(seed).NilChance(float64(seed%3)/2).NumElements(0, 3).Funcs(
				func(r *runtime.RawExtension, _ randfill.Continue) {},
				func(m *metav1.Time, c randfill.Continue) { *m = metav1.Unix(c.Int63n(1<<31), 0) },
				func(m *metav1.MicroTime, c randfill.Continue) { *m = metav1.NewMicroTime(now) },
			).Fill(obj)
			got, err := ColumnsFor(kind).Table(obj, now, true)
			if err != nil {
				t.Fatal(err)
			}
			cells := got.Rows[0].Cells
			if len(cells) != len(got.ColumnDefinitions) {
				t.Fatalf("%s: %d cells under %d heads", kind, len(cells), len(got.ColumnDefinitions))
			}
			for i, column := range got.ColumnDefinitions {
				_, isNumber := cells[i].(int64)
				_, isText := cells[i].(string)
				if column.Type == "integer" && !isNumber || column.Type == "string" && !isText {
					t.Errorf("%s: %s is a %s but shows a %T", kind, column.Name, column.Type, cells[i])
				}
			}
		}
	}
}

func TestColumnsTableOfList(t *testing.T) {
	t.Parallel()
	list := &corev1.PodList{ListMeta: metav1.ListMeta{ResourceVersion: "7", Continue: "more"}, Items: []corev1.Pod{
		{
			ObjectMeta: metav1.ObjectMeta{Name: "a"},
			Status:     corev1.PodStatus{Phase: corev1.PodSucceeded},
		}, {ObjectMeta: metav1.ObjectMeta{Name: "b"}}}}
	got, err := ColumnsFor(core("Pod")).Table(list, now, false)
	if err != nil || len(got.Rows) != 2 || got.ResourceVersion != "7" || got.Continue != "more" ||
		len(got.ColumnDefinitions) != 0 {
		t.Fatalf("got %+v, %v", got, err)
	}
	if len(got.Rows[0].Conditions) != 1 || got.Rows[0].Conditions[0].Type != metav1.RowCompleted ||
		len(got.Rows[1].Conditions) != 0 {
		t.Errorf("only the pod that has succeeded is completed: %+v", got.Rows)
	}
	if _, err := ColumnsFor(core("Pod")).Table(&corev1.Node{}, now, true); err == nil {
		t.Error("a node is shown as a pod")
	}
	unknown, err := ColumnsFor(core("Toy")).Table(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}, now, true)
	if err != nil || fmt.Sprint(unknown.Rows[0].Cells) != "[n <unknown>]" {
		t.Errorf("got %+v, %v", unknown, err)
	}
}
