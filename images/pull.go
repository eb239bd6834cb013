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

// PullProgress is a pull in progress, as `berth why` shows it. It has no byte count, because the
// runtime reports the progress only for all pulls together, if at all.
type PullProgress struct {
	Image           string    // full name
	RequestedAt     time.Time // first request
	StartedAt       time.Time // start of the runtime call; zero: still queued
	QueuePosition   int       // pulls ahead of it in the queue
	WaitingForSpace string    // why it waits for disk space; empty: it does not
	Pods            []string  // namespace/name of the waiting pods, sorted
}

// Pull pulls an image, whether or not it is present. Concurrent pulls of the same image with the
// same credentials are shared. A caller that cancels ctx does not affect the others. Errors are
// *plan.Error: kind Denied, NotFound, NoSpace, Timeout, Canceled, Unavailable, Unsupported or Other
// with reason ErrImagePull, RegistryUnavailable or SignatureValidationFailed, kind Invalid with
// InvalidImageName, or reason ImageInspectError if the status of the pulled image cannot be read.
func (m *Manager) Pull(ctx context.Context, pod *corev1.Pod, a plan.PullImage,
	secrets plan.Objects) (plan.Image, error) {
	n, err := podspec.ParseImageName(a.Image)
	if err != nil {
		return plan.Image{}, invalidName(a.Image, err)
	}
	if a.Policy == corev1.PullIfNotPresent { // it may have been pulled since it was observed
		if img, present, err := m.Present(ctx, pod, a.Image, secrets); err != nil || present {
			return img, err
		}
	}
	ring, skipped := newKeyring(pod.Namespace, pod.Spec.ImagePullSecrets, secrets)
	for _, s := range skipped {
		m.warn(pod, "FailedToRetrieveImagePullSecret", s)
	}
	keys := ring.find(n)
	more, problems := m.node.find(ctx, pod, n)
	for _, p := range problems {
		m.warn(pod, "FailedToRetrieveImagePullCredentials", p)
	}
	skipped = append(skipped, problems...)
	for _, c := range more {
		if !slices.ContainsFunc(keys, c.sameValues) {
			keys = append(keys, c)
		}
	}
	ref := withDefaultTag(a.Image, n)
	img, left, err := m.pulls.do(ctx, inflightKey(ref, keys), m.newWaiter(pod, n, ref),
		func(ctx context.Context, p *inflightPull) (plan.Image, error) {
			present := func(ctx context.Context) bool {
				status, err := m.inspect(ctx, ref, n)
				return err == nil && status.present
			}
			if err := m.waitToStart(ctx, p.request, present); err != nil {
				return plan.Image{}, waitError(a.Image, err)
			}
			defer m.limiter.release(p.request)
			img, err := m.pullWithRecord(ctx, ref, n, keys)
			m.limiter.recordSize(p.request, err)
			return img, err
		})
	switch {
	case left:
		return plan.Image{}, waitError(a.Image, err)
	case err != nil:
		return plan.Image{}, addSkippedSecrets(err, skipped)
	}
	m.use(img)
	return img, nil
}

// newWaiter lets a pod share a pull: its priority counts and its name is shown while it waits.
func (m *Manager) newWaiter(pod *corev1.Pod, n podspec.ImageName, ref string) waiter {
	name := pod.Namespace + "/" + pod.Name
	spec := pullSpec{ref: ref, priority: podspec.Priority(pod), critical: podspec.IsCritical(pod, m.standalone)}
	return waiter{
		onJoin: func(p *inflightPull) {
			if p.request == nil {
				p.name, p.requestedAt, p.request = n.String(), m.now(), m.limiter.enqueue(spec)
			} else {
				m.limiter.raisePriority(p.request, spec)
			}
			p.pods = append(p.pods, name)
		},
		onLeave: func(p *inflightPull) {
			if at := slices.Index(p.pods, name); at >= 0 {
				p.pods = slices.Delete(p.pods, at, at+1)
			}
		},
	}
}

// pullWithRecord pulls an image and records the credentials.
func (m *Manager) pullWithRecord(ctx context.Context, ref string, n podspec.ImageName,
	keys []credentials) (plan.Image, error) {
	if err := m.records.recordIntent(ref); err != nil {
		kind := plan.Other
		if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
			kind = plan.NoSpace
		}
		return plan.Image{}, &plan.Error{Kind: kind, Reason: reasonPull, Err: fmt.Errorf("pull image %q: %w", ref, err)}
	}
	img, used, err := m.pull(ctx, ref, n, keys)
	if err != nil {
		m.records.recordFailure(ref, definitelyFailed(err))
		return plan.Image{}, err
	}
	m.records.recordSuccess(ref, n, img.ID, used)
	return img, nil
}

// definitelyFailed reports whether a failed pull has definitely left no image.
func definitelyFailed(err error) bool {
	e, ok := errors.AsType[*plan.Error](err)
	if !ok || e.Reason == reasonInspect { // pulled, but its status could not be read
		return false
	}
	return e.Kind != plan.Canceled && e.Kind != plan.Timeout && e.Kind != plan.Unavailable
}

