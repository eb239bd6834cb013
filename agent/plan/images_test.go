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
	failing := func(n int) *driver { // n pulls have failed, the last a moment ago
		w := fresh(far(corev1.PullIfNotPresent)).begin().succeed("make/dirs").succeed("make/cgroup").begin().succeed("run/sandbox")
		for i := range n {
			if i > 0 {
				w.decide()
				for w.last.Empty() { // over the moment that the error is shown, to the end of the back-off
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
		{"IfNotPresent uses what is there", fresh(), "make dirs, make cgroup", nil},
		{"IfNotPresent pulls what is not", fresh(far(corev1.PullIfNotPresent)), "make dirs, make cgroup, pull app far", nil},
		{"Always pulls though it is there", fresh(mains(con("app", pulls(corev1.PullAlways)))), "make dirs, make cgroup, pull app img", nil},
		{"Always pulls once per start", up(mains(con("app", pulls(corev1.PullAlways)))), "-", nil},
		{"Always pulls again before a restart", up(mains(con("app", pulls(corev1.PullAlways)))).exit("app", 1), "pull app img", nil},
		{"and starts what that pull brought", up(mains(con("app", pulls(corev1.PullAlways)))).exit("app", 1).begin().finish(), "start app#1", []string{"!already present"}},
		{"Never uses what is there", fresh(mains(con("app", pulls(corev1.PullNever)))).begin().finish().begin().finish(), "start app#0", []string{`why    Pulled app "Container image \"img\" already present on machine and can be accessed by the pod" (Normal)`}},
		{"Never says that it is not there", fresh(far(corev1.PullNever)), "make dirs, make cgroup",
			[]string{`app    waiting ErrImageNeverPull "Container image \"far\" is not present with pull policy of Never"`, "why    ErrImageNeverPull app", `why    Failed app "Error: ErrImageNeverPull" (Warning)`}},
		{"nor that it is not there when that cannot be told", unclear(fresh(far(corev1.PullNever))), "make dirs, make cgroup",
			[]string{`app    waiting ImageInspectError "no answer"`, `why    InspectFailed app "no answer" (Warning)`, `why    Failed app "Error: ImageInspectError" (Warning)`, "!ErrImageNeverPull", "seek   far"}},
		{"one that is believed here is tried", unclear(fresh(mains(con("app", pulls(corev1.PullNever))))).begin().finish().begin().finish(), "start app#0", nil},
		{"what may be pulled is: that says why", unclear(fresh(far(corev1.PullIfNotPresent))), "make dirs, make cgroup, pull app far", []string{"!InspectFailed"}},
		{"and has it looked for again, as nobody tells when it is brought", sought(0), "", []string{"seek   far"}},
		{"after a few seconds, not at once", sought(4 * time.Second), "", []string{"!seek", "wake   at+5s"}},
		{"again and again", sought(5 * time.Second), "", []string{"seek   far"}},
		{"an image that two containers name is looked for once", fresh(mains(con("app", image("far"), pulls(corev1.PullNever)), con("b", image("far"), pulls(corev1.PullNever)))), "", []string{"seek   far\n"}},
		{"not once the pod is over", sought(time.Hour).deleted(0), "", []string{"!seek"}},
		{"a pull that failed shows its error first", failing(1), "-", []string{`app    waiting ErrImagePull "no such image"`, "wake   at+2s"}},
		{"then that it is held back, with the error", failing(1).after(2 * time.Second), "-",
			[]string{`app    waiting ImagePullBackOff "Back-off pulling image \"far\": ErrImagePull: no such image"`, `why    BackOff app "Back-off pulling image \"far\"" until+10s (Normal)`, `why    Failed app "Error: ImagePullBackOff" (Warning)`, "wake   at+10s", "pod    Pending"}},
		{"and then it is tried again", failing(1).after(10 * time.Second), "pull app far", []string{"app    waiting ImagePullBackOff"}},
		{"and that shows while the pull is under way", failing(1).after(10 * time.Second).begin(), "-", []string{"app    waiting ImagePullBackOff"}},
		{"a pull that waits for room says so, with the figures", noRoom(fresh(far(corev1.PullIfNotPresent)).begin()), "-",
			[]string{`app    waiting ImagePullNoSpace "the pull of image \"far\" waits for room on the disk: 2 are free"`, `why    ImagePullNoSpace app "the pull of image \"far\" waits for room on the disk: 2 are free" (Warning)`}},
		{"also after one that has failed", noRoom(failing(1).after(10 * time.Second).begin()), "-", []string{"app    waiting ImagePullNoSpace"}},
		{"not if it is another image that waits", fresh(mains(con("app", image("near"), pulls(corev1.PullIfNotPresent)))).begin().input(func(in *Input) { in.Observed.HeldPulls = map[string]string{"far": "2 are free"} }), "-", []string{"!ImagePullNoSpace"}},
		{"the second time it is held back 20 s", failing(2).after(2 * time.Second), "-", []string{"until+30s"}},
		{"never more than 5 min", failing(9).after(2 * time.Second), "-", []string{"until+25m10s"}}, // 10+20+40+80+160+300×4
		{"an image name that cannot be read is told and never pulled", fresh(mains(con("app", image("a/B")))).after(time.Hour), "make dirs, make cgroup", []string{
			`app    waiting InvalidImageName "Failed to apply default image tag \"a/B\": invalid reference format:`,
			`why    InspectFailed app "Failed to apply default image tag \"a/B\": `, `why    Failed app "Error: InvalidImageName" (Warning)`,
		}},
		{"nor is one that only the runtime cannot read called a back-off", failing(0).ends("pull/app", &Error{Kind: Invalid, Reason: "InvalidImageName", Err: errors.New("bad")}).after(9 * time.Second), "-",
			[]string{`waiting InvalidImageName "bad"`, "!BackOff"}},
		{"nor one that the runtime cannot look at", failing(0).ends("pull/app", &Error{Reason: "ImageInspectError", Err: errors.New("bad")}).after(9 * time.Second), "-",
			[]string{`waiting ImageInspectError "bad"`, "!BackOff"}},
		{"a registry that answers again recovers the pod", failing(3).after(time.Minute).begin().finish(), "start app#0", nil},
		{"a pull that was called off is not held back", failing(0).ends("pull/app", &Error{Kind: Canceled, Err: errors.New("x")}), "pull app far", nil},
		{"another image is pulled at once though the first failed", failing(4).edit(far(corev1.PullIfNotPresent)).edit(mains(con("app", image("other")))), "pull app other", nil},
		{"a pull of an image that is no longer wanted is called off", failing(0).edit(mains(con("app", image("other")))), "cancel pull/app", nil},
		{"the images of one pod are pulled side by side", fresh(mains(con("a", image("x")), con("b", image("y")))), "make dirs, make cgroup, pull a x, pull b y", nil},
		{"an app's image is pulled while init containers run", fresh(inits(con("one")), far(corev1.PullIfNotPresent)), "make dirs, make cgroup, pull app far", nil},
		{"a failing app image does not hold init containers up, nor hide that they run",
			fresh(inits(con("one")), far(corev1.PullIfNotPresent)).begin().succeed("make/dirs").succeed("make/cgroup").begin().succeed("run/sandbox").ends("pull/app", refused), "start one#0",
			[]string{"app    waiting PodInitializing"}},
		{"an image that has vanished is pulled again",
			failing(0).succeed("pull/app").fails("start/app", &Error{Kind: ImageNotFound, Err: errors.New("gone")}).after(time.Second), "pull app far", nil},
	})
}

// TestStartUsesImageOfOwnPull whole, with who runs by it, though the
// name has moved on since: what another container's pull brought is another image.
func TestStartUsesImageOfOwnPull(t *testing.T) {
	t.Parallel()
	w := fresh(mains(con("a", image("far"), pulls(corev1.PullAlways)), con("b", image("far"), pulls(corev1.PullAlways)))).begin()
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

// TestStartResolvesOldImageAgain unless that was done a moment ago: its name
// may stand for another one since.
func TestStartResolvesOldImageAgain(t *testing.T) {
	t.Parallel()
	ready := func(opts ...func(*corev1.Pod)) *driver { return fresh(opts...).begin().finish().begin().finish() }
	far := mains(con("app", image("far")))
	for _, r := range []struct {
		sentence string
		given    *driver
		want     bool
	}{
		{"a first start takes what was seen when the pod came", ready(), false},
		{"or what was pulled for it", ready(far).after(imageCheckInterval), false},
		{"but not what was seen before it had to wait", ready().after(imageCheckInterval + 1), true},
		{"nor what was pulled then", ready(far).after(imageCheckInterval + 1), true},
		{"a restart never takes what was seen before", up().exit("app", 1), true},
	} {
		t.Run(r.sentence, func(t *testing.T) {
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
			t.Error("it was never started")
		})
	}
}

func TestObservedWithImages(t *testing.T) {
	t.Parallel()
	a, b := Image{ID: "a"}, Image{ID: "b"}
	o := Observed{Images: map[string]Image{"stays": a, "moves": a, "goes": a, "hides": a}, ImageErrors: map[string]string{"goes": "x", "other": "y"}}
	now := o.WithImages(ImageStatuses{"moves": {Image: b, Present: true}, "goes": {}, "hides": {Err: "z"}, "comes": {Image: b, Present: true}})
	if want := (map[string]Image{"stays": a, "moves": b, "hides": a, "comes": b}); !maps.Equal(now.Images, want) {
		t.Errorf("%+v, want %+v", now.Images, want)
	}
	if want := (map[string]string{"other": "y", "hides": "z"}); !maps.Equal(now.ImageErrors, want) {
		t.Errorf("%+v, want %+v", now.ImageErrors, want)
	}
	if len(o.Images) != 4 || o.Images["moves"] != a || len(o.ImageErrors) != 2 {
		t.Errorf("what was seen before was changed: %+v", o)
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
	gone := &Error{Kind: ImageNotFound, Err: errors.New("gone")}
	runCases(t, []testCase{
		{"its image is pulled beside all else, and nothing is mounted on the host", with("far", corev1.PullIfNotPresent), "make dirs, make cgroup, pull volume/data far", nil},
		{"a container waits for it", with("far", corev1.PullIfNotPresent).begin().succeed("make/dirs").succeed("make/cgroup").begin().succeed("run/sandbox"), "-",
			[]string{"app    waiting ContainerCreating"}},
		{"and starts when it is there", with("far", corev1.PullIfNotPresent).begin().finish().begin().finish(), "start app#0", nil},
		{"one that is here is not pulled", with("img", corev1.PullIfNotPresent), "make dirs, make cgroup", nil},
		{"Always pulls it once", with("img", corev1.PullAlways).begin().finish().begin().finish(), "start app#0", nil},
		{"Never says that it is missing", with("far", corev1.PullNever).begin().finish().begin().finish(), "-", []string{"app    waiting ErrImageNeverPull"}},
		{"a pull that fails shows at the container", with("far", corev1.PullIfNotPresent).begin().succeed("make/dirs").succeed("make/cgroup").fails("pull/volume/data", none), "",
			[]string{"app    waiting ErrImagePull"}},
		{"one that has vanished is pulled again, with all that the container needs", with("far", corev1.PullIfNotPresent).begin().finish().begin().finish().fails("start/app", gone).after(time.Second), "pull app img, pull volume/data far", nil},
		{"also where it is pulled always", with("far", corev1.PullAlways).begin().finish().begin().finish().fails("start/app", gone).after(time.Second), "pull app img, pull volume/data far", nil},
		{"one that nobody mounts is not pulled", fresh(volume("data", "far", corev1.PullIfNotPresent)), "make dirs, make cgroup", nil},
	})
}
