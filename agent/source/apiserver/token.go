package apiserver

import (
	"cmp"
	"context"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	authnv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"

	"berth/agent/plan"
	"berth/agent/source"
	"berth/internal/apiclient"
)

// token is a service account token or a pod certificate with its renewal time.
type token struct {
	pending  bool
	due      time.Time // zero: never
	attempts int
	request  func() // starts a request; nil: not a token
	expires  time.Time
}

const (
	tokenTimeout  = 10 * time.Second // timeout of one request
	maxTokenAge   = 24 * time.Hour   // longest time before a renewal
	minTokenRetry = 100 * time.Millisecond
	maxTokenRetry = 30 * time.Second
)

// startToken requests a token bound to the pod.
func (s *Source) startToken(ctx context.Context, key source.ObjectKey, u *object, pod *corev1.Pod) {
	_, what, _ := strings.Cut(key.Name, "/")
	secondsText, audience, _ := strings.Cut(what, "/")
	seconds, _ := strconv.ParseInt(secondsText, 10, 64) // podspec.TokenName wrote it
	account := cmp.Or(pod.Spec.ServiceAccountName, "default")
	req := authnv1.TokenRequest{Spec: authnv1.TokenRequestSpec{
		ExpirationSeconds: &seconds,
		BoundObjectRef:    &authnv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID},
	}}
	if audience != "" {
		req.Spec.Audiences = []string{audience}
	}
	u.token.request = func() {
		u.token.pending = true
		s.wg.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, tokenTimeout)
			defer cancel()
			began := s.opt.Now()
			out := authnv1.TokenRequest{}
			err := s.opt.Client.Create(ctx, apiclient.ServiceAccounts, pod.Namespace, &req, &out, account, "token")
			s.do(func() { s.handleToken(u, out, err, began) })
		})
	}
	u.token.due = s.opt.Now()
}

// handleToken handles the result of a token request.
func (s *Source) handleToken(u *object, out authnv1.TokenRequest, err error, began time.Time) {
	t := &u.token
	t.pending = false
	now := s.opt.Now()
	if err != nil || out.Status.Token == "" {
		u.lastErr = "the server returned an empty token"
		if err != nil {
			u.lastErr = errorText(err)
		}
		t.due = now.Add(min(minTokenRetry<<min(t.attempts, 10), maxTokenRetry))
		t.attempts++
		return
	}
	t.attempts = 0
	t.expires = out.Status.ExpirationTimestamp.Time
	// Based on the lifetime, independent of the server's clock.
	lifetime := time.Hour
	if e := out.Spec.ExpirationSeconds; e != nil {
		lifetime = time.Duration(*e) * time.Second
	}
	jitter := time.Duration(rand.Int64N(int64(10 * time.Second)))
	t.due = began.Add(min(lifetime*8/10, maxTokenAge) - min(jitter, lifetime/20))
	s.set(
		u,
		plan.Object{
			Token:   out.Status.Token,
			Version: plan.Version{Version: "token of " + began.UTC().Format(time.RFC3339Nano)},
		},
	)
}

// renew requests a token that is due, and returns when it will be due.
func (s *Source) renew(u *object, now time.Time) (next time.Time) {
	t := &u.token
	switch {
	case t.request == nil || t.pending:
		return time.Time{}
	case now.Before(t.due):
		return t.due
	}
	t.request()
	return time.Time{}
}