// pull pulls an image with each set of credentials in turn, or anonymously if there are none. It
// returns the credentials that succeeded.
func (m *Manager) pull(ctx context.Context, ref string, n podspec.ImageName,
	keys []credentials) (plan.Image, credentials, error) {
	if m.timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, m.timeout)
		defer cancel()
	}
	if len(keys) == 0 {
		img, err := m.pullWith(ctx, ref, n, credentials{})
		return img, credentials{}, err
	}
	var errs []error
	for _, c := range keys {
		img, err := m.pullWith(ctx, ref, n, c)
		if err == nil {
			return img, c, nil
		}
		errs = append(errs, err)
		// Other credentials help only if the registry rejects these. Many registries return "not
		// found" instead of a denial.
		if k := plan.KindOf(err); k != plan.Denied && k != plan.NotFound && k != plan.Other {
			return plan.Image{}, c, err
		}
	}
	return plan.Image{}, credentials{}, joinPullErrors(errs)
}

func (m *Manager) pullWith(ctx context.Context, ref string, n podspec.ImageName, c credentials) (plan.Image, error) {
	req := &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: ref, UserSpecifiedImage: ref}}
	if c != (credentials{}) {
		req.Auth = &runtimeapi.AuthConfig{
			Username: c.username, Password: c.password,
			IdentityToken: c.identityToken, RegistryToken: c.registryToken,
		}
	}
	resp, err := m.service.PullImage(ctx, req)
	if err != nil {
		return plan.Image{}, pullError(ref, err, errors.Is(ctx.Err(), context.Canceled), c.secrets())
	}
	// Use the returned reference, because the tag may have moved meanwhile.
	p, err := m.inspect(ctx, cmp.Or(resp.GetImageRef(), ref), n)
	if err == nil && !p.present {
		err = errors.New("the runtime does not list the pulled image")
	}
	if err != nil {
		return plan.Image{}, inspectError(ref, err)
	}
	return p.image, nil
}

// joinPullErrors returns one error for all credentials. A denial is more informative than "not
// found" and comes first.
func joinPullErrors(errs []error) error {
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
	return &plan.Error{Kind: first.Kind, Reason: first.Reason, Err: fmt.Errorf("%w (with each of %d credentials)",
		first.Err, len(errs))}
}

// addSkippedSecrets adds the skipped pull secrets to the error of a pull.
func addSkippedSecrets(err error, skipped []string) error {
	e, ok := errors.AsType[*plan.Error](err)
	if !ok || len(skipped) == 0 {
		return err
	}
	return &plan.Error{Kind: e.Kind, Reason: e.Reason, Err: fmt.Errorf("%w (%s)", e.Err, strings.Join(skipped, "; "))}
}

// inflightKey identifies the pulls that may be shared: same image, same credentials.
func inflightKey(ref string, keys []credentials) string {
	h := sha256.New()
	for _, c := range keys {
		_, _ = fmt.Fprintf(h, "%q %q %q %q\n", c.username, c.password, c.identityToken, c.registryToken)
	}
	return ref + " " + hex.EncodeToString(h.Sum(nil))
}

// ActivePulls returns the pulls in progress, oldest first.
func (m *Manager) ActivePulls() []PullProgress {
	var all []PullProgress
	m.pulls.each(func(p *inflightPull) {
		startedAt, ahead, waitReason := m.limiter.position(p.request)
		pods := slices.Clone(p.pods)
		slices.Sort(pods)
		all = append(all, PullProgress{
			Image: p.name, RequestedAt: p.requestedAt, StartedAt: startedAt, QueuePosition: ahead,
			WaitingForSpace: waitReason, Pods: slices.Compact(pods),
		})
	})
	slices.SortFunc(all, func(a, b PullProgress) int {
		return cmp.Or(a.RequestedAt.Compare(b.RequestedAt), cmp.Compare(a.Image, b.Image))
	})
	return all
}

// PullStatus describes the pull of an image for users. Empty: none is in progress.
func (m *Manager) PullStatus(image string) string {
	p, ok := m.progress(image)
	switch {
	case !ok:
		return ""
	case p.WaitingForSpace != "":
		return fmt.Sprintf("%s, waiting for disk space: %s", image, p.WaitingForSpace)
	case p.StartedAt.IsZero():
		return fmt.Sprintf("%s, %d pulls before it", image, p.QueuePosition)
	default:
		text := fmt.Sprintf("%s, for %d pods", image, len(p.Pods))
		if coming := m.downloadProgress(); coming != "" {
			text += "; " + coming
		}
		return text
	}
}

// progress returns the oldest pull of an image.
func (m *Manager) progress(image string) (PullProgress, bool) {
	n, err := podspec.ParseImageName(image)
	if err != nil {
		return PullProgress{}, false
	}
	all := m.ActivePulls()
	at := slices.IndexFunc(all, func(p PullProgress) bool { return p.Image == n.String() })
	if at < 0 {
		return PullProgress{}, false
	}
	return all[at], true
}
