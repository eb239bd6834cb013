package plan

import (
	"errors"
	"maps"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

func TestImages(t *testing.T) {
	t.Parallel()
	far := func(p corev1.PullPolicy) func(*corev1.Pod) {
		return mains(con("app", image("far"), pulls(p)))
	}
	refused := &Error{Kind: Denied, Reason: "ErrImagePull", Err: errors.New("no such image")}
	failing := func(n int) *driver { // n pulls have failed, the last one just now
		w := fresh(far(corev1.PullIfNotPresent)).begin().succeed("make/dirs").succeed("make/cgroup").begin().
			succeed("run/sandbox")
		for i := range n {
			if i > 0 {
				w.decide()
				for w.last.Empty() { // from the display of the error to the end of the back-off
					w.in.Now = w.last.Wake
					w.decide()
				}
				w.begin()
			}
			w.ends("pull/app", refused)
		}
		return w
	}
	noRoom := func(w *driver) *driver {
		return w.input(func(in *Input) { in.Observed.HeldPulls = map[string]string{"far": "2 are free"} })
	}
	unclear := func(w *driver) *driver {
		return w.input(func(in *Input) {
			in.Observed = in.Observed.WithImages(ImageStatuses{"far": {Err: "no answer"}, "img": {Err: "no answer"}})
		})
	}
	sought := func(ago time.Duration) *driver {
		w := fresh(far(corev1.PullNever)).input(func(in *Input) { in.ImagesCheckedAt = t0 }).after(ago)
		if ago == 0 {
			w.in.ImagesCheckedAt = time.Time{}
		}
		return w
	}
	runCases(t, []testCase{
		{"IfNotPresent uses a present image", fresh(), "make dirs, make cgroup", nil},
		{"IfNotPresent pulls a missing image", fresh(far(corev1.PullIfNotPresent)),
			"make dirs, make cgroup, pull app far",
			nil},
		{"Always pulls a present image", fresh(mains(con("app", pulls(corev1.PullAlways)))),
			"make dirs, make cgroup, pull app img", nil},
		{"Always pulls once per start", up(mains(con("app", pulls(corev1.PullAlways)))), "-", nil},
		{"Always pulls again before a restart", up(mains(con("app", pulls(corev1.PullAlways)))).exit("app", 1),
			"pull app img", nil},
		{"… and starts the pulled image", up(mains(con("app", pulls(corev1.PullAlways)))).exit("app",
			1).begin().finish(),
			"start app#1", []string{"!already present"}},
		{"Never uses a present image",
			fresh(mains(con("app", pulls(corev1.PullNever)))).begin().finish().begin().finish(),
			"start app#0", []string{`why    Pulled app "Container image \"img\" already present on machine and can ` +
				`be accessed by the pod" (Normal)`}},
		{"Never reports a missing image", fresh(far(corev1.PullNever)), "make dirs, make cgroup",
			[]string{`app    waiting ErrImageNeverPull "Container image \"far\" is not present with pull ` +
				`policy of Never"`,
				"why    ErrImageNeverPull app", `why    Failed app "Error: ErrImageNeverPull" (Warning)`}},
		{"… unless its presence is unknown", unclear(fresh(far(corev1.PullNever))), "make dirs, make cgroup",
			[]string{`app    waiting ImageInspectError "no answer"`, `why    InspectFailed app "no answer" (Warning)`,
				`why    Failed app "Error: ImageInspectError" (Warning)`, "!ErrImageNeverPull", "check  far"}},
		{"an image last known to be present is used", unclear(fresh(mains(con("app",
			pulls(corev1.PullNever))))).begin().finish().begin().finish(), "start app#0", nil},
		{"an image of unknown presence is pulled if the policy permits", unclear(fresh(far(corev1.PullIfNotPresent))),
			"make dirs, make cgroup, pull app far", []string{"!InspectFailed"}},
		{"a missing image that cannot be pulled is checked for", sought(0), "", []string{"check  far"}},
		{"… after a few seconds", sought(4 * time.Second), "", []string{"!check", "wake   at+5s"}},
		{"… repeatedly", sought(5 * time.Second), "", []string{"check  far"}},
		{"an image of two containers is checked once", fresh(mains(con("app", image("far"), pulls(corev1.PullNever)),
			con("b", image("far"), pulls(corev1.PullNever)))), "", []string{"check  far\n"}},
		{"a terminated pod checks for no images", sought(time.Hour).deleted(0), "", []string{"!check"}},
		{"a failed pull first shows its error", failing(1), "-",
			[]string{`app    waiting ErrImagePull "no such image"`, "wake   at+2s"}},
		{"… then the back-off with the error", failing(1).after(2 * time.Second), "-",
			[]string{`app    waiting ImagePullBackOff "Back-off pulling image \"far\": ErrImagePull: no such image"`,
				`why    BackOff app "Back-off pulling image \"far\"" until+10s (Normal)`,
				`why    Failed app "Error: ImagePullBackOff" (Warning)`, "wake   at+10s", "pod    Pending"}},
		{"… and is then retried", failing(1).after(10 * time.Second), "pull app far",
			[]string{"app    waiting ImagePullBackOff"}},
		{"… still showing the back-off", failing(1).after(10 * time.Second).begin(), "-",
			[]string{"app    waiting ImagePullBackOff"}},
		{"a pull that waits for disk space is reported with the amounts",
			noRoom(fresh(far(corev1.PullIfNotPresent)).begin()), "-",
			[]string{`app    waiting ImagePullNoSpace "the pull of image \"far\" waits for disk space: 2 are free"`,
				`why    ImagePullNoSpace app "the pull of image \"far\" waits for disk space: 2 are free" (Warning)`}},
		{"… also after a failed pull", noRoom(failing(1).after(10 * time.Second).begin()), "-",
			[]string{"app    waiting ImagePullNoSpace"}},
		{"… but not for another image",
			fresh(mains(con("app", image("near"),
				pulls(corev1.PullIfNotPresent)))).begin().
				input(func(in *Input) { in.Observed.HeldPulls = map[string]string{"far": "2 are free"} }), "-",
			[]string{"!ImagePullNoSpace"}},
		{"the second back-off is 20 s", failing(2).after(2 * time.Second), "-", []string{"until+30s"}},
		// 10+20+40+80+160+300×4
		{"the back-off is at most 5 min", failing(9).after(2 * time.Second), "-", []string{"until+25m10s"}},
		{"an invalid image name is reported and never pulled", fresh(mains(con("app", image("a/B")))).after(time.Hour),
			"make dirs, make cgroup", []string{
				`app    waiting InvalidImageName "Failed to apply default image tag \"a/B\": invalid reference format:`,
				`why    InspectFailed app "Failed to apply default image tag \"a/B\": `,
				`why    Failed app "Error: InvalidImageName" (Warning)`,
			}},
		{"a name that only the runtime rejects is not reported as a back-off", failing(0).ends("pull/app",
			&Error{Kind: Invalid, Reason: "InvalidImageName", Err: errors.New("bad")}).after(9 * time.Second), "-",
			[]string{`waiting InvalidImageName "bad"`, "!BackOff"}},
		{"an image that cannot be inspected is not reported as a back-off", failing(0).ends("pull/app",
			&Error{Reason: "ImageInspectError", Err: errors.New("bad")}).after(9 * time.Second), "-",
			[]string{`waiting ImageInspectError "bad"`, "!BackOff"}},
		{"the pod recovers when the registry responds again", failing(3).after(time.Minute).begin().finish(),
			"start app#0",
			nil},
		{"a canceled pull is retried immediately",
			failing(0).ends("pull/app", &Error{Kind: Canceled, Err: errors.New("x")}),
			"pull app far", nil},
		{"another image is pulled immediately after a failed pull",
			failing(4).edit(far(corev1.PullIfNotPresent)).edit(mains(con("app", image("other")))), "pull app other",
			nil},
		{"a pull of an image that is no longer wanted is canceled", failing(0).edit(mains(con("app", image("other")))),
			"cancel pull/app", nil},
		{"the images of a pod are pulled in parallel", fresh(mains(con("a", image("x")), con("b", image("y")))),
			"make dirs, make cgroup, pull a x, pull b y", nil},
		{"the image of an app container is pulled while init containers run",
			fresh(inits(con("one")), far(corev1.PullIfNotPresent)), "make dirs, make cgroup, pull app far", nil},
		{"a failing app image neither delays init containers nor hides them",
			fresh(inits(con("one")), far(corev1.PullIfNotPresent)).begin().succeed("make/dirs").succeed(
				"make/cgroup").begin().
				succeed("run/sandbox").ends("pull/app", refused), "start one#0",
			[]string{"app    waiting PodInitializing"}},
		{"a removed image is pulled again",
			failing(0).succeed("pull/app").fails("start/app",
				&Error{Kind: ImageNotFound, Err: errors.New("image removed")}).after(time.Second), "pull app far", nil},
	})
}

// TestStartUsesImageOfOwnPull checks that a container starts with the complete image that its own
// pull returned, even if a later pull for another container returned a different one.
func TestStartUsesImageOfOwnPull(t *testing.T) {
	t.Parallel()
	w := fresh(mains(con("a", image("far"), pulls(corev1.PullAlways)),
		con("b", image("far"), pulls(corev1.PullAlways)))).begin()
	first, second := Image{ID: "sha:1", UID: new(int64(7))}, Image{ID: "sha:2", User: "web"}
	for _, p := range []struct {
		container string
		brought   Image
	}{{"a", first}, {"b", second}} {
		a := w.in.InProgress[ActionKey{"pull", p.container}]
		delete(w.in.InProgress, a.Key())
		w.in.Observed = w.in.Observed.After(Outcome{Action: a, Image: &p.brought})
	}
	w.finish()
	started := func() (out []Image) {
		for range 10 {
			for _, a := range w.begin().last.BuildRun {
				if s, ok := a.(StartContainer); ok {
					out = append(out, s.Image)
				}
			}
			w.finish()
		}
		return out
	}
	if got := started(); !slices.Equal(got, []Image{first, second}) {
		t.Errorf("started from %+v, want %+v", got, []Image{first, second})
	}
}

// TestStartResolvesOldImageAgain checks that an image is resolved again before a start unless that
// was done recently, because its name may refer to another image.
func TestStartResolvesOldImageAgain(t *testing.T) {
	t.Parallel()
	ready := func(opts ...func(*corev1.Pod)) *driver { return fresh(opts...).begin().finish().begin().finish() }
	far := mains(con("app", image("far")))
	for _, r := range []struct {
		name  string
		given *driver
		want  bool
	}{
		{"a first start uses the image observed when the pod was added", ready(), false},
		{"… or the one pulled for it", ready(far).after(imageCheckInterval), false},
		{"an image observed before a long wait is resolved again", ready().after(imageCheckInterval + 1), true},
		{"… also one pulled before it", ready(far).after(imageCheckInterval + 1), true},
		{"a restart resolves the image again", up().exit("app", 1), true},
	} {
		t.Run(r.name, func(t *testing.T) {
			t.Parallel()
			for range 10 {
				r.given.decide()
				for _, a := range r.given.last.BuildRun {
					if s, ok := a.(StartContainer); ok {
						if s.ResolveImage != r.want {
							t.Errorf("resolved: %v, want %v", s.ResolveImage, r.want)
						}
						return
					}
				}
				r.given.begin().finish()
			}
			t.Error("the container was never started")
		})
	}
}

func TestObservedWithImages(t *testing.T) {
	t.Parallel()
	a, b := Image{ID: "a"}, Image{ID: "b"}
	o := Observed{Images: map[string]Image{"stays": a, "moves": a, "goes": a, "hides": a},
		ImageErrors: map[string]string{"goes": "x", "other": "y"}}
	now := o.WithImages(ImageStatuses{"moves": {Image: b, Present: true}, "goes": {}, "hides": {Err: "z"},
		"comes": {Image: b, Present: true}})
	if want := (map[string]Image{"stays": a, "moves": b, "hides": a, "comes": b}); !maps.Equal(now.Images, want) {
		t.Errorf("%+v, want %+v", now.Images, want)
	}
	if want := (map[string]string{"other": "y", "hides": "z"}); !maps.Equal(now.ImageErrors, want) {
		t.Errorf("%+v, want %+v", now.ImageErrors, want)
	}
	if len(o.Images) != 4 || o.Images["moves"] != a || len(o.ImageErrors) != 2 {
		t.Errorf("the receiver was modified: %+v", o)
	}
}

func TestImageVolumes(t *testing.T) {
	t.Parallel()
	volume := func(name, reference string, policy corev1.PullPolicy) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{
				Image: &corev1.ImageVolumeSource{Reference: reference, PullPolicy: policy},
			}})
		}
	}
	with := func(reference string, policy corev1.PullPolicy) *driver {
		return fresh(mains(con("app", mounts("data"))), volume("data", reference, policy))
	}
	none := &Error{Kind: NotFound, Reason: "ErrImagePull", Err: errors.New("no such image")}
	removed := &Error{Kind: ImageNotFound, Err: errors.New("image removed")}
	runCases(t, []testCase{
		{"the image is pulled in parallel and nothing is mounted on the host", with("far", corev1.PullIfNotPresent),
			"make dirs, make cgroup, pull volume/data far", nil},
		{"a container waits for the image", with("far",
			corev1.PullIfNotPresent).begin().succeed("make/dirs").succeed("make/cgroup").begin().succeed("run/sandbox"),
			"-",
			[]string{"app    waiting ContainerCreating"}},
		{"… and starts when it is present", with("far", corev1.PullIfNotPresent).begin().finish().begin().finish(),
			"start app#0", nil},
		{"a present image is not pulled", with("img", corev1.PullIfNotPresent), "make dirs, make cgroup", nil},
		{"Always pulls it once", with("img", corev1.PullAlways).begin().finish().begin().finish(), "start app#0", nil},
		{"Never reports a missing image", with("far", corev1.PullNever).begin().finish().begin().finish(), "-",
			[]string{"app    waiting ErrImageNeverPull"}},
		{"a failed pull is reported for the container", with("far",
			corev1.PullIfNotPresent).begin().succeed("make/dirs").succeed("make/cgroup").fails("pull/volume/data",
			none), "",
			[]string{"app    waiting ErrImagePull"}},
		{"a removed image is pulled again together with the container's image",
			with("far", corev1.PullIfNotPresent).begin().finish().begin().finish().fails("start/app",
				removed).after(time.Second),
			"pull app img, pull volume/data far", nil},
		{"… also with pull policy Always",
			with("far", corev1.PullAlways).begin().finish().begin().finish().fails("start/app",
				removed).after(time.Second),
			"pull app img, pull volume/data far", nil},
		{"an image volume that no container mounts is not pulled",
			fresh(volume("data", "far", corev1.PullIfNotPresent)),
			"make dirs, make cgroup", nil},
	})
}
