package pod

import (
	"errors"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/agent/hostfake"
	"berth/agent/plan"
)

// TestContainerIsCreatedFromImageOfItsStart, with the user that this image
// declares: that the name stands for another image by now changes nothing.
func TestContainerIsCreatedFromImageOfItsStart(t *testing.T) {
	t.Parallel()
	h, pod := hostfake.NewHost(), hostfake.PodOf("p", "a")
	want := plan.Image{ID: "sha:old", Ref: "r@sha256:1", UID: new(int64(1000))}
	on := actionContext{pod: pod, observed: plan.Observed{Images: map[string]plan.Image{"p-a": {ID: "sha:new"}}}}
	stages := stagesOf(h, nil)
	if err := stages.BuildRun.do(t.Context(), on, plan.StartContainer{Name: "a", Image: want}, &plan.Outcome{}); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, h.LastContainerConfig.Image); diff != "" {
		t.Error(diff)
	}
}

// TestStartReportsMissingImages: its own, or those of its volumes; all that it
// names where the runtime does not say which.
func TestStartReportsMissingImages(t *testing.T) {
	t.Parallel()
	for _, r := range []struct {
		sentence string
		here     []string // and not where it was seen
		resolve  bool
		fails    error
		gone     []string
		mounted  string
	}{
		{"nothing is gone", []string{"p-a", "vol"}, true, nil, nil, "sha:vol"},
		{"the volume's is", []string{"p-a"}, true, nil, []string{"vol"}, ""},
		{"its own is", []string{"vol"}, true, nil, []string{"p-a"}, ""},
		{"what was seen a moment ago is taken as it was", nil, false, nil, nil, "seen"},
		{
			"and the runtime does not have it", nil, false,
			&plan.Error{Kind: plan.ImageNotFound, Err: errors.New("gone")}, []string{"p-a", "vol"}, "",
		},
		{"which is another thing than that it fails", nil, false, errors.New("no"), nil, ""},
	} {
		t.Run(r.sentence, func(t *testing.T) {
			t.Parallel()
			h, pod := hostfake.NewHost(), hostfake.PodOf("p", "a")
			h.VolumeMounts = []plan.Mount{{HostPath: "/x"}, {Image: "vol"}}
			h.ErrorBefore = func(call string, _ int) error { return r.fails }
			for _, name := range r.here {
				h.HasImage[name] = true
			}
			on := actionContext{
				pod:      pod,
				observed: plan.Observed{Images: map[string]plan.Image{"p-a": {ID: "seen"}, "vol": {ID: "seen"}}},
			}
			var out plan.Outcome
			stages := stagesOf(h, nil)
			err := stages.BuildRun.do(
				t.Context(), on,
				plan.StartContainer{Name: "a", Image: plan.Image{ID: "seen"}, ResolveImage: r.resolve}, &out,
			)
			if !slices.Equal(out.MissingImages, r.gone) || (err == nil) != (r.mounted != "") {
				t.Errorf("gone: %q, want %q; %v", out.MissingImages, r.gone, err)
			}
			if err == nil && (h.LastContainerConfig.Mounts[1].Image != r.mounted || h.LastContainerConfig.Mounts[0].Image != "") {
				t.Errorf("mounted: %+v", h.LastContainerConfig.Mounts)
			}
		})
	}
}
