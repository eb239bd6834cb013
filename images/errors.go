package images

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"berth/agent/plan"
)

// Waiting reasons of a container.
const (
	reasonPull      = "ErrImagePull"
	reasonName      = "InvalidImageName"
	reasonInspect   = "ImageInspectError"
	reasonRegistry  = "RegistryUnavailable"
	reasonSignature = "SignatureValidationFailed"
)

// errClosed is the error for waiters after Close.
var errClosed = errors.New("the agent is shutting down")

func invalidName(image string, err error) error {
	return &plan.Error{Kind: plan.Invalid, Reason: reasonName, Err: fmt.Errorf("image %q: %w", image, err)}
}

// pullError maps the error of a PullImage call. canceled means that this package canceled the call.
// hide lists secrets that must not be shown.
func pullError(image string, err error, canceled bool, hide []string) error {
	kind, reason := plan.Canceled, reasonPull
	if !canceled {
		kind, reason = classify(err)
	}
	return &plan.Error{Kind: kind, Reason: reason, Err: &redactedError{text: pullText(image, reason, redact(text(err),
		hide)), err: err}}
}

// pullText returns the message for a failed pull. A runtime that supports the two special reasons
// starts its message with the reason, which is the waiting reason already.
func pullText(image, reason, msg string) string {
	var what string
	switch reason {
	case reasonRegistry:
		what = "the registry is unavailable"
	case reasonSignature:
		what = "the signature validation failed"
	default:
		return fmt.Sprintf("pull image %q: %s", image, msg)
	}
	return fmt.Sprintf("image pull failed for %s because %s%s", image, what, strings.TrimPrefix(msg, reason))
}

// waitError is the error of a waiter that left before the end of a pull.
func waitError(image string, err error) error {
	kind := plan.Canceled
	if errors.Is(err, context.DeadlineExceeded) {
		kind = plan.Timeout
	}
	return &plan.Error{Kind: kind, Reason: reasonPull, Err: fmt.Errorf("pull image %q: %w", image, err)}
}

func inspectError(image string, err error) error {
	kind := plan.Other
	switch {
	case errors.Is(err, context.Canceled) || errors.Is(err, errClosed):
		kind = plan.Canceled
	case errors.Is(err, context.DeadlineExceeded):
		kind = plan.Timeout
	default:
		switch status.Code(err) {
		case codes.Unavailable:
			kind = plan.Unavailable
		case codes.Canceled:
			kind = plan.Canceled
		case codes.DeadlineExceeded:
			kind = plan.Timeout
		case codes.Unimplemented:
			kind = plan.Unsupported
		}
	}
	return &plan.Error{Kind: kind, Reason: reasonInspect, Err: fmt.Errorf("inspect image %q: %w", image, err)}
}

// redactedError is an error with a cleaned text. The original is available to errors.Is and is
// never printed.
type redactedError struct {
	text string
	err  error
}

func (t *redactedError) Error() string { return t.text }
func (t *redactedError) Unwrap() error { return t.err }

// classify maps the runtime's error of a pull. Runtimes pass most errors of a registry on as text
// with the code Unknown, so the text has to be parsed. This is the only place that does.
func classify(err error) (plan.ErrorKind, string) {
	msg := strings.ToLower(text(err))
	has := func(words ...string) bool {
		for _, w := range words {
			if strings.Contains(msg, w) {
				return true
			}
		}
		return false
	}
	switch code := status.Code(err); {
	case has("signaturevalidationfailed"):
		return plan.Other, reasonSignature
	case has("registryunavailable"):
		return plan.Other, reasonRegistry
	case code == codes.Unavailable:
		return plan.Unavailable, reasonPull
	case code == codes.Unimplemented:
		return plan.Unsupported, reasonPull
	case code == codes.ResourceExhausted && has("space", "quota"),
		has("no space left on device", "disk quota exceeded"):
		return plan.NoSpace, reasonPull
	case code == codes.Unauthenticated, code == codes.PermissionDenied,
		has("unauthorized", "authorization failed", "failed to authorize", "access denied", "403 forbidden",
			"no basic auth credentials"):
		return plan.Denied, reasonPull
	case code == codes.NotFound, has("manifest unknown", "name unknown", ": not found", "404 not found"):
		return plan.NotFound, reasonPull
	case code == codes.DeadlineExceeded, code == codes.Canceled, errors.Is(err, context.DeadlineExceeded),
		has("i/o timeout", "deadline exceeded", "context canceled"):
		// Not canceled by this package: the runtime timed out.
		return plan.Timeout, reasonPull
	case code == codes.InvalidArgument && has("reference"):
		return plan.Invalid, reasonName
	}
	return plan.Other, reasonPull
}

// text returns the message without gRPC's prefix.
func text(err error) string {
	if s, ok := status.FromError(err); ok && s.Code() != codes.OK {
		return s.Message()
	}
	return err.Error()
}

var (
	urlQuery = regexp.MustCompile(`(https?://[^\s"'?]+)\?[^\s"']*[^\s"':;,]`)
	urlUser  = regexp.MustCompile(`(https?://)[^\s/"'@]+@`)
)

// minHidden is the minimum length of a secret to search for in messages: shorter ones match any
// text.
const minHidden = 4

// redact removes what may grant access from a message of the runtime: signed URL queries, user
// information in URLs, and the secrets of the call.
func redact(msg string, hide []string) string {
	msg = urlQuery.ReplaceAllString(msg, "$1?…")
	msg = urlUser.ReplaceAllString(msg, "$1…@")
	for _, h := range hide {
		if len(h) >= minHidden {
			msg = strings.ReplaceAll(msg, h, "…")
		}
	}
	return msg
}
