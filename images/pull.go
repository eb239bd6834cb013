package images

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/agent/plan"
	"berth/podspec"
)

// pull is what is known of a pull that is under way.
type pull struct {
	image  string // full name
	since  time.Time
	ticket *ticket
	pods   []string // namespace/name of who waits, one entry per asker
}

// PullProgress is one pull that is under way, as `berth why` shows it. There is no count
// of its bytes: a runtime tells, if anything, how far it is with all of them.
type PullProgress struct {
	Image           string    // full name
	RequestedAt     time.Time // when it was first asked for
	StartedAt       time.Time // when the runtime was asked; zero: it is still in the queue
	QueuePosition   int       // pulls before it in the queue
	WaitingForSpace string    // why it waits for room on the disk; empty: it does not
	Pods            []string  // namespace/name of the pods that wait for it, sorted
}

// Pull brings an image onto the node, whether it is there or not. It joins a
// pull of the same image with the same credentials. A caller who leaves by ctx
// disturbs no other. Errors are *plan.Error: kind Denied, NotFound, NoSpace,
// Timeout, Canceled, Unavailable, Unsupported or Other with reason ErrImagePull,
// RegistryUnavailable or SignatureValidationFailed; kind Invalid with
// InvalidImageName; or with ImageInspectError when the pulled image cannot be
// looked at.
func (i *Manager) Pull(ctx context.Context, pod *corev1.Pod, a plan.PullImage, secrets plan.Objects) (plan.Image, error) {
	n, err := podspec.ParseImageName(a.Image)
	if err != nil {
		return plan.Image{}, invalidName(a.Image, err)
	}
	if a.Policy == corev1.PullIfNotPresent { // somebody may have brought it since it was looked for
		if img, here, err := i.Present(ctx, pod, a.Image, secrets); err != nil || here {
			return img, err
		}
	}
	ring, skipped := newKeyring(pod.Namespace, pod.Spec.ImagePullSecrets, secrets)
	for _, s := range skipped {
		i.warn(pod, "FailedToRetrieveImagePullSecret", s)
	}
	keys := ring.find(n)
	ref := tagged(a.Image, n)
	img, early, err := i.pulls.do(ctx, flightKey(ref, keys), i.asker(pod, n, ref), func(ctx context.Context, p *pull) (plan.Image, error) {
		here := func(ctx context.Context) bool { p, err := i.inspect(ctx, ref, n); return err == nil && p.here }
		if err := i.enter(ctx, p.ticket, here); err != nil {
			return plan.Image{}, left(a.Image, err)
		}
		defer i.gate.leave(p.ticket)
		img, err := i.pullLogged(ctx, ref, n, keys)
		i.gate.learn(p.ticket, err)
		return img, err
	})
	switch {
	case early:
		return plan.Image{}, left(a.Image, err)
	case err != nil:
		return plan.Image{}, withSkipped(err, skipped)
	}
	i.use(img)
	return img, nil
}

// asker lets a pod take part in a pull: its priority counts and its name is
// shown while it waits.
func (i *Manager) asker(pod *corev1.Pod, n podspec.ImageName, ref string) asker[pull] {
	who := pod.Namespace + "/" + pod.Name
	w := wants{ref: ref, priority: podspec.Priority(pod), critical: podspec.IsCritical(pod, i.standalone)}
	return asker[pull]{
		joins: func(p *pull) {
			if p.ticket == nil {
				*p = pull{image: n.String(), since: i.now(), ticket: i.gate.join(w)}
			} else {
				i.gate.raise(p.ticket, w)
			}
			p.pods = append(p.pods, who)
		},
		leaves: func(p *pull) {
			if at := slices.Index(p.pods, who); at >= 0 {
				p.pods = slices.Delete(p.pods, at, at+1)
			}
		},
	}
}

// pullLogged is pull with a record of whose credentials brought the image.
func (i *Manager) pullLogged(ctx context.Context, ref string, n podspec.ImageName, keys []credentials) (plan.Image, error) {
	if err := i.pullLog.begin(ref); err != nil {
		kind := plan.Other
		if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
			kind = plan.NoSpace
		}
		return plan.Image{}, &plan.Error{Kind: kind, Reason: reasonPull, Err: fmt.Errorf("pull image %q: %w", ref, err)}
	}
	img, with, err := i.pull(ctx, ref, n, keys)
	if err != nil {
		i.pullLog.failed(ref, nothingCame(err))
		return plan.Image{}, err
	}
	i.pullLog.succeeded(ref, n, img.ID, with)
	return img, nil
}

// nothingCame reports whether a pull that failed has surely left no image.
func nothingCame(err error) bool {
	e, ok := errors.AsType[*plan.Error](err)
	if !ok || e.Reason == reasonInspect { // it was pulled, and could not be looked at
		return false
	}
	return e.Kind != plan.Canceled && e.Kind != plan.Timeout && e.Kind != plan.Unavailable
}

