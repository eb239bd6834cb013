package localworkloads

import (
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"berth/agent/source"
)

// keyNamed returns the key of a workload in the default namespace.
func keyNamed(kind, name string) source.WorkloadKey {
	return source.WorkloadKey{Kind: kind, NamespacedName: types.NamespacedName{Namespace: "default", Name: name}}
}

// view returns a workload as users see it.
func (w *world) view(kind, name string) View {
	w.t.Helper()
	for _, v := range w.reconciler.Views() {
		if kindOf(v.Object) == kind && v.Object.GetName() == name {
			return v
		}
	}
	w.t.Fatalf("no %s %s", kind, name)
	return View{}
}

// history returns the revisions of a workload with their change causes and images.
func (v View) history() string {
	var out []string
	for _, r := range v.Revisions {
		out = append(out, fmt.Sprintf("%d %s %s", r.Number, r.ChangeCause, r.Template.Spec.Containers[0].Image))
	}
	return strings.Join(out, ", ")
}

// TestUndo checks that a rollback restores the template of a revision and, for a Deployment, its annotations, that a
// rollback to the current revision does nothing, and that a rollback to the template of the file is no override.
func TestUndo(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"Deployment", "StatefulSet", "DaemonSet"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 0)
			write := func(image, cause string) {
				w.files["web"] = strings.NewReplacer("KIND", kind, "web:1", image, "metadata: {name: web}",
					`metadata: {name: web, annotations: {kubernetes.io/change-cause: `+cause+`}}`).Replace(setManifest)
				w.reconciler.SetFiles(workloadsOf(t, w.files))
				w.settle()
			}
			undo := func(revision, want int64, wantSkipped bool, overrides map[string]string) {
				t.Helper()
				restored, skipped, err := w.reconciler.Undo(keyNamed(kind, "web"), revision, w.now)
				if err != nil || restored != want || skipped != wantSkipped {
					t.Fatalf("restored revision %d, skipped %v: %v, want %d, %v", restored, skipped, err, want,
						wantSkipped)
				}
				w.settle()
				if got := w.view(kind, "web").Overrides; fmt.Sprint(got) != fmt.Sprint(overrides) {
					t.Errorf("overrides %v after a rollback to %d, want %v", got, revision, overrides)
				}
			}
			write("web:1", "first")
			write("web:2", "second")
			generation := w.view(kind, "web").Object.GetGeneration()
			undo(2, 2, true, map[string]string{})
			if got := w.view(kind, "web").Object.GetGeneration(); got != generation {
				t.Errorf("generation %d after a skipped rollback, want %d", got, generation)
			}
			undo(0, 1, false, map[string]string{overrideUndo: "template of revision 1"})
			if got, want := w.view(kind, "web").history(), "2 second web:2, 3 first web:1"; got != want {
				t.Errorf("history %q, want %q", got, want)
			}
			undo(3, 3, true, map[string]string{overrideUndo: "template of revision 1"})
			undo(0, 2, false, map[string]string{})
			if got := w.images(); got != "web:2" {
				t.Errorf("pods %q after the second rollback", got)
			}
			if _, _, err := w.reconciler.Undo(keyNamed(kind, "web"), 9, w.now); err == nil {
				t.Error("a rollback to a missing revision succeeds")
			}
		})
	}
}
