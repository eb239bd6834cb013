package agent

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/agent/plan"
)

// TestAContainerIsMadeOfTheImageThatItsStartNames, with the user that this image
// declares: that the name stands for another image by now changes nothing.
func TestAContainerIsMadeOfTheImageThatItsStartNames(t *testing.T) {
	t.Parallel()
	h, pod := newFakeHost(), podOf("p", "a")
	want := plan.Image{ID: "sha:old", Ref: "r@sha256:1", UID: new(int64(1000))}
	on := ground{pod: pod, seen: plan.Observed{Images: map[string]plan.Image{"p-a": {ID: "sha:new"}}}}
	stages := h.stages()
	if err := stages.BuildRun.do(t.Context(), on, plan.StartContainer{Name: "a", Image: want}, &plan.Outcome{}); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, h.setup.Image); diff != "" {
		t.Error(diff)
	}
}