// pull asks the runtime for an image with one set of credentials after the
// other, and without any if there are none. It returns those that served.
func (i *Manager) pull(ctx context.Context, ref string, n podspec.ImageName, keys []credentials) (plan.Image, credentials, error) {
	if i.timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, i.timeout)
		defer cancel()
	}
	if len(keys) == 0 {
		img, err := i.pullWith(ctx, ref, n, credentials{})
		return img, credentials{}, err
	}
	var errs []error
	for _, c := range keys {
		img, err := i.pullWith(ctx, ref, n, c)
		if err == nil {
			return img, c, nil
		}
		errs = append(errs, err)
		// Other credentials help only against a registry that does not like
		// these; many say of what one may not see that it is not there.
		if k := plan.KindOf(err); k != plan.Denied && k != plan.NotFound && k != plan.Other {
			return plan.Image{}, c, err
		}
	}
	return plan.Image{}, credentials{}, combined(errs)
}

func (i *Manager) pullWith(ctx context.Context, ref string, n podspec.ImageName, c credentials) (plan.Image, error) {
	req := &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: ref, UserSpecifiedImage: ref}}
	if c != (credentials{}) {
		req.Auth = &runtimeapi.AuthConfig{
			Username: c.username, Password: c.password,
			IdentityToken: c.identityToken, RegistryToken: c.registryToken,
		}
	}
	resp, err := i.service.PullImage(ctx, req)
	if err != nil {
		return plan.Image{}, pullError(ref, err, errors.Is(ctx.Err(), context.Canceled), c.secrets())
	}
	// By the answer's own reference: the tag may have moved on meanwhile.
	p, err := i.inspect(ctx, cmp.Or(resp.GetImageRef(), ref), n)
	if err == nil && !p.here {
		err = errors.New("the runtime does not show the image that it has just pulled")
	}
	if err != nil {
		return plan.Image{}, inspectError(ref, err)
	}
	return p.image, nil
}

// combined is one error for all credentials that were tried. A denial says more
// than that nothing was found: it comes first.
func combined(errs []error) error {
	if len(errs) == 1 {
		return errs[0]
	}
	slices.SortStableFunc(errs, func(a, b error) int {
		rank := func(err error) int {
			if plan.KindOf(err) == plan.Denied {
				return 0
			}
			return 1
		}
		return rank(a) - rank(b)
	})
	first, ok := errors.AsType[*plan.Error](errs[0])
	if !ok {
		return errors.Join(errs...)
	}
	return &plan.Error{Kind: first.Kind, Reason: first.Reason, Err: fmt.Errorf("%w (with each of %d credentials)", first.Err, len(errs))}
}

// withSkipped adds to a failed pull which pull secrets it had to do without.
func withSkipped(err error, skipped []string) error {
	e, ok := errors.AsType[*plan.Error](err)
	if !ok || len(skipped) == 0 {
		return err
	}
	return &plan.Error{Kind: e.Kind, Reason: e.Reason, Err: fmt.Errorf("%w (%s)", e.Err, strings.Join(skipped, "; "))}
}

// flightKey is the same for pulls that may be shared.
func flightKey(ref string, keys []credentials) string {
	h := sha256.New()
	for _, c := range keys {
		_, _ = fmt.Fprintf(h, "%q %q %q %q\n", c.username, c.password, c.identityToken, c.registryToken)
	}
	return ref + " " + hex.EncodeToString(h.Sum(nil))
}

// ActivePulls lists the pulls that are under way, the oldest first.
func (i *Manager) ActivePulls() []PullProgress {
	var all []PullProgress
	i.pulls.each(func(p *pull) {
		began, before, held := i.gate.place(p.ticket)
		pods := slices.Clone(p.pods)
		slices.Sort(pods)
		all = append(all, PullProgress{Image: p.image, RequestedAt: p.since, StartedAt: began, QueuePosition: before, WaitingForSpace: held, Pods: slices.Compact(pods)})
	})
	slices.SortFunc(all, func(a, b PullProgress) int {
		return cmp.Or(a.RequestedAt.Compare(b.RequestedAt), cmp.Compare(a.Image, b.Image))
	})
	return all
}

// PullStatus says how the pull of an image stands, for people; empty: none is
// under way.
func (i *Manager) PullStatus(image string) string {
	p, there := i.progress(image)
	switch {
	case !there:
		return ""
	case p.WaitingForSpace != "":
		return fmt.Sprintf("%s, waits for room: %s", image, p.WaitingForSpace)
	case p.StartedAt.IsZero():
		return fmt.Sprintf("%s, %d pulls before it", image, p.QueuePosition)
	default:
		text := fmt.Sprintf("%s, for %d pods", image, len(p.Pods))
		if coming := i.coming(); coming != "" {
			text += "; " + coming
		}
		return text
	}
}

// progress is the oldest pull of an image.
func (i *Manager) progress(image string) (PullProgress, bool) {
	n, err := podspec.ParseImageName(image)
	if err != nil {
		return PullProgress{}, false
	}
	all := i.ActivePulls()
	at := slices.IndexFunc(all, func(p PullProgress) bool { return p.Image == n.String() })
	if at < 0 {
		return PullProgress{}, false
	}
	return all[at], true
}
