package pod

import (
	"errors"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/agent/hostfake"
	"berth/agent/plan"
)

// TestContainerIsCreatedFromImageOfItsStart checks that a container is created from the image of its
// start and with that image's user, even if the image name refers to another image by now.
func TestContainerIsCreatedFromImageOfItsStart(t *testing.T) {
	t.Parallel()
	h, pod := hostfake.NewHost(), hostfake.PodOf("p", "a")
	want := plan.Image{ID: "sha:old", Ref: "r@sha256:1", UID: new(int64(1000))}
	ac := actionContext{pod: pod, observed: plan.Observed{Images: map[string]plan.Image{"p-a": {ID: "sha:new"}}}}
	stages := stagesOf(h, nil)
	if err := stages.BuildRun.do(t.Context(), ac, plan.StartContainer{Name: "a", Image: want},
		&plan.Outcome{}); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, h.LastContainerConfig.Image); diff != "" {
		t.Error(diff)
	}
}

// TestStartReportsMissingImages checks which images a start reports as missing: the container's own,
// those of its volumes, or all of them if the error of the runtime does not name the image.
func TestStartReportsMissingImages(t *testing.T) {
	t.Parallel()
	for _, r := range []struct {
		sentence string
		present  []string // images on the node
		resolve  bool
		err      error
		missing  []string
		mounted  string
	}{
		{"no image is missing", []string{"p-a", "vol"}, true, nil, nil, "sha:vol"},
		{"the image of a volume is missing", []string{"p-a"}, true, nil, []string{"vol"}, ""},
		{"the image of the container is missing", []string{"vol"}, true, nil, []string{"p-a"}, ""},
		{"a recently inspected image is used unchanged", nil, false, nil, nil, "inspected"},
		{
			"the runtime does not have a recently inspected image", nil, false,
			&plan.Error{Kind: plan.ImageNotFound, Err: errors.New("no such image")}, []string{"p-a", "vol"}, "",
		},
		{"another error of the runtime", nil, false, errors.New("failed"), nil, ""},
	} {
		t.Run(r.sentence, func(t *testing.T) {
			t.Parallel()
			h, pod := hostfake.NewHost(), hostfake.PodOf("p", "a")
			h.VolumeMounts = []plan.Mount{{HostPath: "/x"}, {Image: "vol"}}
			h.ErrorBefore = func(call string, _ int) error { return r.err }
			for _, name := range r.present {
				h.HasImage[name] = true
			}
			ac := actionContext{
				pod: pod,
				observed: plan.Observed{Images: map[string]plan.Image{"p-a": {ID: "inspected"},
					"vol": {ID: "inspected"}}},
			}
			var out plan.Outcome
			stages := stagesOf(h, nil)
			err := stages.BuildRun.do(
				t.Context(), ac,
				plan.StartContainer{Name: "a", Image: plan.Image{ID: "inspected"}, ResolveImage: r.resolve}, &out,
			)
			if !slices.Equal(out.MissingImages, r.missing) || (err == nil) != (r.mounted != "") {
				t.Errorf("got missing images %q, want %q; error %v", out.MissingImages, r.missing, err)
			}
			if err == nil && (h.LastContainerConfig.Mounts[1].Image != r.mounted ||
				h.LastContainerConfig.Mounts[0].Image != "") {
				t.Errorf("got mounts %+v", h.LastContainerConfig.Mounts)
			}
		})
	}
}
